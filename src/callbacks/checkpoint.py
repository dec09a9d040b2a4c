"""Checkpoints: last and best, written atomically, counted as their own phase."""

import os
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Checkpoint as BaseCheckpoint
from pytorch_lightning.plugins.io import TorchCheckpointIO

from src.errors import UserError
from src.models.task import Task


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the target and renames, so that a full disk or a kill leaves the old file or none."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        target = Path(path)
        partial = target.with_name(f".{target.name}.partial")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            torch.save(checkpoint, partial)
            os.replace(partial, target)
        except (OSError, RuntimeError) as error:
            partial.unlink(missing_ok=True)
            reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
            raise UserError(
                f"{target}: cannot write the checkpoint ({reason}); free space or set output_root"
            ) from error


class Checkpoint(BaseCheckpoint):
    """`last.ckpt` always, `best.ckpt` when an evaluation is the best so far.

    Args:
        dirpath: folder of the checkpoints.
        monitor, mode: the metric of the evaluations, and whether "max" or "min" of it is best.
        every_n_epochs, every_n_steps: how often `last.ckpt` is renewed; it also is at the end of training.
    """

    def __init__(
        self, dirpath: str, monitor: str, mode: str, every_n_epochs: int = 1, every_n_steps: int | None = None
    ) -> None:
        self.folder = Path(dirpath)
        self.monitor, self.mode = monitor, mode
        self.every_n_epochs, self.every_n_steps = every_n_epochs, every_n_steps
        self.best: float | None = None
        self._saved_at = -1

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Task, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.every_n_steps and trainer.global_step % self.every_n_steps == 0:
            self._save_last(trainer, pl_module)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        value = pl_module.metrics.get(self.monitor)
        if value is None or value != value or trainer.sanity_checking:
            return
        if self.best is None or (value > self.best if self.mode == "max" else value < self.best):
            self.best = value
            self._save(trainer, pl_module, "best")

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        if (trainer.current_epoch + 1) % self.every_n_epochs == 0:
            self._save_last(trainer, pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self._save_last(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best = state_dict["best"]

    def _save_last(self, trainer: pl.Trainer, task: Task) -> None:
        if self._saved_at != trainer.global_step:
            self._saved_at = trainer.global_step
            self._save(trainer, task, "last")

    def _save(self, trainer: pl.Trainer, task: Task, name: str) -> None:
        with task.clock.within("checkpoint"):
            trainer.save_checkpoint(self.folder / f"{name}.ckpt")
