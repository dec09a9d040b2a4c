"""Learning rates over a run, as closed forms: a factor on `hp.lr` from where the run stands, so nothing to resume."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from src.config.ranges import Count, NotNegative, Number, Share
from src.errors import UserError

Interval = Literal["epoch", "step"]


@runtime_checkable
class Schedule(Protocol):
    """What a Task asks for the factor on its learning rate.

    interval: what `done` and `total` count, "epoch" or "step" of the optimiser; the rate is constant within one.
    total: what the whole schedule lasts, None for as long as the run.
    """

    @property
    def interval(self) -> str: ...

    @property
    def total(self) -> int | None: ...

    def __call__(self, done: int, total: int) -> float: ...


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from 1 down to `final_ratio`, which it reaches at `total`, after `warmup` that rises linearly.

    Without warm-up this is torch's CosineAnnealingWarmRestarts whose first period is the whole run.
    """

    final_ratio: Share = 0.0
    warmup: Number = 0
    interval: Interval = "epoch"
    total: Count | None = None

    def __call__(self, done: int, total: int) -> float:
        if done < self.warmup:
            return (done + 1) / (self.warmup + 1)
        share = min(1.0, (done - self.warmup) / max(1, total - self.warmup))
        return self.final_ratio + (1 - self.final_ratio) * (1 + math.cos(math.pi * share)) / 2


@dataclass(frozen=True)
class Linear:
    """Hugging Face's `linear`: a straight line from 1 to 0 at `total`, after `warmup` that rises linearly from 0."""

    warmup: Number = 0
    interval: Interval = "step"
    total: Count | None = None

    def __call__(self, done: int, total: int) -> float:
        if done < self.warmup:
            return done / self.warmup
        return max(0.0, (total - done) / max(1, total - self.warmup))


class Steps:
    """1 at first, times `factor` from each of the epochs or steps `at` on; gluon-cv's are 0.1 at epochs 40 and 60."""

    def __init__(
        self, at: Sequence[Number] = (40, 60), factor: NotNegative = 0.1, interval: Interval = "epoch"
    ) -> None:
        self.at, self.factor, self.interval = tuple(at), factor, interval

    @property
    def total(self) -> int:
        return max(self.at, default=0) + 1

    def __call__(self, done: int, total: int) -> float:
        return self.factor ** sum(done >= begin for begin in self.at)


@dataclass(frozen=True)
class WarmupPolynomial:
    """DLRM's schedule over optimiser steps: a linear rise to 1, constant, a polynomial fall.

    The s-th step, counted from 1, has the factor 1 - (warmup_steps - s) / (warmup_steps 2^warmup_factor) up to
    `warmup_steps`, then 1 up to `decay_start_step`, then ((end - s) / decay_steps)^decay_power but never less than
    `end_factor`, which it keeps from end = decay_start_step + decay_steps on. The defaults are the published ones.
    """

    warmup_steps: Number = 8_000
    warmup_factor: float = 0.0
    decay_start_step: Number = 48_000
    decay_steps: Count = 24_000
    decay_power: NotNegative = 2.0
    end_factor: Share = 0.0

    def __post_init__(self) -> None:
        if self.decay_start_step < self.warmup_steps:
            raise UserError(
                f"model.task.schedule.decay_start_step={self.decay_start_step} lies within the "
                f"warmup_steps={self.warmup_steps}; let the decay start later"
            )

    @property
    def interval(self) -> str:
        return "step"

    @property
    def total(self) -> int:
        return self.decay_start_step + self.decay_steps

    def __call__(self, done: int, total: int) -> float:
        step = done + 1
        if step <= self.warmup_steps:
            return 1 - (self.warmup_steps - step) / (self.warmup_steps * 2**self.warmup_factor)
        if step <= self.decay_start_step:
            return 1.0
        if step >= self.total:
            return self.end_factor
        return max(self.end_factor, ((self.total - step) / self.decay_steps) ** self.decay_power)


class ScheduledRate:
    """The learning rates of an optimiser on their way along a schedule.

    On a GPU they become tensors there, which a CUDA graph reads at every replay; setting them never waits for it.
    """

    def __init__(self, schedule: Schedule, total: int, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self.schedule, self.total, self.param_groups = schedule, total, optimizer.param_groups
        self.factor: float | None = None
        for group in self.param_groups:
            group.setdefault("initial_lr", float(group["lr"]))
            if device.type == "cuda":
                group["lr"] = torch.tensor(float(group["lr"]), device=device)

    def follow(self, done: int) -> float:
        """Sets every group's rate after `done` epochs or steps; returns the first group's."""
        factor = self.schedule(done, self.total)
        if factor != self.factor:
            self.factor = factor
            for group in self.param_groups:
                lr = group["initial_lr"] * factor
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(lr)
                else:
                    group["lr"] = lr
        return self.param_groups[0]["initial_lr"] * factor
