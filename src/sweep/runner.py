"""Runs jobs on the visible GPUs, several at once, each under its own supervisor; resumes after a kill."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from src.cli import DEBUGGING
from src.report.job import SweepJob, alive, read_job, write_job
from src.sweep.gpus import GpuQueue, visible_gpus
from src.sweep.outcome import Exit, outcome
from src.system.files import try_lock
from src.system.home import ROOT
from src.system.interpreter import python, safe_path
from src.system.signals import ending_signals

POLL_S = 0.1

OnChange = Callable[[Mapping[Path, SweepJob]], None]


@dataclass
class Slots:
    """The GPUs that running jobs share, and the limit on their number.

    Attributes:
        gpus: names as in CUDA_VISIBLE_DEVICES.
        parallel: jobs at once; None: one per GPU, or one on a machine without GPUs.
        lock_gpus: whether a job waits for GPUs that jobs of other sweeps have.
        queue: requests for those GPUs.
    """

    gpus: Sequence[str] = field(default_factory=visible_gpus)
    parallel: int | None = None
    lock_gpus: bool = False
    queue: GpuQueue = field(default_factory=GpuQueue)

    @property
    def max_jobs(self) -> int:
        return self.parallel or max(1, len(self.gpus))

    def allocate(self, job: SweepJob, running: Sequence[SweepJob]) -> "Allocation | None":
        """Returns GPUs for the job; None if it has to wait. A job that needs more GPUs than there are gets all."""
        if len(running) >= self.max_jobs:
            return None
        taken = {gpu for other in running for gpu in other.devices}
        free = [gpu for gpu in self.gpus if gpu not in taken]
        wanted = min(job.needs, len(self.gpus))
        if len(free) < wanted:
            return None
        if not self.lock_gpus:
            return Allocation(free[:wanted])
        held = self.queue.acquire(free, wanted)
        return None if held is None else Allocation(*held)


@dataclass(frozen=True)
class Allocation:
    """GPUs for a job, and the file descriptors of their locks, which its processes inherit."""

    gpus: Sequence[str]
    locks: Sequence[int] = ()


class Runner:
    """Runs jobs to their ends. All state is in their folders: ended jobs are skipped, running ones are waited for.

    Args:
        slots: how many at once, and on which GPUs.
        on_change: called with all jobs by their folders, several times a second.
    """

    def __init__(self, slots: Slots, on_change: OnChange = lambda jobs: None) -> None:
        self.slots, self.on_change = slots, on_change
        self.interrupts = 0  # signals received that ask this process to end
        self._started: dict[Path, subprocess.Popen[bytes]] = {}
        self._commands: Mapping[Path, Sequence[str]] = {}

    def run(
        self, folders: Sequence[Path], commands: Mapping[Path, Sequence[str]] | None = None
    ) -> dict[Path, SweepJob]:
        """Returns the ended jobs by folder. After Ctrl-C, SIGTERM or SIGHUP their state is `interrupted`.

        Args:
            commands: commands with secrets, by folder; `job.json` has them without.
        """
        self._commands = commands or {}
        jobs = {folder: current_job(folder) for folder in folders}
        handled = 0
        with self._listening():
            while True:
                running = [folder for folder, job in jobs.items() if job.state == "running"]
                if handled < self.interrupts:
                    handled = self.interrupts
                    for folder in running:
                        self._end(folder)
                waiting = [] if handled else [f for f, job in jobs.items() if not job.ended and f not in self._started]
                waiting = [folder for folder in waiting if folder not in running]
                if not waiting:
                    self.slots.queue.cancel()
                allocation = self.slots.allocate(jobs[waiting[0]], [jobs[f] for f in running]) if waiting else None
                if allocation is not None:
                    jobs[waiting[0]] = self._start(waiting[0], jobs[waiting[0]], allocation)
                self.on_change(jobs)
                if not running and not waiting:
                    for process in self._started.values():
                        process.wait()
                    return jobs
                if allocation is None:
                    time.sleep(POLL_S)
                jobs |= {folder: current_job(folder) for folder in running}

    def _start(self, folder: Path, job: SweepJob, allocation: Allocation) -> SweepJob:
        lock = try_lock(folder / "lock")
        locks = [lock for lock in (lock, *allocation.locks) if lock is not None]
        try:
            if lock is None:  # a supervisor has it that an earlier launcher has just started
                return job.with_(state="running")
            job = job.with_(
                state="running", reason=None, devices=list(allocation.gpus),
                environment=self._environment(allocation.gpus), begun_s=time.time(), ended_s=None, supervisor=None,
            )  # fmt: skip
            write_job(folder, job)
            process = subprocess.Popen(
                python("-m", "src.sweep.supervise", str(folder.resolve()), *map(str, locks)),
                cwd=ROOT, env=inherited_environment() | safe_path(), stdin=subprocess.PIPE, start_new_session=True,
                pass_fds=locks,
            )  # fmt: skip
            self._started[folder] = process
            with suppress(BrokenPipeError), cast(IO[bytes], process.stdin) as pipe:  # broken if it was killed
                pipe.write(json.dumps([*self._commands.get(folder, job.command)]).encode())
        finally:
            for held in locks:
                os.close(held)  # the supervisor has inherited them
        return job

    def _environment(self, gpus: Sequence[str]) -> dict[str, str]:
        """Returns variables for a job: its GPUs, and its share of the cores unless OMP_NUM_THREADS is set."""
        variables = {}
        if self.slots.gpus:  # in the driver's order, which is not CUDA's default
            variables = {"CUDA_VISIBLE_DEVICES": ",".join(gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        if self.slots.max_jobs > 1 and "OMP_NUM_THREADS" not in os.environ:
            variables["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // self.slots.max_jobs))
        return variables

    def _end(self, folder: Path) -> None:
        started = self._started.get(folder)
        supervisor = started.pid if started else read_job(folder).supervisor
        if supervisor is not None and (started or alive(folder)):
            with suppress(ProcessLookupError):
                os.kill(supervisor, signal.SIGTERM)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        def count(*_: Any) -> None:
            self.interrupts += 1

        before = {kind: signal.signal(kind, count) for kind in ending_signals()}
        try:
            yield
        finally:
            for kind, handler in before.items():
                signal.signal(kind, handler)


def inherited_environment() -> dict[str, str]:
    """Returns this process's environment, without HYDRA_FULL_ERROR if the entry point has set it itself."""
    return {name: value for name, value in os.environ.items() if name != "HYDRA_FULL_ERROR" or DEBUGGING}


def current_job(folder: Path) -> SweepJob:
    """Returns the job with its current state, which is written for a job whose processes were all killed."""
    job = read_job(folder)
    if job.state == "running" and not alive(folder):
        job = read_job(folder)  # its supervisor may have written the state in between
        if job.state == "running":
            state, reason = outcome(folder, Exit(exit_code=None))
            job = job.with_(state=state, reason=reason, ended_s=time.time())
            write_job(folder, job)
    return job
