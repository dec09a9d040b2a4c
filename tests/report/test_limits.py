"""The picture of training between the fastest other code and the chip's limit has every training case with a record."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from src.report.docs import write_docs
from src.report.in_turn import Comparison, read_comparison
from src.report.limits import Standing, limits_picture, standings
from src.report.record import Record, read_record
from tests.support import ROOT

RESULTS = ROOT / "docs" / "results"


@pytest.fixture(scope="module")
def comparisons() -> list[Comparison]:
    return [read_comparison(file) for file in (RESULTS / "beside").glob("*.json")]


@pytest.fixture(scope="module")
def records() -> dict[str, Record]:
    return {file.stem: read_record(file) for file in (RESULTS / "records").glob("*.json")}


def test_every_training_case_with_a_record_has_a_standing(
    comparisons: list[Comparison], records: dict[str, Record]
) -> None:
    cases = standings(comparisons, records)
    assert [case.ours for case in cases] == sorted((case.ours for case in cases), reverse=True)
    assert (
        len(cases) == sum(comparison.case.verb == "train" for comparison in comparisons) - 1
    )  # DLRM's at 262,144 in TF32
    assert all(0 < case.other < case.ours < 1 for case in cases)


def test_the_share_is_of_what_runs_out_first(comparisons: list[Comparison], records: dict[str, Record]) -> None:
    """MobileNetV1 at 64 moves 73.0 MB a sample in AMP (its note) through 3.35 TB/s: 45,900 images a second at most."""
    (comparison,) = (c for c in comparisons if (c.case.model, c.case.name) == ("mobilenet_v1", "train_64_amp"))
    (case,) = standings([comparison], records)
    assert case.bound == "memory" and case.words == "batch 64, AMP"
    assert case.ours == pytest.approx((comparison.sides[0].throughput or 0) / 45_900, rel=2e-3)


def test_another_gpus_record_gives_none(comparisons: list[Comparison], records: dict[str, Record]) -> None:
    others = {name: replace(record, environment={"gpus": ["NVIDIA H200"]}) for name, record in records.items()}
    assert standings(comparisons, others) == []


def test_the_picture_names_case_and_bound(tmp_path: Path) -> None:
    limits_picture([Standing("dlrm", "batch 8, AMP", 0.64, 0.28, "memory")], "GPU", tmp_path / "limits.png")
    drawn = (tmp_path / "limits.svg").read_text()
    assert "DLRM: batch 8, AMP" in drawn and "64% of memory" in drawn


def test_cases_of_another_gpu_have_a_picture_of_their_own(tmp_path: Path) -> None:
    """Of files in folders of its name, beside those of the pages."""
    for kind, file in (("records", "mobilenet_v1_train_64_amp.json"), ("beside", "mobilenet_v1_train_64_amp.json")):
        for folder in (tmp_path / kind, tmp_path / kind / "h200"):
            folder.mkdir()
            shutil.copy(RESULTS / kind / file, folder)
    names = [path.name for path in write_docs(tmp_path)]
    assert names == ["rows.csv", "beside.csv", "ratios.png", "limits.png", "limits_h200.png"]
    assert all((tmp_path / name).stat().st_size for name in names)
