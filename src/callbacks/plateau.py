"""Ends training when the final metric has stopped getting better."""

from typing import Any

import pytorch_lightning as pl

from src.config.ranges import Count
from src.training.task import Task


class Plateau(pl.Callback):
    """Ends training after so many evaluations in a row without a better final metric than before them.

    Lightning's EarlyStopping reads metrics that a module logs; a task keeps its own, which are equal on every rank.

    Args:
        evaluations: how many; None: training goes on.
    """

    def __init__(self, evaluations: Count | None = None) -> None:
        self.evaluations = evaluations
        self.best: float | None = None
        self.worse = 0  # evaluations since the best one

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        metric = pl_module.final_metric
        value = pl_module.metrics.get(metric.name)
        if self.evaluations is None or value is None or value != value or trainer.sanity_checking:
            return
        if metric.better(value, self.best):
            self.best, self.worse = value, 0
            return
        self.worse += 1
        if self.worse >= self.evaluations:
            trainer.should_stop = True
            if trainer.is_global_zero:
                print(f"training ends: {self.worse} evaluations without a better {metric.name} than {self.best:.6g}")

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "worse": self.worse}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self.worse = state_dict["best"], state_dict["worse"]
