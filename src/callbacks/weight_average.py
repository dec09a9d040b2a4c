"""Exponential moving average of the weights: evaluated, saved and predicted with in place of the last ones."""

from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from src.errors import UserError
from src.parallel.strategies import Spread
from src.training.task import Task

PREFIX = "network."  # of the network's keys in a checkpoint
TRAINED = "training_weights"  # a checkpoint's key: what training goes on from


class WeightAverage(pl.Callback):
    """Averages the network's floating point weights and buffers over the optimiser steps.

    After step n, counted from 0, average = d * average + (1 - d) * weights with d = min(decay, (1 + n) / (10 + n)), the
    warm-up of TensorFlow's ExponentialMovingAverage. Training does not read the average. During evaluations and after
    training the network holds it. A checkpoint has it as `state_dict`, and the weights under TRAINED.

    Args:
        decay: between 0 and 1; about 1 / (1 - decay) steps count.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.updates = 0
        self.average: dict[str, Tensor] = {}  # by the network's keys; the weights while the network holds the average
        self._is_in_network = False
        self._weights: dict[str, Tensor] = {}  # the network's own tensors
        self._step = 0

    def setup(self, trainer: pl.Trainer, pl_module: Task, stage: str) -> None:
        if trainer.world_size > 1 and any(isinstance(module, Spread) for module in pl_module.modules()):
            raise UserError(
                "fit.ema_decay cannot average tables that several ranks hold: leave it out, or take trainer=1x1"
            )

    def on_train_start(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self._step, self._weights = trainer.global_step, averaged(pl_module)

    @torch.no_grad()
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Task, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self._step:  # this batch waits for others of its step
            return
        self._step = trainer.global_step
        if not self.average:
            self.average = {name: tensor.clone() for name, tensor in self._weights.items()}
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        torch._foreach_lerp_(list(self.average.values()), list(self._weights.values()), 1 - decay)  # pyright: ignore
        self.updates += 1

    def on_validation_start(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self._exchange(pl_module)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self._exchange(pl_module)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self._exchange(pl_module)
        self.average = {}

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: Task, checkpoint: dict[str, Any]) -> None:
        if not self.average:
            return
        state, others = checkpoint["state_dict"], self.average
        checkpoint[TRAINED] = others if self._is_in_network else {name: state[PREFIX + name] for name in others}
        if not self._is_in_network:
            checkpoint["state_dict"] = state | {PREFIX + name: tensor for name, tensor in others.items()}

    @torch.no_grad()
    def on_load_checkpoint(self, trainer: pl.Trainer, pl_module: Task, checkpoint: dict[str, Any]) -> None:
        """Continues the average of a checkpoint that has one."""
        if TRAINED not in checkpoint:
            return
        for name, tensor in averaged(pl_module).items():  # Lightning has loaded the average
            self.average[name] = tensor.clone()
            tensor.copy_(checkpoint[TRAINED][name])

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.updates = state_dict["updates"]

    @torch.no_grad()
    def _exchange(self, task: Task) -> None:
        """Exchanges the weights in the network with the average, where there is one, in their memory."""
        if not self.average:
            return
        for name, tensor in averaged(task).items():
            other = tensor.clone()
            tensor.copy_(self.average[name])
            self.average[name].copy_(other)
        self._is_in_network = not self._is_in_network


def averaged(task: Task) -> dict[str, Tensor]:
    """Returns the network's floating point parameters and buffers by their keys, sharing memory with them."""
    return {name: tensor for name, tensor in task.network.state_dict().items() if tensor.is_floating_point()}
