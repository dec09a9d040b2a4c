"""How a rank ends that has failed: with its error told and its exit functions called, whatever would wait for ever."""

import subprocess
import sys

import pytest

from tests.support import ROOT

ENDS = """
import atexit, sys, threading
from src import cli
cli.LEAVING_S = 0.5
atexit.register(print, "exit functions are called")
for_ever = threading.Event()
{}
cli.end_now({})
"""


def ended(before: str, error: str) -> tuple[int, str, str]:
    code = ENDS.format(before, error)
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    return process.returncode, process.stdout, process.stderr


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [("ArithmeticError('broken')", 1, "ArithmeticError: broken"), ("SystemExit(2)", 2, ""), ("SystemExit()", 0, "")],
)
def test_nobody_is_waited_for(error: str, code: int, told: str) -> None:
    """A thread that never ends, which the interpreter's own end would wait for."""
    status, out, err = ended("threading.Thread(target=for_ever.wait).start()", error)
    assert (status, out, err.strip()) == (code, "exit functions are called\n", told)


def test_an_exit_function_that_hangs_is_named_and_left() -> None:
    code, _, err = ended("atexit.register(for_ever.wait)", "ArithmeticError('broken')")
    assert code == 1
    assert err.startswith("ArithmeticError: broken") and "Timeout" in err and "in wait" in err
