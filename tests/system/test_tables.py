"""Cells of csv files that a spreadsheet would run as a formula begin with an apostrophe; numbers stay numbers."""

import ast
import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from src.report.cli import main as report
from src.report.record import read_record, write_record
from src.sweep.table import as_csv as sweep_csv
from src.system.tables import csv_text, write_csv
from tests.support import ROOT

FORMULA = "=cmd|'/c calc'!A0"
RECORD = ROOT / "docs" / "results" / "records" / "moflow_generate_512_amp.json"


@pytest.mark.parametrize("text", [FORMULA, "+1+cmd|x", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1d1"])
def test_a_formula_begins_with_an_apostrophe(text: str, tmp_path: Path) -> None:
    in_lines = text.replace("\r", "\n")
    assert list(csv.reader(io.StringIO(csv_text([[text], ["x" + text]]), newline=""))) == [
        ["'" + in_lines],
        ["x" + in_lines],
    ]
    write_csv(tmp_path / "a.csv", [text], [[text, 1]])
    with (tmp_path / "a.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["'" + text], ["'" + text, "1"]]


@pytest.mark.parametrize("value", [-1.5, "-1.5", "+3", "-1e-05", "a=b", "", "/", "CC(=O)[O-]"])
def test_numbers_and_other_texts_stay_as_they_are(value: str | float) -> None:
    assert next(csv.reader([csv_text([["x", value]])])) == ["x", str(value)]


def test_a_missing_value_is_empty() -> None:
    assert csv_text([["x", None, "/"]]) == "x,,/\n"


@pytest.mark.slow
@pytest.mark.parametrize("command", [["RUN"], ["compare", "RUN"], ["stability", "RUN"]])
def test_no_csv_of_a_record_has_a_formula(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = read_record(RECORD)
    hostile = replace(record, unit=FORMULA, case=replace(record.case, model=FORMULA, precision=FORMULA))
    write_record(hostile, tmp_path / "=1.json")
    words = [word.replace("RUN", str(tmp_path / "=1.json")) for word in command]
    assert report([*words, "--format", "csv"]) == 0
    cells = [cell for row in csv.reader(capsys.readouterr().out.splitlines()) for cell in row]
    assert cells and not [cell for cell in cells if cell.startswith("=")]


def test_no_csv_of_a_sweep_has_a_formula() -> None:
    assert sweep_csv([{"job": "0", "note": FORMULA}]) == f"job,note\n0,'{FORMULA}\n"


@pytest.mark.slow
def test_every_csv_is_written_by_the_one_writer() -> None:
    calls = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("csv.writer", "csv.DictWriter")
    }
    assert calls == {"src/system/tables.py"}


@pytest.mark.parametrize(
    "change",
    [{"overrides": 5}, {"overrides": ["a", 3]}, {"command": {}}, {"needs": "x"}, {"timeout_s": []}, {"state": "odd"},
     {"devices": 3}, {"environment": []}, {"begun_s": "now"}, {"key": None}, {"cwd": 4}, {"new": 1}, {"reason": {}}],
)  # fmt: skip
def test_a_strange_job_is_refused_in_one_line(
    change: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = {"key": "k", "overrides": ["seed=1"], "command": ["python"], "cwd": "/", **change}
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "job.json").write_text(json.dumps(job))
    (tmp_path / "0" / "result.json").write_bytes(RECORD.read_bytes())
    assert report([str(tmp_path)]) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"error: {tmp_path}/0/job.json: ") and line.count("\n") == 1
    assert f"'{next(iter(change))}" in line
