"""Folders and files in which a run cannot, or must not, write or read: one line, and nothing that changes elsewhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from src.run import train
from tests.support import ROOT
from tests.support.refusing import EntryPoint, the_error_line
from tests.support.started import LIMIT_S
from tests.support.tiny_mobilenet import tiny_mobilenet, tiny_overrides, tiny_prediction

pytestmark = pytest.mark.slow

# Root without the capabilities that pass by a file's mode.
AS_USER = ["setpriv", "--bounding-set=-dac_override,-dac_read_search,-fowner"] if os.geteuid() == 0 else []
NO_FILE = "is a link, a pipe or a folder, where a run writes a file: remove it, or choose another output folder"


def line_of(*words: str) -> str:
    """Returns the line that refuses a command."""
    ended = subprocess.run(
        [*AS_USER, sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert ended.returncode == 2, ended.stderr
    return the_error_line(ended.stderr)


def test_a_folder_that_is_closed_to_a_run(tmp_path: Path) -> None:
    read_only, closed = tmp_path / "run", tmp_path / "closed"
    read_only.mkdir(mode=0o555)
    closed.mkdir(mode=0o000)
    why = "(Permission denied): choose another output folder"
    assert line_of("train.py", *tiny_overrides(tmp_path)) == f"cannot write {read_only}/train.log {why}"
    predicted = *tiny_prediction(tmp_path, "model=moflow"), f"output_dir={closed}"
    assert line_of("predict.py", *predicted) == f"cannot write {closed}/predict.log {why}"


def test_a_folder_of_the_kernel(tmp_path: Path, refused: EntryPoint) -> None:
    line = refused("train.py", *tiny_overrides(tmp_path), "output_dir=/proc/self/fd")
    assert line == "cannot write /proc/self/fd/train.log (No such file or directory): choose another output folder"


def test_a_log_file_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "run" / "train.log")
    assert line_of("train.py", *tiny_overrides(tmp_path)) == f"{tmp_path}/run/train.log {NO_FILE}"


@pytest.mark.parametrize("name", ["train.log", "hparams.yaml", "metrics.csv", "mllog.txt"])
def test_a_link_in_the_place_of_a_run_file_is_not_followed(name: str, tmp_path: Path, refused: EntryPoint) -> None:
    kept = tmp_path / "kept"
    kept.write_text("kept\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(kept)
    line = refused("train.py", *tiny_overrides(tmp_path), "logger=csv", "callbacks=mllog")
    assert line == f"{tmp_path}/run/{name} {NO_FILE}"
    assert kept.read_text() == "kept\n"


def test_links_in_the_place_of_files_that_are_written_aside_are_replaced(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("kept\n")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    links = [tmp_path / "run" / name for name in ("result.json", "checkpoints/last.ckpt", "checkpoints/best.ckpt")]
    for link in links:
        link.symlink_to(kept)
    train(tiny_mobilenet(tmp_path))
    assert kept.read_text() == "kept\n"
    assert not any(link.is_symlink() for link in links)


def test_a_record_and_folders_that_a_report_cannot_read(tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    record = folder / "result.json"
    record.write_text("{}")
    record.chmod(0)
    advice = "give a run folder with a result.json, or a record file"
    assert line_of("report.py", str(folder)) == f"cannot read {record} (Permission denied): {advice}"
    folder.chmod(0)
    assert line_of("report.py", str(folder)) == f"{folder}: this folder cannot be read (Permission denied)"
    line = "no result.json in this folder or the folders in it: give the folder of a run"
    assert line_of("report.py", str(tmp_path)) == f"{tmp_path}: {line}"
    folder.chmod(0o755)


def test_an_earlier_record_that_cannot_be_read_hides_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    record = tmp_path / "run" / "result.json"
    record.write_text("{}")
    record.chmod(0)
    line = line_of("train.py", *tiny_overrides(tmp_path), "model.task.network.strides=[1]")
    assert "result.json" not in line
    assert record.stat().st_size == 2
