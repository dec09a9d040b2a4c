"""Training rates over all ranks, and their share of the hardware's peaks."""

from dataclasses import asdict
from typing import Any

import pytorch_lightning as pl
from torch import Tensor

from src.callbacks.measuring import Measuring
from src.config.ranges import Number
from src.config.schema import Hardware, Precision
from src.measure.clock import Clock
from src.measure.over_ranks import gather, min_mean_max, sum_or_none, training_figures
from src.measure.rates import token_rates
from src.measure.roofline import peaks_of, utilisation
from src.measure.starting import start_of
from src.training.task import Task


class Throughput(Measuring):
    """Reports p_whole, p_train, p_core, steady rates, samples, utilisation, tokens and exposed communication.

    Args:
        warmup_steps: steps excluded from the steady rates.
        hardware, precision: determine the peaks.
    """

    def __init__(self, warmup_steps: Number, hardware: Hardware, precision: Precision) -> None:
        self.warmup_steps = warmup_steps
        self.hardware, self.precision = hardware, precision
        self._first_step = 0
        self._warmup_wait: Tensor | None = None  # ns spent waiting for other ranks during warm-up

    def on_train_start(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self._first_step, self._warmup_wait = trainer.global_step, None
        if trainer.world_size > 1:
            self.on_train_batch_end = self._read_wait_after_warmup  # type: ignore[method-assign]

    def _read_wait_after_warmup(self, trainer: pl.Trainer, pl_module: Task, *_: Any) -> None:
        if self._warmup_wait is None and trainer.global_step - self._first_step >= self.warmup_steps:
            self._warmup_wait = pl_module.waiting.snapshot()

    def figures(self, task: Task) -> dict[str, Any]:
        figures = training_figures(task.clock, self.warmup_steps)
        steady, ranks = figures["steady"], figures["ranks"]
        best = (steady or figures)["p_core"]
        return figures | {
            "start": self._start(task.clock),
            "utilisation": self._utilisation(task, best / ranks) if best else None,
            "communication": self._communication(task) if ranks > 1 else None,
            "tokens": self._tokens(task, self.warmup_steps if steady else 0, (steady or figures)["p_train"]),
        }

    def _start(self, clock: Clock) -> dict[str, Any] | None:
        start = start_of(clock.origin_s, clock.before_training_s, clock.step_ends_s, self.warmup_steps)
        return start and asdict(start)

    def _communication(self, task: Task) -> dict[str, Any] | None:
        """Returns the exposed communication of the steady steps. Every rank calls it."""
        compute = task.clock.steps.compute_s[self.warmup_steps :]
        is_known = self._warmup_wait is not None and len(compute) > 0
        exposed_s = (task.waiting.snapshot() - self._warmup_wait).item() / 1e9 if self._warmup_wait is not None else 0.0
        per_step = gather(exposed_s / len(compute) if is_known else None)
        shares = gather(exposed_s / sum(compute) if is_known else None)
        total = sum_or_none(shares)
        return None if total is None else {"exposed_s": min_mean_max(per_step), "share": total / len(shares)}

    def _tokens(self, task: Task, first: int, rate: float | None) -> dict[str, float | None] | None:
        """Returns the token rates of the steps from `first` on; `rate` is that over all ranks. Every rank calls it."""
        steps = slice(first, len(task.clock.steps))
        rank_samples = sum(task.clock.steps.samples[steps])
        datamodule = task.trainer.datamodule  # type: ignore[attr-defined]
        counted = datamodule.tokens(steps) if rank_samples and datamodule else None
        if counted is None:
            return None
        real, processed, samples = (sum_or_none(gather(float(value))) or 0.0 for value in (*counted, rank_samples))
        return token_rates(real, processed, samples, rate)

    def _utilisation(self, task: Task, rate: float) -> dict[str, Any] | None:
        cost = task.cost()
        hardware = self.hardware
        peaks = peaks_of(
            self.precision.name, hardware.peak_flops, hardware.peak_bandwidth, accelerator=task.device.type,
            reached=(rate * cost.flops_training, rate * cost.bytes_training),
        )  # fmt: skip
        return utilisation(rate, cost.flops_training, cost.bytes_training, peaks)
