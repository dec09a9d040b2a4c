"""Ends a run whose losses, weights or metrics are not finite, or whose ranks' weights differ, before they are used."""

import math
from collections.abc import Iterator
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, distributed

from src.callbacks.checkpoint import Checkpoint
from src.callbacks.window import HostCopy
from src.errors import UserError
from src.parallel.strategies import Spread
from src.training.task import Task

APART = 1e-3  # of a parameter's norm; ranks that average their gradients hold the same bits, or nearly so


class Divergence(pl.Callback):
    """Raises UserError on every rank after a loss, a weight or a metric that is infinite or NaN.

    Also where a parameter is not the same on all ranks: gradients that were not averaged alike show in nothing else.

    Each step adds 0 times its loss to a scalar on the device, which becomes NaN with the first loss that is not finite;
    no step waits for the host. The scalar is copied to the host asynchronously as often as the trainer logs. Before a
    batch, `Ending` tells all ranks if one has seen a NaN. Before each checkpoint and evaluation, and at the end of
    training, the host waits for the scalar and checks the weights.
    """

    def __init__(self) -> None:
        self._calls = 0
        self._copy: HostCopy | None = None
        self._copied_at = 0  # the step of the copy
        self._checked_at = -1  # the step whose losses and weights were all finite

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Task, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._calls += 1
        if self._calls % trainer.log_every_n_steps:  # type: ignore[attr-defined]
            return
        self._read_copy(trainer, pl_module)
        if self._copy is None:
            self._copy, self._copied_at = HostCopy.start({"losses": pl_module.losses}), trainer.global_step
            self._read_copy(trainer, pl_module)  # without a GPU it has arrived already

    def on_validation_start(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self._check(trainer, pl_module)

    def on_test_start(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self._check(trainer, pl_module)

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: Task, checkpoint: dict[str, Any]) -> None:
        self._check(trainer, pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self._check(trainer, pl_module)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        """Checks the metrics, which are equal on all ranks."""
        for name, value in pl_module.metrics.items():
            if not math.isfinite(value):
                raise UserError(divergence_message(trainer, f"the metric {name}", trainer.global_step))

    def on_test_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self.on_validation_end(trainer, pl_module)

    def _read_copy(self, trainer: pl.Trainer, task: Task) -> None:
        """Sets `task.diverged` if a copy has arrived on the host and is not finite; does not wait for one."""
        if self._copy is not None and self._copy.arrived():
            if not self._copy.values["losses"].isfinite():
                task.diverged = divergence_message(trainer, "the loss", self._copied_at)
            self._copy = None

    def _check(self, trainer: pl.Trainer, task: Task) -> None:
        """Raises UserError on all ranks if one diverged. Waits for the device; all ranks call it after one step."""
        if self._checked_at == trainer.global_step:
            return
        diverged = None if task.losses.isfinite() else "the loss"
        diverged = diverged or first_not_finite(task)
        on_any_rank = torch.tensor(float(diverged is not None), device=task.device)
        if trainer.world_size > 1:
            distributed.all_reduce(on_any_rank, distributed.ReduceOp.MAX)
        if on_any_rank:
            diverged = diverged or "the loss or a weight of another rank"
            raise UserError(divergence_message(trainer, diverged, trainer.global_step))
        if trainer.world_size > 1 and (name := first_apart(task)):
            raise UserError(
                f"{name} differs between ranks at step {trainer.global_step}: their gradients were not averaged alike, "
                "a fault of this software or of a device; please report it, and try execution.exchange=nccl"
            )
        self._checked_at = trainer.global_step


def divergence_message(trainer: pl.Trainer, what: str, step: int) -> str:
    """Returns the error message of a run that diverged, with the checkpoint to resume from."""
    saved = next((c.last_path for c in trainer.callbacks if isinstance(c, Checkpoint)), None)  # type: ignore[attr-defined]
    remedy = "lower hp.lr, or choose a precision with more range (bf16, fp32)"
    left = f"; resume=true goes on from the last finite checkpoint, {saved}" if saved else ""
    return f"{what} is infinite or NaN at step {step} or before, the run has diverged; {remedy}{left}"


def first_not_finite(task: Task) -> str | None:
    """Returns the name of the first weight or buffer on this rank that is not finite. Waits for the device."""
    held = {name: tensor for name, tensor in named_weights(task) if tensor.numel()}
    if not held:
        return None
    # The infinity norm allocates no tensor of the weight's size, and is NaN if one element is.
    largest = torch.stack([torch.linalg.vector_norm(tensor, torch.inf).double() for tensor in held.values()])
    finite = largest.isfinite().tolist()
    return next((name for name, is_finite in zip(held, finite, strict=True) if not is_finite), None)


def first_apart(task: Task) -> str | None:
    """Returns the name of the first parameter that ranks hold with different values; all ranks call it, and wait.

    Compares sums: where elements differ at random, the sum differs by as large a part of the norm as they do.
    """
    held = {name: parameter.detach() for name, parameter in task.network.named_parameters() if parameter.numel()}
    if not held:
        return None
    sums = torch.stack([parameter.sum(dtype=torch.float64) for parameter in held.values()])
    norms = torch.stack([torch.linalg.vector_norm(parameter).double() for parameter in held.values()])
    ends = torch.stack([sums, -sums])
    distributed.all_reduce(ends, distributed.ReduceOp.MAX)
    apart = (ends.sum(0) > APART * norms).double()
    distributed.all_reduce(apart, distributed.ReduceOp.MAX)  # the norms may differ too
    return next((name for name, is_apart in zip(held, apart.tolist(), strict=True) if is_apart), None)


def named_weights(task: Task) -> Iterator[tuple[str, Tensor]]:
    """Yields the network's floating point parameters and buffers by name, and this rank's parts of sharded tables."""
    for name, tensor in (*task.network.named_parameters(), *task.network.named_buffers()):
        if tensor.is_floating_point():
            yield name, tensor.detach()
    for prefix, module in task.network.named_modules():
        if isinstance(module, Spread):
            yield from ((f"{prefix}.{name}", tensor) for name, tensor in module.held_weights())
