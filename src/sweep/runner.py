"""Runs jobs over the GPUs there are, several at once, each under a supervisor of its own; goes on after a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from src.cli import DEBUGGING
from src.sweep.gpus import Line, visible_gpus
from src.sweep.job import Job, alive, read_job, write_job
from src.sweep.outcome import Exit, outcome
from src.system.files import try_lock

POLL_S = 0.1
ROOT = Path(__file__).resolve().parents[2]

Changed = Callable[[Mapping[Path, Job]], None]


@dataclass
class Slots:
    """What running jobs share.

    Attributes:
        gpus: as CUDA_VISIBLE_DEVICES names them.
        parallel: jobs at once; None: as many as the GPUs carry, one on a machine without.
        alone: whether a job waits for GPUs that jobs of other sweeps have.
        line: where it waits.
    """

    gpus: Sequence[str] = field(default_factory=visible_gpus)
    parallel: int | None = None
    alone: bool = False
    line: Line = field(default_factory=Line)

    @property
    def most(self) -> int:
        return self.parallel or max(1, len(self.gpus))

    def room_for(self, job: Job, running: Sequence[Job]) -> "Place | None":
        """A place for the job; None where it has to wait. A job that wants more GPUs than there are gets them all."""
        if len(running) >= self.most:
            return None
        taken = {gpu for other in running for gpu in other.devices}
        free = [gpu for gpu in self.gpus if gpu not in taken]
        wanted = min(job.needs, len(self.gpus))
        if len(free) < wanted:
            return None
        if not self.alone:
            return Place(free[:wanted])
        held = self.line.hold(free, wanted)
        return None if held is None else Place(*held)


@dataclass(frozen=True)
class Place:
    """GPUs for a job, and the open files of the locks on them, which its processes keep."""

    gpus: Sequence[str]
    locks: Sequence[int] = ()


class Runner:
    """Brings jobs to their ends. Their folders are the only memory: what has ended is not run, what lives is joined.

    Args:
        slots: how many at once, and on which GPUs.
        changed: is told all jobs by their folders, several times a second.
    """

    def __init__(self, slots: Slots, changed: Changed = lambda jobs: None) -> None:
        self.slots, self.changed = slots, changed
        self.asked = 0  # how often this process was asked to end
        self._started: dict[Path, subprocess.Popen[bytes]] = {}
        self._commands: Mapping[Path, Sequence[str]] = {}

    def run(self, folders: Sequence[Path], commands: Mapping[Path, Sequence[str]] | None = None) -> dict[Path, Job]:
        """The jobs as they ended, by folder. Ctrl-C, SIGTERM and SIGHUP end them: `interrupted`.

        Args:
            commands: of jobs with secrets, which their folders do not hold.
        """
        self._commands = commands or {}
        jobs = {folder: settled(folder) for folder in folders}
        told = 0
        with self._listening():
            while True:
                running = [folder for folder, job in jobs.items() if job.state == "running"]
                if told < self.asked:
                    told = self.asked
                    for folder in running:
                        self._end(folder)
                waiting = [] if told else [f for f, job in jobs.items() if not job.ended and f not in self._started]
                waiting = [folder for folder in waiting if folder not in running]
                if not waiting:
                    self.slots.line.leave()
                place = self.slots.room_for(jobs[waiting[0]], [jobs[f] for f in running]) if waiting else None
                if place is not None:
                    jobs[waiting[0]] = self._start(waiting[0], jobs[waiting[0]], place)
                self.changed(jobs)
                if not running and not waiting:
                    for process in self._started.values():
                        process.wait()
                    return jobs
                if place is None:
                    time.sleep(POLL_S)
                jobs |= {folder: settled(folder) for folder in running}

    def _start(self, folder: Path, job: Job, place: Place) -> Job:
        lock = try_lock(folder / "lock")
        locks = [lock for lock in (lock, *place.locks) if lock is not None]
        try:
            if lock is None:  # of a supervisor that an earlier launcher started a moment ago
                return job.with_(state="running")
            job = job.with_(
                state="running", reason=None, devices=list(place.gpus), environment=self._environment(place.gpus),
                begun_s=time.time(), ended_s=None, supervisor=None,
            )  # fmt: skip
            write_job(folder, job)
            process = subprocess.Popen(
                [sys.executable, "-m", "src.sweep.supervise", str(folder.resolve()), *map(str, locks)],
                cwd=ROOT, env=environment(), stdin=subprocess.PIPE, start_new_session=True, pass_fds=locks,
            )  # fmt: skip
            self._started[folder] = process
            with suppress(BrokenPipeError), cast(IO[bytes], process.stdin) as pipe:  # broken where it was killed
                pipe.write(json.dumps([*self._commands.get(folder, job.command)]).encode())
        finally:
            for held in locks:
                os.close(held)  # the supervisor has them now
        return job

    def _environment(self, gpus: Sequence[str]) -> dict[str, str]:
        """The job's GPUs and, where several jobs share the machine and nobody has said so, its share of the cores."""
        mine = {}
        if self.slots.gpus:  # numbered as the driver does, which is not CUDA's own way
            mine = {"CUDA_VISIBLE_DEVICES": ",".join(gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        if self.slots.most > 1 and "OMP_NUM_THREADS" not in os.environ:
            mine["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // self.slots.most))
        return mine

    def _end(self, folder: Path) -> None:
        started = self._started.get(folder)
        supervisor = started.pid if started else read_job(folder).supervisor
        if supervisor is not None and (started or alive(folder)):
            with suppress(ProcessLookupError):
                os.kill(supervisor, signal.SIGTERM)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        def ask(*_: Any) -> None:
            self.asked += 1

        kinds = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # else it was started by nohup
            kinds.append(signal.SIGHUP)
        before = {kind: signal.signal(kind, ask) for kind in kinds}
        try:
            yield
        finally:
            for kind, handler in before.items():
                signal.signal(kind, handler)


def environment() -> dict[str, str]:
    """This process's, without what the door has set for itself."""
    return {name: value for name, value in os.environ.items() if name != "HYDRA_FULL_ERROR" or DEBUGGING}


def settled(folder: Path) -> Job:
    """The job as it stands; one that was running when all of its processes were killed gets the state that it has."""
    job = read_job(folder)
    if job.state == "running" and not alive(folder):
        job = read_job(folder)  # its end may have been written in between; nobody writes any more
        if job.state == "running":
            state, reason = outcome(folder, Exit(exit_code=None))
            job = job.with_(state=state, reason=reason, ended_s=time.time())
            write_job(folder, job)
    return job
