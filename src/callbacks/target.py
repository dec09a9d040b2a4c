"""Ends training when the target of the final metric is reached."""

import pytorch_lightning as pl

from src.training.task import Task


class Target(pl.Callback):
    """With `stop`, ends training after the evaluation that reaches the target; the metric is equal on every rank."""

    def __init__(self, stop: bool = False) -> None:
        self.stop = stop

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        metric = pl_module.final_metric
        if self.stop and not trainer.sanity_checking and metric.reached(pl_module.metrics.get(metric.name)):
            trainer.should_stop = True
