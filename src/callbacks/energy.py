"""Energy of training in joules, from the devices' own counters."""

from contextlib import suppress
from typing import Any

import pytorch_lightning as pl

from src.callbacks.measuring import Measuring
from src.measure.energy import EnergyCounter, energy_counter
from src.measure.over_ranks import energy_figures
from src.training.task import Task


class Energy(Measuring):
    """Reports the energy of all ranks' devices from the first step to the end of training; None without a counter."""

    def __init__(self) -> None:
        self._counter: EnergyCounter | None = None
        self._joules: float | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self._counter = energy_counter(pl_module.device)

    def on_train_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self._joules, self._counter = self.joules(), None

    def on_exception(self, trainer: pl.Trainer, pl_module: Task, exception: BaseException) -> None:
        with suppress(Exception):  # of a device that is broken
            self.on_train_end(trainer, pl_module)

    def joules(self) -> float | None:
        """Returns the energy of this rank's device since the first step, at most until the end of training."""
        return self._joules if self._counter is None else self._counter.joules()

    def figures(self, task: Task) -> dict[str, Any]:
        return energy_figures(self._joules, float(sum(task.clock.steps.samples)))
