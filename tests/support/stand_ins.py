"""A trainer without a loop and a minimal task, for tests of callbacks."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.trainer.states import TrainerFn, TrainerState
from torch import nn

from src.callbacks.checkpoint import AtomicCheckpointIO
from src.training.task import FinalMetric, Task


class StandInTrainer(pl.Trainer):
    """A trainer whose step and epoch are set by hand; `saved` lists its checkpoints as (name, step)."""

    def __init__(self) -> None:
        self.step = self.epoch = 0
        self.ranks = 1
        self.stop = self.last_batch = False
        self.resumed_from: str | None = None
        self.saved: list[tuple[str, int]] = []
        self.callbacks = []
        self.state = TrainerState(fn=TrainerFn.FITTING)
        self.check_val_every_n_epoch = 1
        self._plugins = SimpleNamespace(checkpoint_io=AtomicCheckpointIO())
        self._loggers = []

    def save_checkpoint(self, filepath: Any, weights_only: Any = None, storage_options: Any = None) -> None:
        self.saved += [(path.name, self.step) for path in (filepath, storage_options) if path is not None]

    strategy = property(lambda self: self._plugins)
    global_step = property(lambda self: self.step)
    current_epoch = property(lambda self: self.epoch)
    max_steps = property(lambda self: -1)
    world_size = property(lambda self: self.ranks)
    global_rank = property(lambda self: 0)
    is_global_zero = property(lambda self: True)
    ckpt_path = property(lambda self: self.resumed_from)
    is_last_batch = property(lambda self: self.last_batch)
    sanity_checking = property(lambda self: False)
    should_stop = property(lambda self: self.stop, lambda self, stop: setattr(self, "stop", stop))


def stand_in_task(direction: Any = "max", target: float | None = None) -> Task:
    task = Task(nn.Linear(1, 1), partial(torch.optim.SGD, lr=0.1))
    task.final_metric = FinalMetric("quality", direction, target)
    task.unit = "samples"
    return task
