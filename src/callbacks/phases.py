"""Marks start-up, training and evaluation on the clock."""

from contextlib import AbstractContextManager
from typing import Any

import pytorch_lightning as pl

from src.callbacks.measuring import Measuring
from src.measure.starting import ended
from src.training.task import Task


class Phases(Measuring):
    """Begins and ends the clock's training time and marks evaluation; the step marks its own phases."""

    def __init__(self) -> None:
        self._evaluation: AbstractContextManager[None] | None = None
        self._training = False

    def setup(self, trainer: pl.Trainer, pl_module: Task, stage: str) -> None:
        ended("data")  # Lightning has prepared them, and ranks have met

    def on_sanity_check_start(self, trainer: pl.Trainer, pl_module: Task) -> None:
        pl_module.clock.mark("startup")  # start-up continues after this evaluation

    def on_train_start(self, trainer: pl.Trainer, pl_module: Task) -> None:
        pl_module.clock.begin_training(pl_module.device)
        self._training = True

    def on_train_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self.close(pl_module)

    def on_exception(self, trainer: pl.Trainer, pl_module: Task, exception: BaseException) -> None:
        self._leave_evaluation()
        self.close(pl_module)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: Task) -> None:
        evaluation = pl_module.clock.within("evaluation")
        evaluation.__enter__()
        self._evaluation = evaluation

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self._leave_evaluation()

    def on_test_start(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self.on_validation_start(trainer, pl_module)

    def on_test_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self.on_validation_end(trainer, pl_module)

    def close(self, task: Task) -> None:
        """Ends the training time; later calls do nothing."""
        if self._training:
            self._training = False
            task.clock.end_training()

    def _leave_evaluation(self) -> None:
        if self._evaluation is not None:
            self._evaluation.__exit__(None, None, None)
            self._evaluation = None

    def figures(self, task: Task) -> dict[str, Any]:
        """Returns `phases_s`, with the time since the last mark in `other`, and the wall time that they add up to."""
        self.close(task)
        task.clock.mark("other")
        return {"phases_s": {**task.clock.totals_s, "wall": task.clock.marked_s()}}
