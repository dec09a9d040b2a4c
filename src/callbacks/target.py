"""Ends training when the target of the final metric is reached."""

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.trainer.states import TrainerFn

from src.training.task import Task


class Target(pl.Callback):
    """With `stop`, ends training after the evaluation that reaches the target; the metric is equal on every rank.

    A checkpoint holds the metric's value, so that a run that is resumed ends where it would have ended.
    """

    def __init__(self, stop: bool = False) -> None:
        self.stop = stop
        self.value: float | None = None  # of the newest evaluation

    def is_reached(self, task: Task) -> bool:
        """Returns whether training ends."""
        return self.stop and bool(task.final_metric.reached(self.value))

    def on_fit_start(self, trainer: pl.Trainer, pl_module: Task) -> None:
        """Ends the training of a checkpoint at which it was to end."""
        trainer.should_stop = trainer.should_stop or self.is_reached(pl_module)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        if trainer.sanity_checking or trainer.state.fn != TrainerFn.FITTING:
            return
        self.value = pl_module.metrics.get(pl_module.final_metric.name)
        trainer.should_stop = trainer.should_stop or self.is_reached(pl_module)

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.value = state_dict["value"]
