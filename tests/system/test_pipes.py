"""A command whose reader goes away, as `head` does, ends as without it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from src.report.record import read_record
from tests.support import ROOT
from tests.support.tiny_mobilenet import tiny_overrides


def unread(*words: str) -> tuple[int, str]:
    """Returns exit code and stderr of a command whose stdout has no reader from the start."""
    reading, writing = os.pipe()
    os.close(reading)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, stdout=writing, stderr=subprocess.PIPE,
                          text=True, timeout=120)  # fmt: skip
    os.close(writing)
    return done.returncode, done.stderr


@pytest.mark.parametrize("command", ["report.py published dlrm", "train.py --help", "train.py model=dlrm --cfg job"])
def test_what_only_prints_ends_quietly(command: str) -> None:
    assert unread(*command.split()) == (0, "")


def test_a_training_goes_on_to_its_record(tmp_path: Path) -> None:
    code, err = unread("train.py", *tiny_overrides(tmp_path), "logger=none")
    assert code == 0, err
    assert "BrokenPipe" not in err
    assert read_record(tmp_path / "run").status == "done"
