"""Runs one job to its end and writes down how it ended: `python -m src.sweep.supervise FOLDER LOCK... < COMMAND`.

The command comes as a JSON list, because it may hold secrets that no file is to hold.

One small process a job, in a session of its own: it outlives the launcher, so that a job's end is known whatever
happens to the launcher, and it leaves no process of the job behind.
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

from src.sweep.job import as_value, read_job, write_job
from src.sweep.outcome import Exit, outcome

POLL_S = 0.05
GRACE_S = 300.0  # for a checkpoint, after SIGTERM
PR_SET_CHILD_SUBREAPER = 36


@dataclass
class Requests:
    """The signals that asked this process to end its job."""

    number: int = 0
    taken: list[int] = field(default_factory=lambda: [signal.SIGTERM, signal.SIGINT])

    def listen(self) -> None:
        for which in self.taken:
            signal.signal(which, self)

    def __call__(self, *_: Any) -> None:
        self.number += 1


def supervise(folder: Path, locks: Sequence[int], given: Sequence[str]) -> None:
    """Starts the job's command, waits for its end or its time limit, and writes the state.

    Args:
        locks: open files of the locks that live as long as the job: its folder's and those of its GPUs.
        given: the command.
    """
    requests = Requests()
    requests.listen()
    adopt_orphans()
    job = read_job(folder).with_(supervisor=os.getpid())
    write_job(folder, job)
    command, kills = [*given, f"hydra.run.dir={as_value(folder)}"], oom_kills()
    (folder / "result.json").unlink(missing_ok=True)
    if (checkpoint := folder / "checkpoints" / "last.ckpt").exists():  # it was interrupted before
        command.append(f"ckpt_path={as_value(checkpoint)}")
    with (folder / "log.txt").open("ab") as log:
        try:
            child = subprocess.Popen(
                command, cwd=job.cwd, env=os.environ | job.environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True, pass_fds=locks,
            )  # fmt: skip
        except OSError as error:
            log.write(f"cannot start {command[0]} in {job.cwd}: {error}\n".encode())
            exit_code, asked = 127, None
        else:
            exit_code, asked = wait(child, requests, job.timeout_s)
    end_descendants()
    state, reason = outcome(folder, Exit(exit_code, asked, oom_kills() - kills))
    if state == "timeout":
        reason = f"longer than sweep.timeout_s={job.timeout_s:g}"
    write_job(folder, job.with_(state=state, reason=reason, ended_s=time.time()))


def wait(child: subprocess.Popen[bytes], requests: Requests, timeout_s: float | None) -> tuple[int, str | None]:
    """The exit code, and for what the process was ended: 'timeout', 'interrupted' (a second request kills), None."""
    begun, asked, asked_at = time.monotonic(), None, 0.0
    while child.poll() is None:
        now = time.monotonic()
        if asked is None and (requests.number or (timeout_s is not None and now - begun > timeout_s)):
            asked, asked_at = ("interrupted" if requests.number else "timeout"), now
            child.terminate()
        elif asked is not None and (now - asked_at > GRACE_S or requests.number > 1):
            child.kill()
        time.sleep(POLL_S)
    return child.returncode, asked


def adopt_orphans() -> None:
    """Makes this process the parent of its descendants whose own parents end, so that it finds them (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants() -> None:
    """Kills what the job left running: ranks, loaders' workers."""
    while left := psutil.Process().children(recursive=True):
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=POLL_S)  # collects those that are this process's own by now


def oom_kills() -> int:
    """How many processes the kernel has killed since the start of the machine because memory ran out."""
    try:
        counters = Path("/proc/vmstat").read_text().split()
        return int(counters[counters.index("oom_kill") + 1])
    except (OSError, ValueError):
        return 0


if __name__ == "__main__":
    supervise(Path(sys.argv[1]), [*map(int, sys.argv[2:])], json.load(sys.stdin))
