"""The closing table of a sweep: the best job first."""

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from src.report.job import SweepJob, label, write_job
from src.report.record import Case, ReachedMetric, Record, write_record
from src.sweep.status import write_comparison
from src.sweep.table import as_csv, best_line, result_rows

CASE = Case(
    model="moflow", datamodule="zinc250k", trainer="1x1", precision="fp32", fix_hp="/", hardware="cpu", batch_size=8,
    batch_per="device",
)  # fmt: skip


def jobs(
    home: Path, values: Sequence[float | None], direction: str, names: tuple[str, ...] = ("nuv",)
) -> dict[Path, SweepJob]:
    """Returns a job for each value, in its folder with a record; None is one that failed."""
    made = {}
    for number, value in enumerate(values):
        metric = ReachedMetric(name=names[number % len(names)], value=value, direction=direction)  # type: ignore[arg-type]
        state = "failed" if value is None else "done"
        write_record(
            Record(kind="train", case=CASE, status=state, unit="molecules", final_metric=metric),  # type: ignore[arg-type]
            home / str(number) / "result.json",
        )
        made[home / str(number)] = SweepJob("", [f"hp.lr={number}"], [], "", state=state)
    return made


@pytest.mark.parametrize(("direction", "order"), [("max", "2013"), ("min", "1023")])
def test_the_best_job_comes_first(direction: str, order: str, tmp_path: Path) -> None:
    made = jobs(tmp_path, [5.0, 3.0, 90.5, None], direction)
    assert [row["job"] for row in result_rows(made)] == list(order)
    best = {"max": "best: job 2 (hp.lr=2), nuv 90.5", "min": "best: job 1 (hp.lr=1), nuv 3"}[direction]
    assert best_line(made) == f"{best}; {tmp_path / order[0]}"


def test_an_exact_tie_has_no_best(tmp_path: Path) -> None:
    assert best_line(jobs(tmp_path, [5.0, 3.0, 5.0], "max")) == "best: an exact tie of jobs 0, 2, nuv 5"


def test_csv_has_figures_at_full_length_and_empty_cells(tmp_path: Path) -> None:
    rows = result_rows(jobs(tmp_path, [100 / 3, None], "max"))
    lines = list(csv.DictReader(io.StringIO(as_csv(rows))))
    assert [line["nuv"] for line in lines] == [repr(100 / 3), ""]
    assert [line["seconds"] for line in lines] == ["", ""]


def test_jobs_that_cannot_be_compared_keep_their_order(tmp_path: Path) -> None:
    for home, values, names in (("two", [1.0, 2.0], ("nuv", "auc")), ("one", [None, 2.0], ("nuv",))):
        assert best_line(jobs(tmp_path / home, values, "max", names)) is None
    assert [row["job"] for row in result_rows(jobs(tmp_path / "two", [1.0, 2.0], "max", ("nuv", "auc")))] == ["0", "1"]


def test_a_sweep_ends_in_a_comparison_that_names_what_failed(tmp_path: Path) -> None:
    made = jobs(tmp_path, [5.0, 3.0, None], "max")
    for folder, job in made.items():
        write_job(folder, replace(job, key=folder.name))
    file = write_comparison(tmp_path, made)
    assert file == tmp_path / "comparison.html"
    text = (tmp_path / "comparison.html").read_text()
    assert "moflow on zinc250k: 3 runs" in text and "<h2>Not done</h2>" in text
    assert write_comparison(tmp_path, jobs(tmp_path / "one", [1.0], "max")) is None
    other = jobs(tmp_path / "other", [1.0, 2.0], "max", ("nuv", "auc"))
    for folder, job in other.items():
        write_job(folder, replace(job, key=folder.name))
    file = write_comparison(tmp_path / "other", other)
    assert file is not None and file.read_text().count('<section id="part-') == 2  # figures of two kinds: one for each


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("0.06824078427098834", "0.06824"),
        ("3.1622776601683795e-05", "3.162e-05"),
        ("123456.78901", "1.235e+05"),
        ("0.0005", "0.0005"),
        ("1e-3", "1e-3"),
        ("65536", "65536"),
        ("1x4", "1x4"),
        ("'0.06824078427098834'", "'0.06824078427098834'"),
    ],
)
def test_a_drawn_number_is_shown_by_four_digits(value: str, shown: str) -> None:
    assert label({"hp.lr": value}) == f"hp.lr={shown}"
