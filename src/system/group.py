"""The rank of this process, the number of ranks, and the launcher."""

import os
import time
from functools import cache
from pathlib import Path

from src.system.signals import is_python

ANSWERED_FOR = "REPRISE_ANSWERED_FOR"  # process id of the launcher, set for ranks that it reports on
_broken = False


def started_by() -> str | None:
    """Returns `torchrun` or `slurm` if one of them started this process as a rank, else None."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return "torchrun"
    # Of the step, not the allocation: an interactive shell is a step too and has the allocation's SLURM_NTASKS.
    return "slurm" if int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1 else None


def agent() -> int | None:
    """Returns the process id of the torchrun that started this process as a rank; None if none did, -1 if it is gone.

    To be called early: where no one has told the id, this process's parent has it while it lives.
    """
    if started_by() != "torchrun":
        return None
    if ANSWERED_FOR in os.environ:
        return int(os.environ[ANSWERED_FOR])
    return parent if is_python(parent := os.getppid()) else -1  # the agent runs Python, and no init does


@cache
def begun_s() -> float:
    """Returns when this run began, in seconds since 1970.

    For ranks of torchrun it is their agent's start: the ranks may start in different seconds.
    """
    if started_by() == "torchrun":
        try:
            # The second field is a name in brackets and may contain anything; starttime is the 22nd.
            ticks = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[19])
            booted = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
            return int(booted.split()[1]) + ticks // os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError):  # no Linux
            pass
    return time.time()


def restarts() -> int:
    """Returns how often torchrun has restarted these ranks."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) if started_by() == "torchrun" else 0


def rank() -> int:
    """Returns the global rank of this process; 0 without a launcher."""
    name = {"torchrun": "RANK", "slurm": "SLURM_PROCID"}.get(started_by() or "")
    return int(os.environ[name]) if name else 0


def world_size() -> int:
    """Returns the number of ranks that the launcher started."""
    name = {"torchrun": "WORLD_SIZE", "slurm": "SLURM_STEP_NUM_TASKS"}.get(started_by() or "")
    return int(os.environ[name]) if name else 1


def seed_of_rank(seed: int, number: int) -> int:
    """Returns the seed of the random numbers of the rank with that number; on rank 0 it is the run's.

    Runs whose seeds are below 2**20 share none: with `seed + rank`, rank 1 would have those of the next seed's rank 0.
    """
    return (seed + (number << 20)) % 2**32


def speaks() -> bool:
    """Returns whether this process reports why a run ended: rank 0 does, unless the launcher reports for all ranks."""
    return rank() == 0 and ANSWERED_FOR not in os.environ


def give_up() -> None:
    """Records that other ranks may be gone: this process must not wait for them any more."""
    global _broken
    _broken = True


def is_broken() -> bool:
    """Returns whether `give_up` was called."""
    return _broken
