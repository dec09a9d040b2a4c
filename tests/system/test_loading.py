"""What a command loads, when, and when it looks for garbage."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from src.system.loading import has_other_cuda
from tests.support import ROOT

AHEAD = """
import sys
from pathlib import Path
from src.system import openmp
from src.system.loading import load_torch_ahead
openmp.install()
thread = load_torch_ahead()
if thread is not None:
    thread.join()
    print("libtorch_cpu.so" in Path("/proc/self/maps").read_text(), "torch" in sys.modules)
"""
MODULE = """
import sys
from src.system.loading import import_ahead
sys.path.insert(0, sys.argv[1])
for name in ("whole", "broken"):
    if (thread := import_ahead(name)) is not None:
        thread.join()
print("whole" in sys.modules)
try:
    import broken
except ValueError as error:
    print(error)
"""
JOB = """
import gc
from omegaconf import OmegaConf
from src.cli import run_entry_point, run_job
def job(config):
    print(gc.isenabled(), gc.get_freeze_count() > 10_000)
def main():
    print(gc.isenabled())
    run_job(job, OmegaConf.create())
run_entry_point(main)
"""


def printed(code: str, *arguments: str, **environment: str) -> str:
    """Returns what code prints in a process of its own."""
    command, changed = [sys.executable, "-c", code, *arguments], os.environ | environment
    return subprocess.run(command, cwd=ROOT, env=changed, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere torch's import loads its libraries")
@pytest.mark.parametrize(
    ("plain", "threads", "maps"), [("", "1", "True False\n"), ("1", "1", ""), ("", "2", "")]
)  # with two threads it is settled at torch's import how they wait
def test_torch_s_libraries_are_loaded_ahead_of_torch(plain: str, threads: str, maps: str) -> None:
    settings = {"REPRISE_PLAIN_START": plain, "OMP_NUM_THREADS": threads, "LD_LIBRARY_PATH": ""}
    if threads == "2" and Path("/dev/nvidiactl").exists():
        pytest.skip("beside GPUs, threads wait as they do by default")
    assert printed(AHEAD, **settings) == maps


@pytest.mark.parametrize("plain", ["", "1"])
def test_a_module_imported_ahead_keeps_its_error_for_who_needs_it(plain: str, tmp_path: Path) -> None:
    (tmp_path / "whole.py").touch()
    (tmp_path / "broken.py").write_text("raise ValueError('of the module')")
    assert printed(MODULE, str(tmp_path), REPRISE_PLAIN_START=plain) == f"{not plain}\nof the module\n"


def test_another_cuda_in_the_library_path_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", f":{tmp_path / 'none'}:{tmp_path}")
    assert not has_other_cuda()
    (tmp_path / "libnvJitLink.so.13").touch()
    assert has_other_cuda()


def test_a_command_looks_for_garbage_once_its_job_begins() -> None:
    assert printed(JOB).splitlines()[-2:] == ["False", "True True"]
