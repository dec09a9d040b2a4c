"""A rank that somebody has stopped is killed after the patience; one that was stopped for less is left alone."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess

import pytest

from src.launch import ranks
from src.launch.ranks import StoppedRanks


def until(is_so: Callable[[], bool], look: Callable[[], None] = lambda: None) -> None:
    end_s = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < end_s
        look()
        time.sleep(0.01)


def test_a_rank_is_killed_once_it_was_stopped_for_the_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "STOPPED_EVERY_S", 0.05)
    fork = multiprocessing.get_context("fork")
    processes: dict[int, BaseProcess] = {rank: fork.Process(target=time.sleep, args=(60,)) for rank in (0, 3)}
    for process in processes.values():
        process.start()
    paused, rank = processes.values()
    assert paused.pid and rank.pid
    watch = StoppedRanks(patience_s=0.2)
    try:
        os.kill(paused.pid, signal.SIGSTOP)
        until(lambda: watch._looks.get(0) == 1, lambda: watch.look(processes))
        os.kill(paused.pid, signal.SIGCONT)
        os.kill(rank.pid, signal.SIGSTOP)
        until(lambda: rank.exitcode is not None, lambda: watch.look(processes))
        assert rank.exitcode == -signal.SIGKILL
        assert watch.killed == {3: 0.2} and paused.exitcode is None
    finally:
        for process in processes.values():
            process.kill()
            process.join()
