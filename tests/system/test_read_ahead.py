"""Data are read in a thread, files are made in the main one, and what the thread could not read is read again."""

import threading
from pathlib import Path

import pytest

from src.config.complete import complete
from src.datamodules.base import DataModule
from src.measure.clock import Clock
from src.run import build
from src.system.files import sole_maker
from src.system.read_ahead import ReadAhead
from tests.support.tiny_mobilenet import tiny_mobilenet


def test_what_a_thread_read_is_given_once() -> None:
    threads = list[threading.Thread]()
    ahead = ReadAhead(lambda: threads.append(threading.current_thread()) or 3)
    assert (ahead.value(), ahead.value()) == (3, None)
    assert threads and threads[0] is not threading.main_thread()


def test_an_error_of_the_thread_is_left_to_who_reads_again() -> None:
    assert ReadAhead(lambda: 1 // 0).value() is None


@pytest.mark.parametrize("is_made", [False, True])
def test_a_thread_makes_no_file(is_made: bool, tmp_path: Path) -> None:
    file = tmp_path / "made"
    if is_made:
        file.touch()

    def make() -> str:
        with sole_maker(file):
            file.touch()
        return "read"

    assert ReadAhead(make).value() == ("read" if is_made else None)
    assert file.exists() == is_made
    assert make() == "read" and file.exists()  # in this thread


@pytest.mark.parametrize("is_plain", [False, True])
def test_a_run_reads_ahead_while_its_network_is_made(
    is_plain: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPRISE_PLAIN_START", "1" if is_plain else "")
    begun = list[DataModule]()
    monkeypatch.setattr(DataModule, "read_ahead", lambda self: begun.append(self))
    job = build(complete(tiny_mobilenet(tmp_path)), Clock())
    assert begun == ([] if is_plain else [job.datamodule])
