"""Signals that ask a process to end, and the end of a process with its parent."""

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

ALWAYS = (signal.SIGINT, signal.SIGTERM)
# A terminal that closes, Ctrl-\, and what SLURM's --signal, a preemption and submitit send before a time limit.
UNLESS_IGNORED = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
ENDING = (*ALWAYS, *UNLESS_IGNORED)
PR_SET_PDEATHSIG = 1


def ending_signals() -> list[signal.Signals]:
    """Returns the signals that ask this process to end.

    Those of UNLESS_IGNORED are left out where they are ignored, as SIGHUP is under nohup, or where C code handles them.
    """
    left_alone = signal.SIG_IGN, None
    return [*ALWAYS, *(number for number in UNLESS_IGNORED if signal.getsignal(number) not in left_alone)]


def end_with_parent(parent: int, signum: signal.Signals) -> None:
    """Lets Linux send this process a signal when its parent dies, however it does and whatever this one is doing.

    Args:
        parent: process id that the parent must have; where it has died already, the signal comes at once.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signum)
        if os.getppid() != parent:
            os.kill(os.getpid(), signum)


def is_init(process: int) -> bool:
    """Returns whether Linux gives orphans to this process: a user's systemd, or process 1.

    Where process 1 runs Python, as torchrun does in a container of its own, its children are no orphans: False.
    """
    if process != 1:
        with suppress(OSError):
            return Path(f"/proc/{process}/comm").read_text().strip() == "systemd"
        return False
    with suppress(OSError):  # of another user
        return not Path("/proc/1/exe").readlink().name.startswith("python")
    return True
