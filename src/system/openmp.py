"""Lets OpenMP's threads sleep while they wait for each other where other processes use the same cores.

By default libgomp's threads, which torch brings, wait for some milliseconds in a loop. That is fastest on idle cores.
Beside other work a waiting thread takes the core from the one that it waits for: docs/guides/launch.md has the figures.
"""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from src.system.group import started_by

CHOSEN = "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"  # the user's own choice
BUSY = 0.25  # cores that others use, above which it pays
WINDOW_S = 0.2  # least time to watch them


class Sample(NamedTuple):
    """Seconds since some moment: of the clock, of all processes on the cores of this one, and of this process."""

    wall_s: float
    all_s: float
    own_s: float


class BeforeTorch(MetaPathFinder):
    """Settles how threads wait when torch is about to be imported, which loads OpenMP; finds no module."""

    def __init__(self) -> None:
        self.begin = sample()

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname == "torch":
            sys.meta_path.remove(self)
            settle(self.begin)


def install() -> None:
    """Settles how threads wait before torch is imported, unless something else decides it.

    That is the user, or the launcher of this rank, whose ranks are no other work; on a machine with NVIDIA GPUs, the
    default, as nothing was measured there.
    """
    if may_settle(os.environ) and not Path("/dev/nvidiactl").exists() and "torch" not in sys.modules:
        sys.meta_path.insert(0, BeforeTorch())


def may_settle(environment: Mapping[str, str]) -> bool:
    is_chosen = any(name in environment for name in CHOSEN)
    return not is_chosen and environment.get("OMP_NUM_THREADS") != "1" and started_by() is None


def settle(begin: Sample | None) -> None:
    """Sets OMP_WAIT_POLICY=PASSIVE, and says so, where others have used the cores since `begin`."""
    if begin is None:
        return
    time.sleep(max(0.0, WINDOW_S - (time.perf_counter() - begin.wall_s)))
    end = sample()
    if end is not None and (others := used_by_others(begin, end)) > BUSY:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        print(f"note: other processes use {others:.1f} cores of this machine; threads sleep while they wait "
              "(OMP_WAIT_POLICY=PASSIVE)", flush=True)  # fmt: skip


def used_by_others(begin: Sample, end: Sample) -> float:
    """Returns how many of this process's cores other processes used, on average between two samples."""
    return ((end.all_s - begin.all_s) - (end.own_s - begin.own_s)) / (end.wall_s - begin.wall_s)


def sample() -> Sample | None:
    """Returns a sample of Linux's counters; None elsewhere."""
    try:
        cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines() if line.startswith("cpu")]
        busy = sum(int(ticks) for name, *times in lines if name in cores for ticks in (*times[:3], *times[5:7]))
        return Sample(time.perf_counter(), busy / os.sysconf("SC_CLK_TCK"), sum(os.times()[:4]))
    except (OSError, AttributeError, ValueError):
        return None
