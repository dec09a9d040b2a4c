"""A clock that divides the wall time into phases without a gap.

Each mark assigns the time since the previous mark to a phase, so the phases add up to the wall time by construction.
While training runs on a GPU the marks are CUDA events on the compute stream: the time between two of them is what the
*stream* spent there. Loading while the GPU is busy costs nothing on that time line; `fetch` is the waiting that compute
did not hide. Events are read once per log window, without synchronisation.

An event costs the host some microseconds. So what only the host does between two events (`note`) is timed by the host,
and the stream's time between the events is divided in proportion.
"""

import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

import torch

from src.measure.phases import PHASES
from src.measure.starting import process_creation_s

STARTING = 1000  # steps of which it is known when they ended; more are never left out of steady rates
# The phases of an iteration.
IN_STEP = frozenset({"fetch", "decode", "transfer", "compute", "communication", "other"})


_runs = count()


def run_begin_s() -> float:
    """Returns when a run began: at the process's creation for its first run, now for later runs of a sweep in it."""
    return process_creation_s() if next(_runs) == 0 else time.perf_counter()


@dataclass
class StepTimes:
    """One entry per finished optimiser step of this rank, 24 bytes: a run may have many millions."""

    iteration_s: array = field(default_factory=lambda: array("d"))  # fetch, transfer, compute, communication, other
    compute_s: array = field(default_factory=lambda: array("d"))  # compute with the communication it did not hide
    samples: array = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.samples)


@dataclass(frozen=True)
class Spent:
    """Seconds until a mark: of training, of each phase, and of each phase in training."""

    training_s: float
    totals_s: dict[str, float]
    training_phases_s: dict[str, float]


class Clock:
    """Divides the time since `origin_s` into `PHASES`; see the module's docstring.

    Args:
        origin_s: start of the wall time in seconds of `now`; the creation of this process if not given.
        now: the host's clock in seconds.
    """

    def __init__(self, origin_s: float | None = None, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self.origin_s = process_creation_s() if origin_s is None else origin_s
        self.totals_s: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self.steps = StepTimes()
        self.step_ends_s = array("d")  # of the first STARTING steps, from the origin on
        self.before_training_s = 0.0  # from the origin on, of the last training
        self.training_s = 0.0  # host seconds between begin_training and end_training
        self.training_phases_s: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self.waited_s: Callable[[], float] = lambda: 0.0  # part of the training's compute spent waiting for other ranks
        self._last = self.origin_s
        self._scope: str | None = None
        self._iteration = self._compute = 0.0
        self._training_begin: float | None = None  # while training goes on
        self._totals_before = self.training_phases_s
        self._on_device = False
        self._device_last: torch.cuda.Event | None = None
        self._pending: deque[tuple[str, torch.cuda.Event, int | None, list[tuple[str, float]]]] = deque()
        self._noted: list[tuple[str, float]] = []
        self._pool: list[torch.cuda.Event] = []

    def mark(self, phase: str, samples: int | None = None) -> None:
        """Assigns the time since the last mark to `phase`; with `samples`, an optimiser step of so many ends here."""
        if self._scope is not None:
            return
        if self._on_device:
            event = self._pool.pop() if self._pool else torch.cuda.Event(enable_timing=True)
            event.record()
            if self._noted:
                self.note(phase)
            self._pending.append((phase, event, samples, self._noted))
            self._noted = []
            self._last = self._now()
        else:
            now = self._now()
            self._account(phase, now - self._last, samples)
            self._last = now

    def note(self, phase: str) -> None:
        """Like `mark`, for host work only: records no event on a GPU."""
        if not self._on_device:
            self.mark(phase)
        elif self._scope is None:
            now = self._now()
            self._noted.append((phase, now - self._last))
            self._last = now

    @contextmanager
    def within(self, phase: str) -> Iterator[None]:
        """Assigns all time of the block to `phase`, marks in it included, and the time before it to `other`."""
        if self._scope is not None:  # the outermost phase gets all
            yield
            return
        self.mark("other")
        self._scope = phase
        try:
            yield
        finally:
            self._scope = None
            self.mark(phase)

    def begin_training(self, device: torch.device) -> None:
        """Ends `startup`; on a GPU, switches to events on the compute stream."""
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        self.mark("startup")
        self._training_begin = self._last
        self.before_training_s = self._last - self.origin_s
        self._totals_before = dict(self.totals_s)
        if device.type == "cuda":
            self._device_last = torch.cuda.Event(enable_timing=True)
            self._device_last.record()
            self._on_device = True

    def end_training(self) -> None:
        """Waits for the device, reads the pending events and switches back to the host's clock."""
        self.mark("other")
        if self._on_device:
            torch.cuda.synchronize()
            self.read()
            self._on_device = False
            self._last = self._now()
        spent = self.spent()
        self.training_s, self.totals_s, self.training_phases_s = (
            spent.training_s, spent.totals_s, spent.training_phases_s,
        )  # fmt: skip
        self._training_begin = None

    def spent(self) -> Spent:
        """Returns the time until the newest mark, also while training goes on; on a GPU until its newest event."""
        if self._training_begin is None:
            return Spent(self.training_s, dict(self.totals_s), dict(self.training_phases_s))
        self.read()
        totals, waited_s = dict(self.totals_s), self.waited_s()
        totals["compute"] -= waited_s
        totals["communication"] += waited_s
        in_training = {p: totals[p] - self._totals_before[p] for p in PHASES}
        return Spent(self._last - self._training_begin, totals, in_training)

    def read(self) -> None:
        """Accounts for the pending events that the device has reached; does not wait for the others."""
        while self._pending and self._pending[0][1].query():
            phase, event, samples, noted = self._pending.popleft()
            assert self._device_last is not None
            seconds = self._device_last.elapsed_time(event) / 1e3
            host_s = sum(share for _, share in noted)
            if host_s > 0:
                for name, share in noted:
                    self._account(name, seconds * share / host_s)
                seconds = 0.0
            self._account(phase, seconds, samples)
            self._pool.append(self._device_last)
            self._device_last = event

    def wall_s(self) -> float:
        """Returns the seconds since the origin, on the host's clock."""
        return self._now() - self.origin_s

    def marked_s(self) -> float:
        """Returns the seconds from the origin to the newest mark: what the phases of a host add up to."""
        return self._last - self.origin_s

    def _account(self, phase: str, seconds: float, samples: int | None = None) -> None:
        self.totals_s[phase] += seconds
        if phase in IN_STEP:
            self._iteration += seconds
            if phase in ("compute", "communication"):
                self._compute += seconds
        if samples is not None:
            self.steps.iteration_s.append(self._iteration)
            self.steps.compute_s.append(self._compute)
            self.steps.samples.append(samples)
            if len(self.steps) <= STARTING:
                self.step_ends_s.append(sum(self.totals_s.values()))
            self._iteration = self._compute = 0.0
