"""A command whose output nobody reads, as with `head`, or cannot be written, ends as without it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from src.report.record import read_record
from tests.support import ROOT
from tests.support.started import LIMIT_S
from tests.support.tiny_mobilenet import tiny_overrides, tiny_prediction
from tests.support.tiny_run import tiny_overrides as tiny_molecules


def started(*words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command of a shell, in which `python` is this one."""
    names = {"PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment = os.environ | names | (environment or {})
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, timeout=LIMIT_S, text=True)


def unread(*words: str, terminal: bool = False) -> tuple[int, str]:
    """Returns exit code and stderr of a Python command whose stdout, a pipe or a terminal, has no reader."""
    reading, writing = os.openpty() if terminal else os.pipe()
    os.close(reading)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, stdout=writing, stderr=subprocess.PIPE,
                          text=True, timeout=LIMIT_S)  # fmt: skip
    os.close(writing)
    return done.returncode, done.stderr


@pytest.mark.parametrize("terminal", [False, True])
def test_a_report_that_nobody_reads_ends_quietly(terminal: bool) -> None:
    assert unread("report.py", "published", "dlrm", terminal=terminal) == (0, "")


def test_a_report_that_a_full_disk_has_no_room_for_says_so() -> None:
    done = started("sh", "-c", "exec python report.py published dlrm >/dev/full")
    expected = "error: standard output cannot be written (No space left on device): lines of it are lost\n"
    assert (done.returncode, done.stderr) == (2, expected)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_each_line_is_out_at_once_where_nothing_is_buffered(unbuffered: str) -> None:
    code = "import os; from src.system.pipes import outlive_readers; outlive_readers(); print('x'); os._exit(0)"
    done = started("python", "-c", code, environment={"PYTHONUNBUFFERED": unbuffered})
    assert done.stdout == ("x\n" if unbuffered else ""), done.stderr


FULL = ">/dev/full 2>/dev/full"
WRITES = """
import os, sys
from src.system.pipes import outlive_readers
outlive_readers()
file = open(sys.argv[1], "w")
print("printed", file=sys.stderr)
print("printed", flush=True)
file.write("mine")
"""


@pytest.mark.parametrize("streams", [">&- 2>&-", "2>&-", "<&- >&- 2>&-", FULL])
def test_the_first_file_is_no_stream(streams: str, tmp_path: Path) -> None:
    done = started("sh", "-c", f'exec python -c "$@" {streams}', "sh", WRITES, str(tmp_path / "file"))
    assert (done.returncode, (tmp_path / "file").read_text()) == (0, "mine")


def test_signs_that_the_output_cannot_hold_are_written_out() -> None:
    code = "from src.system.pipes import outlive_readers; outlive_readers(); print('\\xdcbung')"
    assert started("python", "-c", code, environment={"PYTHONIOENCODING": "ascii"}).stdout == "\\xdcbung\n"


@pytest.mark.slow
def test_commands_that_nobody_reads_end_well(tmp_path: Path) -> None:
    mine = [text for text in tiny_molecules(tmp_path) if text.startswith(("datamodule", "+datamodule", "data_root"))]
    assert unread("prepare.py", *mine, f"output_root={tmp_path}", "hydra/job_logging=none")[0] == 0
    plain = "+callbacks.lines={_target_:src.callbacks.progress.Progress,every_s:0}"
    assert unread("train.py", *tiny_overrides(tmp_path), plain, "trainer=1x2") == (0, "")
    record = read_record(tmp_path / "run")
    assert (record.status, record.samples) == ("done", 8 * 8 * 2)
    checkpoint = f"ckpt_path={tmp_path}/run/checkpoints/last.ckpt"
    assert unread("predict.py", *tiny_prediction(tmp_path, checkpoint, "num_samples=8")) == (0, "")


@pytest.mark.slow
def test_a_training_that_a_full_disk_has_no_room_for_ends_with_its_record(tmp_path: Path) -> None:
    done = started("sh", "-c", f'exec python train.py "$@" {FULL}', "sh", *tiny_overrides(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert read_record(tmp_path / "run").status == "done"
