"""Where the time before the first steady step went, of several runs."""

from dataclasses import replace
from pathlib import Path

import pytest

from src.errors import UserError
from src.measure.starting import Start
from src.report.cli import main
from src.report.record import Record, write_record
from src.report.start import labels, start_picture, start_table


@pytest.fixture
def runs(trained: Record) -> list[tuple[str, Record]]:
    cold = Start(9.0, 9.5, {"interpreter": 0.5, "imports": 2.5, "first step": 6.0, "warm-up": 0.5})
    short = Start(3.25, None, {"interpreter": 0.5, "imports": 2.5, "launcher": 0.0, "first step": 0.25})
    return [("cold", replace(trained, start=cold)), ("short", replace(trained, start=short))]


def test_the_table_has_the_parts_that_took_time_and_both_ends(runs: list[tuple[str, Record]]) -> None:
    lines = start_table(runs).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert cells[0] == ["run", "interpreter", "imports", "first step", "warm-up", "first step at", "steady from"]
    assert cells[2] == ["cold", "0.50", "2.50", "6.00", "0.50", "9.00", "9.50"]
    assert cells[3] == ["short", "0.50", "2.50", "0.25", "", "3.25", ""]


def test_the_picture_has_a_bar_for_each_run(runs: list[tuple[str, Record]], tmp_path: Path) -> None:
    start_picture(runs, tmp_path / "start.png")
    written = (tmp_path / "start.svg").read_text()
    assert (tmp_path / "start.png").stat().st_size > 5000
    for text in ("cold", "short", "9.5 s", "3.2 s", "imports", "warm-up"):
        assert text in written
    assert "launcher" not in written


def test_the_command_prints_writes_and_refuses(
    runs: list[tuple[str, Record]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, record in runs:
        write_record(record, tmp_path / name / "result.json")
    assert main(["start", str(tmp_path / "cold"), str(tmp_path / "short"), "--picture", str(tmp_path / "a.png")]) == 0
    assert "| 9.00 |" in " ".join(capsys.readouterr().out.split())
    assert (tmp_path / "a.png").exists()
    write_record(replace(runs[0][1], start=None), tmp_path / "none" / "result.json")
    assert main(["start", str(tmp_path / "none")]) == 2
    assert "its record does not say where its start went; give runs with a first step" in capsys.readouterr().err
    with pytest.raises(UserError):
        start_table([("none", replace(runs[0][1], start=None))])


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["outputs/a/cold/result.json", "outputs/a/warm/result.json"], ["cold/result.json", "warm/result.json"]),
        (["/runs/a", "/runs/b/c"], ["a", "b/c"]),
        (["/runs/a"], ["/runs/a"]),
        (["a/b", "a/b"], ["b", "b"]),
        (["x" * 40], ["…" + "x" * 31]),
    ],
)
def test_labels_have_what_tells_runs_apart(names: list[str], expected: list[str]) -> None:
    assert labels(names) == expected
