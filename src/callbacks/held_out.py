"""Ends a run before its training where there is nothing to evaluate it with."""

import pytorch_lightning as pl

from src.datamodules.base import SplitDataModule
from src.errors import UserError
from src.training.task import Task


class HeldOut(pl.Callback):
    """Raises UserError, once the data are read, where an evaluation is wanted and its split is empty.

    Args:
        after_training: whether the finished run is evaluated.
    """

    def __init__(self, after_training: bool) -> None:
        self.after_training = after_training

    def setup(self, trainer: pl.Trainer, pl_module: Task, stage: str) -> None:
        data = trainer.datamodule  # type: ignore[attr-defined]
        if stage != "fit" or not isinstance(data, SplitDataModule) or data.val_split not in data.splits:
            return
        split = data.splits[data.val_split]
        count = split if isinstance(split, int) else len(split)
        if not count and (self.after_training or trainer.limit_val_batches):
            raise UserError(
                f"{data.name} has 0 {pl_module.unit} in its split {data.val_split}: hold out one or more to evaluate "
                "on, or give fit.final_evaluation=false fit.eval_every_n_epochs=null fit.eval_every_n_steps=null"
            )
