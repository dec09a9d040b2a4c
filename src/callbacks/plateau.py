"""Ends training when the final metric has stopped getting better."""

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.trainer.states import TrainerFn

from src.config.ranges import Count
from src.training.task import Task


class Plateau(pl.Callback):
    """Ends training after so many evaluations in a row without a better final metric than before them.

    Lightning's EarlyStopping reads metrics that a module logs; a task keeps its own, which are equal on every rank.
    A checkpoint holds the count, so that a run that is resumed ends where it would have ended.

    Args:
        evaluations: how many; None: training goes on.
    """

    def __init__(self, evaluations: Count | None = None) -> None:
        self.evaluations = evaluations
        self.best: float | None = None
        self.worse = 0  # evaluations since the best one

    @property
    def is_reached(self) -> bool:
        """Whether training ends."""
        return self.evaluations is not None and self.worse >= self.evaluations

    def on_fit_start(self, trainer: pl.Trainer, pl_module: Task) -> None:
        """Ends the training of a checkpoint at which it was to end."""
        trainer.should_stop = trainer.should_stop or self.is_reached

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        if trainer.sanity_checking or trainer.state.fn != TrainerFn.FITTING:
            return
        metric = pl_module.final_metric
        value = pl_module.metrics.get(metric.name)
        if value is None or value != value:
            return
        if metric.better(value, self.best):
            self.best, self.worse = value, 0
            return
        self.worse += 1
        if self.is_reached:
            trainer.should_stop = True
            if trainer.is_global_zero:
                print(f"training ends: {self.worse} evaluations without a better {metric.name} than {self.best:.6g}")

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "worse": self.worse}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self.worse = state_dict["best"], state_dict["worse"]
