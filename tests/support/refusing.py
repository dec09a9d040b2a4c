"""Runs commands in this process, which saves the two seconds in which another one imports torch."""

import os
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from hydra.core.global_hydra import GlobalHydra

from src import cli
from tests.support import ROOT

EntryPoint = Callable[..., str]


class Ended(NamedTuple):
    """How a command ended: its exit code and what it printed."""

    code: int
    out: str
    err: str


Command = Callable[..., Ended]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs an entry point in this process, in `cwd`."""

    def run(script: str, *arguments: str, cwd: Path = ROOT) -> Ended:
        for name in ("PYTHONSAFEPATH", "PYTHONPATH"):
            monkeypatch.setenv(name, os.environ.get(name, ""))  # entry points set these: undone after the test
        monkeypatch.setenv("HYDRA_FULL_ERROR", "")  # this too
        monkeypatch.setattr(cli, "_failures", [])
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        monkeypatch.chdir(cwd)
        capfd.readouterr()
        code: object = 0
        interrupt = signal.getsignal(signal.SIGINT)
        try:
            runpy.run_path(str(ROOT / script), run_name="__main__")
        except SystemExit as ended:
            code = ended.code or 0
        finally:
            GlobalHydra.instance().clear()
            signal.signal(signal.SIGINT, interrupt)
        assert isinstance(code, int)
        printed = capfd.readouterr()
        return Ended(code, printed.out, printed.err)

    return run


@pytest.fixture
def refused(command: Command) -> EntryPoint:
    """Runs a command, checks that it is refused, and returns its line without `error: `."""

    def run(script: str, *arguments: str) -> str:
        ended = command(script, *arguments)
        assert ended.code == 2, ended.err
        return the_error_line(ended.err)

    return run


def the_error_line(stderr: str) -> str:
    """Returns what follows `error: ` in the last line of stderr; other lines may be of progress bars only."""
    *before, last = [line for line in stderr.splitlines() if line.strip()]
    assert last.startswith("error: "), stderr
    assert all(line.startswith("encoding") for line in before), stderr
    return last.removeprefix("error: ")
