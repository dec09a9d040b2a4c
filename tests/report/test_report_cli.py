"""report.py: its output, its files, and its errors."""

import csv
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from src.report.cli import main
from src.report.digits import shown
from src.report.record import Record, read_record, write_record
from tests.support import ROOT
from tests.support.possible import possible


def test_report_py_prints_the_run_with_the_published_rows(run_folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "report.py", run_folder], capture_output=True, text=True, encoding="utf-8", check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "### moflow, train" in done.stdout and "FlagPerf" in done.stdout and f"| {run_folder} " in done.stdout


def test_a_run_is_a_folder_its_record_or_a_record_file_and_counts_once(
    run_folder: Path, trained: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = run_folder.parent / "kept.json"
    write_record(trained, kept)
    assert main([str(run_folder), str(run_folder / "result.json"), str(kept), "--no-published", "--format=json"]) == 0
    [table] = json.loads(capsys.readouterr().out)
    assert [row["source"] for row in table["rows"]] == [str(run_folder), str(kept)]


def test_folders_without_a_record_are_left_out_and_named(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = [run_folder.parent / name for name in ("one", "two")]
    for folder in empty:
        folder.mkdir()
    assert main([str(run_folder), *map(str, empty), "--no-published"]) == 0
    printed = capsys.readouterr()
    assert printed.err == f"note: 2 folders without a record left out: {empty[0]}, {empty[1]}\n"
    assert "moflow" in printed.out
    assert main([str(run_folder.parent), "--no-published"]) == 0  # also those in a folder of runs
    assert capsys.readouterr().err == f"note: 2 folders without a record left out: {empty[0]}, {empty[1]}\n"
    more = [run_folder.parent / f"x{i}" for i in range(4)]
    for folder in more:
        folder.mkdir()
    assert main([str(run_folder), *map(str, empty + more), "--no-published"]) == 0
    assert capsys.readouterr().err.endswith(f"{empty[1]}, {more[0]}, {more[1]}, {more[2]} and 1 more\n")
    assert main([*map(str, empty)]) == 2
    assert capsys.readouterr().err == "error: none of the 2 folders has a result.json: give the folders of runs\n"


@pytest.mark.parametrize(("view", "start"), [("markdown", "### moflow"), ("csv", "model,kind"), ("json", "[")])
def test_output_goes_to_a_file(run_folder: Path, capsys: pytest.CaptureFixture[str], view: str, start: str) -> None:
    file = run_folder / "tables" / "out"
    assert main([str(run_folder), "--format", view, "--output", str(file)]) == 0
    assert file.read_text(encoding="utf-8").startswith(start)
    assert capsys.readouterr().out == ""


def test_paddle_writes_into_the_run_folder_and_prints_the_record_last(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run_folder), "--format", "paddle"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(last)["log_file"] == "mol_MoFlow_sp_bs512_amp_1_speed"
    assert (run_folder / "mol_MoFlow_sp_bs512_amp_1_speed").read_text(encoding="utf-8") == last + "\n"


def test_paddle_numbers_runs_of_one_name(run_folder: Path, trained: Record, capsys: pytest.CaptureFixture[str]) -> None:
    other = run_folder.parent / "other"
    write_record(trained, other / "result.json")
    folder = run_folder.parent / "paddle"
    assert main([str(run_folder), str(other), "--format", "paddle", "--output", str(folder)]) == 0
    name = "mol_MoFlow_sp_bs512_amp_1_speed"
    assert sorted(file.name for file in folder.iterdir()) == [name, f"{name}.2"]
    assert [json.loads(line)["log_file"] for line in capsys.readouterr().out.splitlines()] == [name, f"{name}.2"]


@pytest.mark.parametrize("name", ["../../x", "a/b", "a\\b", "..", "", "two\nlines"])
@pytest.mark.parametrize(("view", "key"), [("paddle", "model"), ("paddle", "precision"), ("docs", "model")])
def test_a_name_in_a_record_cannot_lead_out_of_the_folder(
    tmp_path: Path, trained: Record, capsys: pytest.CaptureFixture[str], name: str, view: str, key: str
) -> None:
    file = tmp_path / "results" / "records" / "run.json"
    write_record(replace(trained, case=replace(trained.case, **{key: name})), file)
    arguments = [str(file), "--format=paddle"] if view == "paddle" else ["--docs", str(file.parents[1])]
    assert main(arguments) == 2
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [file]
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    assert printed.err.startswith(f"error: {file}: key 'case.{key}' is {name!r}")


@pytest.mark.parametrize("arguments", [["absent"], [], ["--docs", "absent"], ["x", "--docs"]])
def test_bad_input_prints_one_line_and_exits_with_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("error: ") and printed.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_no_file_is_written_if_one_run_is_broken(run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    file = tmp_path / "table.md"
    assert main([str(run_folder), str(tmp_path / "broken.json"), "--output", str(file)]) == 2
    assert main([str(run_folder), str(tmp_path / "broken.json"), "--format=paddle", "--output", str(file)]) == 2
    assert not file.exists()


@pytest.fixture
def results(tmp_path: Path, trained: Record, predicted: Record) -> Path:
    """A docs/results folder with a training and a prediction of MoFlow."""
    write_record(possible(trained), tmp_path / "results" / "records" / "h200.json")
    write_record(possible(predicted), tmp_path / "results" / "records" / "generate.json")
    return tmp_path / "results"


def test_docs_are_made_and_made_again_without_a_change(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = results / "rows.csv"
    assert main(["--docs", str(results)]) == 0
    assert capsys.readouterr().out == f"{table}\n"
    first = table.read_text(encoding="utf-8")
    lines = list(csv.DictReader(io.StringIO(first)))
    assert {line["kind"] for line in lines} == {"train", "predict"} and {line["model"] for line in lines} == {"moflow"}
    sources = [line["source"] for line in lines if line["status"] != "published"]
    assert sources == ["records/generate.json, unknown", "records/h200.json, unknown"]
    assert main(["--docs", str(results)]) == 0
    assert table.read_text(encoding="utf-8") == first


def test_docs_follow_the_records_and_leave_pages_written_by_people(results: Path, trained: Record) -> None:
    (results / "moflow.md").write_text("My words.", encoding="utf-8")
    main(["--docs", str(results)])
    write_record(replace(possible(trained), p_whole=4321.0), results / "records" / "h200.json")
    (results / "records" / "generate.json").unlink()
    main(["--docs", str(results)])
    new = (results / "rows.csv").read_text(encoding="utf-8")
    assert "4321" in new and "9100" not in new and "generate.json" not in new and ",predict," not in new
    assert (results / "moflow.md").read_text(encoding="utf-8") == "My words."


def test_rows_are_in_the_order_of_the_numbers_in_their_names(results: Path, trained: Record) -> None:
    for name in ("train_2048", "train_512", "train_64"):
        write_record(possible(trained), results / "records" / f"{name}.json")
    main(["--docs", str(results)])
    text = (results / "rows.csv").read_text(encoding="utf-8")
    places = [text.index(f"records/train_{batch}.json") for batch in (64, 512, 2048)]
    assert places == sorted(places)


@pytest.mark.slow
def test_the_guides_commands_lead_from_two_runs_to_a_report(tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "guides" / "reports.md").read_text(encoding="utf-8")
    block = guide.partition("From two runs to a report")[2].partition("`RUN` is")[0]
    commands = [line.split()[1:] for line in block.splitlines() if line.startswith("    python ")]
    assert len(commands) == 5
    for program, *arguments in commands:
        short = ["fit.max_epochs=1", "datamodule.image_size=32"] if program == "train.py" else []
        done = subprocess.run(
            [sys.executable, str(ROOT / program), *arguments, *short], cwd=tmp_path, capture_output=True, text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    records = [read_record(tmp_path / "outputs" / name) for name in ("slow", "fast")]
    written = (tmp_path / "outputs" / "report.html").read_text(encoding="utf-8")
    for record in records:
        assert record.steady is not None and record.steady.p_train is not None
        assert f">{shown(record.steady.p_train)}</td>" in written
    assert "lr=0.05" in (tmp_path / "outputs" / "table.tex").read_text(encoding="utf-8")
