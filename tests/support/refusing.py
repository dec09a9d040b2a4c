"""Runs a command that must be refused: one line on stderr, exit code 2."""

import os
import runpy
import sys
from collections.abc import Callable

import pytest
from hydra.core.global_hydra import GlobalHydra

from src import cli
from tests.support import ROOT

EntryPoint = Callable[..., str]


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> EntryPoint:
    """Runs an entry point in this process, checks how it ends, and returns its line without `error: `."""

    def run(script: str, *arguments: str) -> str:
        for name in ("PYTHONSAFEPATH", "PYTHONPATH"):
            monkeypatch.setenv(name, os.environ.get(name, ""))  # entry points set these: undone after the test
        monkeypatch.setenv("HYDRA_FULL_ERROR", "")  # this too
        monkeypatch.setattr(cli, "_failures", [])
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        monkeypatch.chdir(ROOT)
        capfd.readouterr()
        try:
            with pytest.raises(SystemExit) as ended:
                runpy.run_path(str(ROOT / script), run_name="__main__")
        finally:
            GlobalHydra.instance().clear()
        printed = capfd.readouterr()
        assert ended.value.code == 2, printed.err
        return the_error_line(printed.err)

    return run


def the_error_line(stderr: str) -> str:
    """Returns what follows `error: ` in the last line of stderr; other lines may be of progress bars only."""
    *before, last = [line for line in stderr.splitlines() if line.strip()]
    assert last.startswith("error: "), stderr
    assert all(line.startswith("encoding") for line in before), stderr
    return last.removeprefix("error: ")
