"""The rank of this process, the number of ranks, and the launcher."""

import os
import socket
import time
from functools import cache
from pathlib import Path

from src.errors import UserError
from src.system.signals import is_init

ANSWERED_FOR = "REPRISE_ANSWERED_FOR"  # process id of the launcher, set for ranks that it reports on
# That Lightning, torch and this project read as numbers.
OF_TORCHRUN = ("RANK", "WORLD_SIZE")
OF_SLURM = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS")
OTHER_NUMBERS = (
    "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", ANSWERED_FOR, "SLURM_STEP_NUM_TASKS",
    "SLURM_JOB_ID", "SLURM_NNODES", "SLURM_NTASKS_PER_NODE",
)  # fmt: skip
RETRY_S = 1.0
CONNECTING_S = 10.0  # to a host whose packets may be lost
_broken = False


class Unmet(UserError):
    """Rank 0 was not found, which it cannot know itself."""


def check_variables() -> None:
    """Raises UserError where a variable that a launcher sets for its ranks is no whole number, or is missing."""
    for name in (*OF_TORCHRUN, *OF_SLURM, *OTHER_NUMBERS):
        if not (value := os.environ.get(name, "0")).isdecimal():
            raise UserError(f"{name}={value} is set in the environment, where a whole number is expected; unset it")
    needed = {"torchrun": OF_TORCHRUN, "slurm": OF_SLURM}.get(started_by() or "", ())
    if missing := [name for name in needed if name not in os.environ]:
        raise UserError(
            f"{started_by()} started this process, by its other variables, but {missing[0]} is not set; start the "
            "command anew by torchrun, by srun or alone, and leave these variables as they are"
        )


def check_rendezvous(host: str, port: int, patience_s: float, is_host: bool) -> None:
    """Waits until the name of rank 0's host resolves and, elsewhere, until somebody answers at its port.

    Raises UserError with the reason, Unmet elsewhere, after `patience_s`: torch would try for half an hour.
    """
    end_s = time.monotonic() + patience_s
    while True:
        try:
            socket.getaddrinfo(host, port)
            if not is_host:
                socket.create_connection((host, port), timeout=min(CONNECTING_S, RETRY_S + patience_s)).close()
            return
        except (OSError, UnicodeError) as error:
            if time.monotonic() + RETRY_S > end_s:
                is_known = not isinstance(error, socket.gaierror | UnicodeError)
                what = (
                    f"rank 0 does not answer at {host}, port {port}"
                    if is_known
                    else f"the name of rank 0's host, {host}, does not resolve here"
                )
                why = getattr(error, "strerror", None) or error
                raise (Unmet if is_known else UserError)(
                    f"the ranks cannot meet: {what} ({why}), for {patience_s:g} s (trainer.patience_s); set "
                    "MASTER_ADDR on all nodes to an address of that host that they reach, or give torchrun "
                    "--local-addr=ADDRESS"
                ) from None
        time.sleep(RETRY_S)


def check_loopback() -> None:
    """Raises UserError where processes of this machine cannot reach each other by the loopback interface."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=RETRY_S).close()
    except OSError as error:
        raise UserError(
            "the ranks cannot meet: this machine's loopback interface does not work "
            f"({error.strerror or error}); switch it on (ip link set lo up), or choose trainer=1x1"
        ) from error


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
    return -1 if is_init(parent := os.getppid()) else parent


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


def speaks(is_unmet: bool = False, has_met: bool = False) -> bool:
    """Returns whether this process reports why a run ended: rank 0 does, unless the launcher reports for all ranks.

    Where rank 0 was not found (`is_unmet`), rank 1 and the first rank of each node do. Once the ranks have met
    (`has_met`) each does: what one finds then, rank 0 may not.
    """
    first = rank() == 1 or os.environ.get("SLURM_LOCALID") == "0" if is_unmet else has_met or rank() == 0
    return first and ANSWERED_FOR not in os.environ


def give_up() -> None:
    """Records that other ranks may be gone: this process must not wait for them any more."""
    global _broken
    _broken = True


def is_broken() -> bool:
    """Returns whether `give_up` was called."""
    return _broken
