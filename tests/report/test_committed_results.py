"""The result pages of this repository print the figures of their records and of the published rows."""

import csv
import re
import shutil
import subprocess
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path
from statistics import median

import pytest

from src.published import FIGURES, rows
from src.report.cli import main
from src.report.compare import charts
from src.report.compare import page as html
from src.report.compare.build import compare
from src.report.docs import write_docs
from src.report.in_turn import read_comparison
from src.report.load import load
from src.report.record import Record, read_record
from tests.support import ROOT

RESULTS = ROOT / "docs" / "results"
PAGES = sorted(RESULTS.glob("*.md"))
README = (ROOT / "README.md").read_text(encoding="utf-8")


def pages(root: Path) -> dict[str, str]:
    """Returns the texts of README, the quick start and all pages and tables of results, by their paths."""
    files = [
        root / "README.md",
        root / "docs" / "quickstart.md",
        *(root / "docs" / "results").glob("*.md"),
        *(root / "docs" / "results").glob("*.csv"),
    ]
    return {file.relative_to(root).as_posix(): file.read_text(encoding="utf-8") for file in files if file.exists()}


@pytest.mark.slow
def test_generated_pages_are_what_their_records_and_templates_say(tmp_path: Path) -> None:
    """After a change here: `python report.py --docs`. Records of every age must be readable, and listed by digest."""
    for name in ("results", "templates"):
        shutil.copytree(ROOT / "docs" / name, tmp_path / "docs" / name)
    for file in pages(tmp_path):
        (tmp_path / file).unlink()
    write_docs(tmp_path / "docs" / "results")
    made, kept = pages(tmp_path), pages(ROOT)
    assert [name for name in made | kept if made.get(name) != kept.get(name)] == []
    assert len(kept) == 12


@pytest.mark.slow
def test_every_row_of_the_table_names_its_record_and_commit() -> None:
    with (RESULTS / "rows.csv").open(encoding="utf-8", newline="") as file:
        sources = [row["source"] for row in csv.DictReader(file) if row["status"] != "published"]
    assert len(sources) == len(list((RESULTS / "records").glob("*.json")))
    for source in sources:
        name, _, commit = source.partition(", ")
        assert read_record(RESULTS / name).environment["git"]["commit"].startswith(commit), name


def printed(values: Iterable[float | None]) -> set[str]:
    """Returns how the summaries print a figure: whole, in millions, with decimals, seconds as milliseconds."""
    whole, millions = [(1, style) for style in (",.0f", ",.1f")], [(1e-6, f".{digits}f") for digits in range(3)]
    formats = [*whole, *((1, f".{digits}f") for digits in (3, 4, 5)), *millions, (1e3, ".2f"), (1e3, ".1f")]
    return {f"{value * factor:{style}}" for value in values if value is not None for factor, style in formats}


def of_record(record: Record) -> set[str]:
    steady = record.steady.p_train if record.steady else None
    quality = record.final_metric.value if record.final_metric else None
    tested = [value for row in record.history[-1:] for name, value in row.items() if name.startswith("test_")]
    latency = record.latency_s and record.latency_s.mean
    judged = [figure.value for figure in record.quality or ()]
    return printed([record.p_whole, steady, record.throughput, quality, latency, *tested, *judged])


@pytest.mark.slow
def test_summaries_print_the_figures_of_the_records_that_they_link() -> None:
    """A record is linked by its figure, or by its commit in the cell behind the figure."""
    linked = re.compile(r"(?:\| ([\d,.]+)[^|]*\| )?\[([\d,.]+|[0-9a-f]{7})\]\(records/([^)]+)\)")
    links = [(page.name, *link) for page in PAGES for link in linked.findall(page.read_text(encoding="utf-8"))]
    assert len(links) > 70
    for page, figure, label, name in links:
        record = read_record(RESULTS / "records" / name)
        assert (figure or label) in of_record(record), (page, name, figure or label)
        assert not figure or record.environment["git"]["commit"].startswith(label), (page, name, label)


@pytest.mark.parametrize("model", sorted({row.model for row in rows()}))
def test_summaries_print_the_figures_of_published_rows(model: str) -> None:
    """In the columns behind the record, which are of the published GPU in their title.

    What stands in parentheses there, but for corrections, is no figure.
    """
    lines = (RESULTS / f"{model}.md").read_text(encoding="utf-8").splitlines()
    gpus = {f"{gpu.lower()}_{gib}g" for line in lines for gpu, gib in re.findall(r"\| published, (\w+) (\d+)GB", line)}
    names, entries = [*FIGURES, "final_metric", "latency_s.mean"], [row for row in rows(model) if row.hardware in gpus]
    entries += [row for row in rows(model) if row.measured]
    cells = [cell for line in lines if "](records/" in line and line[0] == "|" for cell in line.split("|")[4:]]
    if not gpus:  # no measured row is like a published one, which have a table of their own
        begin = next(number for number, line in enumerate(lines) if line.startswith("| published case "))
        table = takewhile(lambda line: line.startswith("|"), lines[begin + 2 :])
        entries, cells = rows(model), [line.split("|")[3] for line in table]
    cells = [re.sub(r"\((?![^)]*corrected)[^)]*\)", "", cell) for cell in cells]
    figures = printed(figure for row in entries for name in names for figure in (row.figure(name), row.best(name)))
    shown = {figure for cell in cells for figure in re.findall(r"\d[\d,.]*", cell)}
    assert shown and shown <= figures, shown - figures


def test_the_speed_ups_of_the_summaries_are_those_of_the_records() -> None:
    """A cell of scaling.md is a linked rate and its speed-up over the first rate of its line."""
    speed_ups = 0
    for line in (RESULTS / "scaling.md").read_text(encoding="utf-8").splitlines():
        runs = [read_record(RESULTS / "records" / name).steady for name in re.findall(r"records/(\w+\.json)\)", line)]
        if line.startswith("|") and runs:
            rates = [run.p_train for run in runs if run and run.p_train]
            printed_ones = re.findall(r"\.json\) ([\d.]+)x \|", line)
            assert printed_ones == [f"{rate / rates[0]:.2f}" for rate in rates[1:]], line
            speed_ups += len(printed_ones)
    assert speed_ups == 24


def test_the_links_of_results_and_notes_lead_to_files() -> None:
    """Those to a heading too."""
    for page in [*PAGES, *(RESULTS / "full").glob("*.md"), *(ROOT / "docs" / "notes").glob("*.md")]:
        for target, heading in re.findall(r"\]\(([^)#:]+)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
            file = page.parent / target
            assert file.exists(), (page.name, target)
            if heading:
                titles = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
                assert heading in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_readme_prints_no_published_figure_that_is_not_comparable() -> None:
    withdrawn = {
        f"{row.figure(name):,.0f}" for row in rows() if not row.comparable for name in FIGURES if row.figure(name)
    }
    assert withdrawn == {"13,540", "12,630", "10,650"}
    cells = [cell.strip() for line in README.splitlines() if line.startswith("|") for cell in line.split("|")]
    assert withdrawn.isdisjoint(word for cell in cells for word in cell.split())


@pytest.mark.slow
def test_no_page_of_a_model_copies_a_figure_of_a_record() -> None:
    """They link docs/results, whose figures are made."""
    records = [read_record(file) for file in (RESULTS / "records").rglob("*.json")]
    quality = [record.final_metric.value for record in records if record.final_metric and record.final_metric.value]
    figures = {f"{value * 100:.2f}" for value in quality}.union(*map(of_record, records))
    figures = {figure for figure in figures if re.search("[.,]", figure) and len(re.sub(r"^0\.0*|\D", "", figure)) > 2}
    figures -= printed(row.figure("final_metric") for row in rows())
    for page in (ROOT / "docs" / "models").glob("*.md"):
        assert figures.isdisjoint(re.findall(r"\d[\d,.]*\d", page.read_text(encoding="utf-8"))), page.name


def test_the_readme_prints_published_figures_and_the_medians_of_the_turns_that_it_links() -> None:
    published = printed(row.figure(name) for row in rows() for name in FIGURES)
    cells = [line.split("|") for line in README.splitlines() if line.startswith("| [")]
    figures = [row[7].split()[0] for row in cells if row[7].strip()]
    assert len(figures) == 4 and set(figures) <= published
    for row in cells:
        turns = [side.throughputs for side in read_comparison(ROOT / row[6].split("(")[1].rstrip(") ")).sides]
        medians = [f"{median(rates):,.0f}" for rates in turns if rates]
        assert row[2].strip() == medians[0] and row[3].strip() in medians[1:], row[1]


@pytest.mark.parametrize(
    ("name", "records", "published"),
    [
        ("moflow_precision", ("moflow_train_512_amp.json", "moflow_train_512_tf32.json"), True),
        ("distilbert_seeds", ("distilbert_minilm_seed_*.json",), True),
        ("mobilenet_sweep", ("mobilenet_sweep/*.json",), False),
    ],
)
def test_the_comparisons_pages_say_what_their_records_say(
    name: str, records: tuple[str, ...], published: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their texts; the style and the drawings may differ. docs/results/comparisons.sh renews them."""
    monkeypatch.setattr(charts, "svg", lambda spec: "<svg></svg>")  # drawings are left out, and take seconds

    def texts(source: str) -> list[str]:
        return re.findall(r">([^<]+)<", re.sub(r"<(svg|style)\b.*?</\1>", "", source, flags=re.DOTALL))

    monkeypatch.chdir(ROOT)
    files = [file for pattern in records for file in sorted(Path("docs/results/records").glob(pattern))]
    expected = html.page(compare(load(files), published))
    committed = Path(f"docs/results/comparisons/{name}.html").read_text(encoding="utf-8")
    assert texts(committed) == texts(expected)


@pytest.mark.slow
def test_the_questions_of_the_guide_have_the_answers_of_their_records(capsys: pytest.CaptureFixture[str]) -> None:
    guide = (ROOT / "docs" / "guides" / "reports.md").read_text(encoding="utf-8")
    section = guide.partition("## Five questions")[2].partition("\n## ")[0]
    block = "".join(line[4:] + "\n" for line in section.splitlines() if line.startswith("    "))
    asked = re.findall(r"^\$ (report\.py .*?) *#[^\n]*\n((?:[^$].*\n)+)", block, re.MULTILINE)
    assert len(asked) == 4
    for command, answer in asked:
        words = subprocess.run(
            ["bash", "-c", f"R=docs/results/records; echo {command.replace(' R/', ' $R/')}"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout.split()  # fmt: skip
        main(words[1:])
        printed = " ".join(capsys.readouterr().out.split())
        assert " ".join(answer.replace("...", "").split()).removesuffix(" |") in printed, command
