"""Runs one job to its end and writes its state: `python -m src.sweep.supervise FOLDER LOCK... < COMMAND`.

The command is a JSON list on stdin, because it may contain secrets, which are not written to files.

Each job has one supervisor in a session of its own. It outlives the launcher, so that the job's end is always
recorded, and it leaves no process of the job behind.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from src.report.job import quote_path, read_job, write_job
from src.sweep.outcome import Exit, outcome
from src.system.files import open_to_append
from src.system.signals import ending_signals

POLL_S = 0.05
GRACE_S = 300.0  # between SIGTERM and SIGKILL, for a checkpoint
PR_SET_CHILD_SUBREAPER = 36


@dataclass
class Requests:
    """Counts the signals that ask this process to end its job."""

    number: int = 0
    signals: list[signal.Signals] = field(default_factory=ending_signals)

    def listen(self) -> None:
        for signum in self.signals:
            signal.signal(signum, self)

    def __call__(self, *_: Any) -> None:
        self.number += 1


def supervise(folder: Path, locks: Sequence[int], job_command: Sequence[str]) -> None:
    """Starts the job's command, waits for its end or its time limit, and writes the state.

    Args:
        locks: file descriptors of the locks on its folder and its GPUs, which the job's processes inherit.
        job_command: the command without `hydra.run.dir` and `ckpt_path`.
    """
    requests = Requests()
    requests.listen()
    adopt_orphans()
    job = read_job(folder).with_(supervisor=os.getpid())
    write_job(folder, job)
    command, kills = [*job_command, f"hydra.run.dir={quote_path(folder)}"], oom_kills()
    (folder / "result.json").unlink(missing_ok=True)
    if (checkpoint := folder / "checkpoints" / "last.ckpt").exists():  # it was interrupted before
        command.append(f"ckpt_path={quote_path(checkpoint)}")
    with open(open_to_append(folder / "log.txt"), "ab") as log:
        try:
            child = subprocess.Popen(
                command, cwd=job.cwd, env=os.environ | job.environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True, pass_fds=locks,
            )  # fmt: skip
        except OSError as error:
            log.write(f"cannot start {command[0]} in {job.cwd}: {error}\n".encode())
            exit_code, cause = 127, None
        else:
            exit_code, cause = wait(child, requests, job.timeout_s)
    end_descendants()
    state, reason = outcome(folder, Exit(exit_code, cause, oom_kills() - kills))
    if state == "timeout":
        reason = f"longer than sweep.timeout_s={job.timeout_s:g}"
    write_job(folder, job.with_(state=state, reason=reason, ended_s=time.time()))


def wait(child: subprocess.Popen[bytes], requests: Requests, timeout_s: float | None) -> tuple[int, str | None]:
    """Returns the exit code, and why the process was ended: 'timeout', 'interrupted' or None (it ended by itself).

    A second request kills it.
    """
    begun, cause, terminated_at = time.monotonic(), None, 0.0
    while child.poll() is None:
        now = time.monotonic()
        if cause is None and (requests.number or (timeout_s is not None and now - begun > timeout_s)):
            cause, terminated_at = ("interrupted" if requests.number else "timeout"), now
            child.terminate()
        elif cause is not None and (now - terminated_at > GRACE_S or requests.number > 1):
            child.kill()
        time.sleep(POLL_S)
    return child.returncode, cause


def adopt_orphans() -> None:
    """Makes this process the new parent of orphaned descendants, so that it finds them (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants() -> None:
    """Kills the processes that the job left running, such as ranks and loader workers."""
    while left := psutil.Process().children(recursive=True):
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=POLL_S)  # reaps those that this process has adopted


def oom_kills() -> int:
    """Returns the number of processes that the kernel has killed for lack of memory since the machine started."""
    try:
        counters = Path("/proc/vmstat").read_text().split()
        return int(counters[counters.index("oom_kill") + 1])
    except (OSError, ValueError):
        return 0


if __name__ == "__main__":
    supervise(Path(sys.argv[1]), [*map(int, sys.argv[2:])], json.load(sys.stdin))
