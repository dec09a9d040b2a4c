"""Rates of training and their distance to the hardware's limits, over all ranks."""

from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, distributed

from src.callbacks.measuring import Measuring
from src.config.schema import Hardware, Precision
from src.measure.rates import steady_rates, token_rates, whole_rates
from src.measure.roofline import peaks_of, utilisation
from src.system import group
from src.training.task import Task


class Throughput(Measuring):
    """p_whole, p_train, p_core, steady rates, samples, utilisation, and the communication that compute does not hide.

    Args:
        warmup_steps: left out of the steady rates.
        hardware, precision: for the peaks.
    """

    def __init__(self, warmup_steps: int, hardware: Hardware, precision: Precision) -> None:
        self.warmup_steps = warmup_steps
        self.hardware, self.precision = hardware, precision
        self._first_step = 0
        self._waited: Tensor | None = None  # for other ranks, when the warm-up steps were over

    def on_train_start(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self._first_step, self._waited = trainer.global_step, None
        if trainer.world_size > 1:
            self.on_train_batch_end = self._look_for_end_of_warmup  # type: ignore[method-assign]

    def _look_for_end_of_warmup(self, trainer: pl.Trainer, pl_module: Task, *_: Any) -> None:
        if self._waited is None and trainer.global_step - self._first_step >= self.warmup_steps:
            self._waited = pl_module.waiting.snapshot()

    def figures(self, task: Task) -> dict[str, Any]:
        clock = task.clock
        mine = whole_rates(clock.steps, clock.training_s, clock.training_phases_s["evaluation"])
        steady = steady_rates(clock.steps, self.warmup_steps)
        over_ranks = {name: gather(value) for name, value in mine.items()}
        total = {name: sum_or_none(values) for name, values in over_ranks.items()}
        ranks = len(over_ranks["p_core"])
        if steady:
            for name in ("p_train", "p_core"):
                steady[name] = sum_or_none(gather(steady[name]))
        best = (steady or total)["p_core"]
        return {
            **total,
            "steady": steady,
            "samples": int(sum_or_none(gather(float(sum(clock.steps.samples)))) or 0),
            "ranks": ranks,
            "rates_over_ranks": {name: spread(values) for name, values in over_ranks.items()} if ranks > 1 else None,
            "utilisation": self._utilisation(task, best / ranks) if best else None,
            "communication": self._communication(task) if ranks > 1 else None,
            "tokens": self._tokens(task, self.warmup_steps if steady else 0, (steady or total)["p_train"]),
        }

    def _communication(self, task: Task) -> dict[str, Any] | None:
        """Of the steady steps; every rank calls it."""
        compute = task.clock.steps.compute_s[self.warmup_steps :]
        known = self._waited is not None and len(compute) > 0
        exposed_s = (task.waiting.snapshot() - self._waited).item() / 1e9 if self._waited is not None else 0.0
        per_step = gather(exposed_s / len(compute) if known else None)
        shares = gather(exposed_s / sum(compute) if known else None)
        total = sum_or_none(shares)
        return None if total is None else {"exposed_s": spread(per_step), "share": total / len(shares)}

    def _tokens(self, task: Task, first: int, rate: float | None) -> dict[str, float | None] | None:
        """Of the steps from `first` on, which had that rate over all ranks."""
        steps = slice(first, len(task.clock.steps))
        mine = sum(task.clock.steps.samples[steps])
        datamodule = task.trainer.datamodule  # type: ignore[attr-defined]
        counted = datamodule.tokens(steps) if mine and datamodule else None
        if counted is None:
            return None
        real, processed, samples = (sum_or_none(gather(float(value))) or 0.0 for value in (*counted, mine))
        return token_rates(real, processed, samples, rate)

    def _utilisation(self, task: Task, rate: float) -> dict[str, Any] | None:
        cost = task.cost()
        peaks = peaks_of(self.precision.name, self.hardware.peak_flops, self.hardware.peak_bandwidth)
        return utilisation(rate, cost.flops_training, cost.bytes_training, peaks)


def gather(value: float | None) -> list[float | None]:
    """The value of every rank, in order."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return [value]
    if group.is_broken():
        return [value, *[None] * (distributed.get_world_size() - 1)]  # what the others have will not be known
    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    mine = torch.tensor([float("nan") if value is None else value], dtype=torch.float64, device=device)
    parts = [torch.empty_like(mine) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, mine)
    return [None if part.isnan().item() else float(part) for part in parts]


def sum_or_none(values: list[float | None]) -> float | None:
    """The sum over ranks; None if any rank has none."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def spread(values: list[float | None]) -> dict[str, float] | None:
    known = [value for value in values if value is not None]
    return {"min": min(known), "mean": sum(known) / len(known), "max": max(known)} if known else None
