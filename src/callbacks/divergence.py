"""Ends a run whose losses, weights or metrics are no longer finite, before anything is saved or judged by them."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, distributed

from src.callbacks.checkpoint import Checkpoint
from src.callbacks.history import Copy
from src.errors import UserError
from src.parallel.strategies import Spread
from src.training.task import Task


class Divergence(pl.Callback):
    """Raises UserError on every rank after a loss, a weight or a metric that is infinite or NaN.

    Each step adds 0 times its loss to a number on the device, which becomes NaN with the first loss that is not finite;
    no step waits for the host. That number is copied to the host asynchronously every `every_n_steps` steps, and all
    ranks agree before a batch that one of them has seen a NaN (`Ending`). Before each checkpoint and each evaluation,
    and at the end of training, the host waits for the number and looks at the weights.
    """

    def __init__(self, every_n_steps: int) -> None:
        self.every_n_steps = every_n_steps
        self._calls = 0
        self._copy: Copy | None = None
        self._checked_at = -1  # the step whose losses and weights were all finite

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Task, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._calls += 1
        if self._calls % self.every_n_steps:
            return
        self._look(trainer, pl_module)
        if self._copy is None:
            self._copy = Copy.of({"losses": pl_module.losses}, {"step": trainer.global_step}, {})
            self._look(trainer, pl_module)  # without a GPU it is there already

    def on_validation_start(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self._check(trainer, pl_module)

    def on_test_start(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self._check(trainer, pl_module)

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: Task, checkpoint: dict[str, Any]) -> None:
        self._check(trainer, pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self._check(trainer, pl_module)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        """The metrics are those of all ranks."""
        for name, value in pl_module.metrics.items():
            if not math.isfinite(value):
                raise UserError(message(trainer, f"the metric {name}", trainer.global_step))

    def on_test_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self.on_validation_end(trainer, pl_module)

    def _look(self, trainer: pl.Trainer, task: Task) -> None:
        """Tells the task what a copy says that has arrived on the host; waits for none."""
        if self._copy is not None and self._copy.arrived():
            if not self._copy.values["losses"].isfinite():
                task.diverged = message(trainer, "the loss", self._copy.where["step"])
            self._copy = None

    def _check(self, trainer: pl.Trainer, task: Task) -> None:
        """Waits for the device. Every rank calls it after the same step."""
        if self._checked_at == trainer.global_step:
            return
        found = None if task.losses.isfinite() else "the loss"
        found = found or first_not_finite(task)
        anywhere = torch.tensor(float(found is not None), device=task.device)
        if trainer.world_size > 1:
            distributed.all_reduce(anywhere, distributed.ReduceOp.MAX)
        if anywhere:
            raise UserError(message(trainer, found or "the loss or a weight of another rank", trainer.global_step))
        self._checked_at = trainer.global_step


def message(trainer: pl.Trainer, what: str, step: int) -> str:
    """What the user reads of a run that diverged, with the checkpoint that is left of it."""
    folders = [c.folder for c in trainer.callbacks if isinstance(c, Checkpoint)]  # type: ignore[attr-defined]
    saved = next((str(path) for folder in folders if (path := Path(folder, "last.ckpt")).exists()), None)
    way_out = "lower hp.lr, or choose a precision with more range (bf16, fp32)"
    left = f"; resume=true goes on from the last finite checkpoint, {saved}" if saved else ""
    return f"{what} is infinite or NaN at step {step} or before, the run has diverged; {way_out}{left}"


def first_not_finite(task: Task) -> str | None:
    """The name of the first weight or statistic on this rank that is infinite or NaN. Waits for the device."""
    held = {name: tensor for name, tensor in weights(task) if tensor.numel()}
    if not held:
        return None
    # The largest number of each, without a temporary tensor of its size; a NaN is the largest.
    largest = torch.stack([torch.linalg.vector_norm(tensor, torch.inf).double() for tensor in held.values()])
    finite = largest.isfinite().tolist()
    return next((name for name, is_finite in zip(held, finite, strict=True) if not is_finite), None)


def weights(task: Task) -> Iterator[tuple[str, Tensor]]:
    """Floating point parameters and buffers of the network by name, and the parts of spread tables on this rank."""
    for name, tensor in (*task.network.named_parameters(), *task.network.named_buffers()):
        if tensor.is_floating_point():
            yield name, tensor.detach()
    for prefix, module in task.network.named_modules():
        if isinstance(module, Spread):
            yield from ((f"{prefix}.{name}", tensor) for name, tensor in module.held_weights())
