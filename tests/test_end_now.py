"""How a process ends: a rank that has failed, whatever would wait for ever; a command that has succeeded."""

import os
import subprocess
import sys
from pathlib import Path

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


LEAVES = """
import atexit, sys, threading
from src import cli
class Kept:
    def __del__(self):
        print("finalised")
sys.modules["torch"], kept = sys, Kept()
text, binary = open(sys.argv[1], "w"), open(sys.argv[2], "wb")
def write():
    print("threads are waited for")
    text.write("text ")
    binary.write(b"bytes")
atexit.register(print, "exit functions are called")
threading.Timer(0.05, write).start()
{}
def run_entry_point():
    cli.leave()
run_entry_point()
print("left to the interpreter")
"""
RUNPY = """
import runpy, sys
sys.argv.pop(0)
left = runpy.run_path(sys.argv[0], run_name="__main__")
print("goes on")
"""
DONE = "threads are waited for\nexit functions are called\n"


@pytest.mark.parametrize(
    ("before", "variable", "printed", "begun"),
    [
        ("", "", DONE, "python"),
        ("", "", f"left to the interpreter\ngoes on\n{DONE}finalised\n", "runpy"),
        ("", "REPRISE_PLAIN_START", f"left to the interpreter\n{DONE}finalised\n", "python"),
        ("", "CUDA_INJECTION64_PATH", f"left to the interpreter\n{DONE}finalised\n", "python"),  # of NVIDIA's profilers
        ("sys.setprofile(slice)", "", f"left to the interpreter\n{DONE}finalised\n", "python"),
        ("full = open('/dev/full', 'w'); full.write('a')", "", f"{DONE}left to the interpreter\nfinalised\n", "python"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full")
def test_a_command_that_succeeded_leaves_without_finalising_objects(
    before: str, variable: str, printed: str, begun: str, tmp_path: Path
) -> None:
    files = tmp_path / "text", tmp_path / "binary"
    environment = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", variable)}
    environment |= {"PYTHONPATH": str(ROOT), "REPRISE_PLAIN_START": ""} | ({variable: "1"} if variable else {})
    (tmp_path / "train.py").write_text(LEAVES.format(before))
    command = [tmp_path / "train.py"] if begun == "python" else ["-c", RUNPY, tmp_path / "train.py"]
    process = subprocess.run(
        [sys.executable, *command, *files],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert process.stdout == printed
    assert [file.read_text() for file in files] == ["text ", "bytes"]
