"""The results pages of this repository: they can be made anew from their records, and are as their records say."""

import shutil
from itertools import groupby
from pathlib import Path

import pytest

from src.published import FIGURES, rows
from src.report.docs import write_docs
from src.report.record import read_record
from tests.support import ROOT

RESULTS = ROOT / "docs" / "results"
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_pages_are_what_their_records_say(tmp_path: Path) -> None:
    """After a change here: `python report.py --docs`. Records of every age must be readable."""
    copy = shutil.copytree(RESULTS, tmp_path / "results")
    write_docs(copy)
    pages = sorted(page.name for page in RESULTS.glob("*.md"))
    assert pages and [name for name in pages if (copy / name).read_text() != (RESULTS / name).read_text()] == []


def test_the_readme_prints_no_published_figure_that_is_not_comparable() -> None:
    withdrawn = {
        f"{row.figure(name):,.0f}" for row in rows() if not row.comparable for name in FIGURES if row.figure(name)
    }
    assert withdrawn == {"13,540", "12,630", "10,650"}
    cells = [cell.strip() for line in README.splitlines() if line.startswith("|") for cell in line.split("|")]
    assert withdrawn.isdisjoint(word for cell in cells for word in cell.split())


@pytest.mark.parametrize("batch", [400, 1600])
def test_the_models_page_compares_predictions_with_loading(batch: int) -> None:
    """The SE(3)-Transformer's has our figure by NVIDIA's protocol beside the one of NVIDIA's last page."""
    page = (ROOT / "docs" / "models" / "se3_transformer.md").read_text(encoding="utf-8")
    ours = read_record(RESULTS / "records" / f"se3_transformer_predict_{batch}_amp_published.json").throughput
    (theirs,) = [
        row.figure("throughput")
        for row in rows("se3_transformer", "predict")
        if ("02/2023" in row.source and row.hardware == "a100_80g")
        and (row.precision, row.batch_size) == ("amp", batch)
    ]
    assert f"| predict with loading, batch {batch}, AMP | {ours:,.0f} | {theirs:,.0f} |" in page


def test_the_readme_says_of_every_reference_that_its_command_was_not_kept() -> None:
    """Until all of them have been measured again."""
    assert any(row.measured and not row.command for row in rows())
    blocks = ["\n".join(block) for is_text, block in groupby(README.splitlines(), bool) if is_text]
    tables = [i for i, block in enumerate(blocks) if "same chip (1) |" in block]
    assert len(tables) == sum("same chip" in line for line in README.splitlines() if line.startswith("|")) == 1
    assert all(blocks[i + 1].startswith("(1) The command behind these figures was not kept") for i in tables)


def test_the_readme_prints_the_references_and_published_figures_of_its_rows() -> None:
    known = {f"{row.figure(name):,.0f}" for row in rows() for name in FIGURES if row.figure(name)}
    cells = [line.split("|")[3:5] for line in README.splitlines() if line.startswith("| [")]
    figures = [cell.split()[0] for row in cells for cell in row if cell.strip()]
    assert len(figures) == 9 and set(figures) <= known
