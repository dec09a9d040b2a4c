"""The scalars of a step on their way to the host, of one rank or of all of them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed

from src.training.task import Task

EQUAL = ("lr", "loss_scale", "grad_norm")  # scalars of a step that every rank has alike


@dataclass(frozen=True)
class HostCopy:
    """An asynchronous copy of tensors to the host, complete after `event`; None if it is complete already."""

    values: dict[str, Tensor]
    event: torch.cuda.Event | None

    @classmethod
    def start(cls, values: dict[str, Tensor]) -> "HostCopy":
        copies = {name: to_host(value) for name, value in values.items()}
        event = None
        if any(value.device.type == "cuda" for value in values.values()):
            event = torch.cuda.Event()
            event.record()
        return cls(copies, event)

    def arrived(self) -> bool:
        return self.event is None or self.event.query()


@dataclass(frozen=True)
class Window:
    """The scalars of one step of all ranks, and their rate since the window before.

    Attributes:
        where: step, epoch and times of the row in the history.
        copy: the scalars; of several ranks also `sums`: samples of the step, rates, ranks without one, and `means`.
        means: names of the scalars that `sums` has, each times its rank's samples.
        unit: of the rate.
        rate: of this rank in samples per second, where it is the only one.
    """

    where: dict[str, Any]
    copy: HostCopy
    unit: str
    means: tuple[str, ...] = ()
    rate: float | None = None

    @classmethod
    def of_one(cls, task: Task, where: dict[str, Any], rate: float | None) -> "Window":
        """Starts the copy of the newest step's scalars, of the only rank."""
        return cls(where, HostCopy.start(task.last), task.unit, rate=rate)

    @classmethod
    def of_all(cls, task: Task, where: dict[str, Any], rate: float | None) -> "Window":
        """Sums the newest step's scalars over ranks and starts the copy of the sums; does not wait for a GPU.

        Every rank calls it after the same step.

        Args:
            rate: samples per second of this rank; None if its clock has read no step since the window before.
        """
        means = tuple(name for name in task.last if name not in EQUAL)
        terms = [float(task.step_samples), rate or 0.0, float(rate is None)]
        on_gpu = task.device.type == "cuda"  # a copy to it from pageable memory would wait for the stream
        sums = torch.tensor(terms, dtype=torch.float64, pin_memory=on_gpu).to(task.device, non_blocking=True)
        if means:
            scalars = torch.stack([task.last[name].to(sums) for name in means])
            weighted = sums[0] * scalars if task.step_samples else torch.zeros_like(scalars)  # of no samples: NaN
            sums = torch.cat([sums, weighted])
        distributed.all_reduce(sums)
        equal = {name: value for name, value in task.last.items() if name in EQUAL}
        return cls(where, HostCopy.start({"sums": sums, **equal}), task.unit, means)

    def row(self) -> tuple[dict[str, Any], dict[str, float]]:
        """Returns where the row is and its figures, valid once the copy has arrived."""
        values, rate = dict(self.copy.values), self.rate
        figures = {}
        if "sums" in values:
            count, rate, without_rate, *scalars = values.pop("sums").tolist()
            rate = None if without_rate else rate
            figures = {name: value / count for name, value in zip(self.means, scalars, strict=True)}
        figures |= {name: float(value) for name, value in values.items()}
        return self.where, figures | ({} if rate is None else {f"{self.unit}_per_s": rate})


def to_host(value: Tensor) -> Tensor:
    """Starts a copy to the host and returns it; from a GPU into pinned memory, so that it does not block."""
    if value.device.type != "cuda":
        return value.clone()
    return torch.empty(value.shape, dtype=value.dtype, pin_memory=True).copy_(value, non_blocking=True)
