"""Which rank of how many this process is, and who started it."""

import os
import time
from functools import cache
from pathlib import Path

ANSWERED_FOR = "REPRISE_ANSWERED_FOR"  # set for ranks whose launcher says why they ended
_broken = False


def started_by() -> str | None:
    """`torchrun` or `slurm` where one of them started this process as a rank; None where a person started it."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return "torchrun"
    # Of this step: the shell of an interactive allocation is a step too, with the allocation's SLURM_NTASKS.
    return "slurm" if int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1 else None


@cache
def begun_s() -> float:
    """When this run began, in seconds since 1970: for the ranks of a torchrun agent, which may start in two seconds,
    when that did."""
    if started_by() == "torchrun":
        try:
            # The second field, the name, stands in brackets and may hold anything; starttime is the 22nd.
            ticks = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[19])
            booted = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
            return int(booted.split()[1]) + ticks // os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError):  # no Linux
            pass
    return time.time()


def restarts() -> int:
    """How often torchrun has started these ranks again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) if started_by() == "torchrun" else 0


def rank() -> int:
    """This process's number among all ranks; 0 where it is alone."""
    name = {"torchrun": "RANK", "slurm": "SLURM_PROCID"}.get(started_by() or "")
    return int(os.environ[name]) if name else 0


def world_size() -> int:
    """The number of ranks that were started."""
    name = {"torchrun": "WORLD_SIZE", "slurm": "SLURM_STEP_NUM_TASKS"}.get(started_by() or "")
    return int(os.environ[name]) if name else 1


def speaks() -> bool:
    """Whether this process says why a run ended: rank 0 does, unless the launcher answers for all ranks."""
    return rank() == 0 and ANSWERED_FOR not in os.environ


def give_up() -> None:
    """Says that other ranks may be gone: from now on this process must not wait for them."""
    global _broken
    _broken = True


def is_broken() -> bool:
    """Whether `give_up` was called."""
    return _broken
