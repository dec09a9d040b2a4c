"""A rank that somebody has stopped is killed after the patience; one that was stopped for less is left alone."""

import os
import signal
import subprocess

import psutil
import pytest

from src.launch import stopped
from src.launch.stopped import stopped_ranks_ended


def test_a_rank_is_killed_once_it_was_stopped_for_the_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopped, "LOOKS_EVERY_S", 0.05)
    with (
        subprocess.Popen(["sleep", "60"], env=os.environ | {"RANK": "0"}) as paused,
        subprocess.Popen(["sleep", "60"], env=os.environ | {"RANK": "3"}) as rank,
        stopped_ranks_ended(patience_s=0.2) as ended,
    ):
        try:
            paused.send_signal(signal.SIGSTOP)
            psutil.wait_procs([psutil.Process(paused.pid)], timeout=0.1)  # as on a machine that does something else
            paused.send_signal(signal.SIGCONT)
            rank.send_signal(signal.SIGSTOP)
            assert rank.wait(timeout=10) == -signal.SIGKILL
            assert ended == {3: 0.2} and paused.poll() is None
        finally:  # leaving the block waits for them
            rank.kill()
            paused.kill()
