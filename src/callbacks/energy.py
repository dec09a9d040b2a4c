"""Joules from the device's own counter, from the first training step to the end of training."""

from typing import Any

import pytorch_lightning as pl

from src.callbacks.measuring import Measuring
from src.callbacks.throughput import gather, sum_or_none
from src.measure.energy import EnergyCounter, energy_counter
from src.training.task import Task


class Energy(Measuring):
    """None where no counter is found; with several ranks the sum over their devices."""

    def __init__(self) -> None:
        self._counter: EnergyCounter | None = None
        self._joules: float | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self._counter = energy_counter(pl_module.device)

    def on_train_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        if self._counter is not None:
            self._joules = self._counter.joules()

    def figures(self, task: Task) -> dict[str, Any]:
        joules = sum_or_none(gather(self._joules))
        samples = sum_or_none(gather(float(sum(task.clock.steps.samples))))
        if not joules or not samples:  # a run too short for the counter's resolution has none either
            return {"energy": None}
        return {"energy": {"joules": joules, "samples_per_joule": samples / joules, "source": "nvml total energy"}}
