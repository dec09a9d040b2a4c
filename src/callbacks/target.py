"""Notes the best value of the final metric and can end training when the target is reached."""

import pytorch_lightning as pl

from src.training.task import Task


class Target(pl.Callback):
    """With `stop`, training ends after the evaluation that reaches the target; every rank sees the same value."""

    def __init__(self, stop: bool = False) -> None:
        self.stop = stop

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        metric = pl_module.final_metric
        if self.stop and not trainer.sanity_checking and metric.reached(pl_module.metrics.get(metric.name)):
            trainer.should_stop = True
