"""Keeps in checkpoints by what a run that goes on from one knows that it is the same: its function and its data."""

from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl

from src.callbacks.checkpoint import Checkpoint
from src.training.task import Task

SAME_RUN = "same_run"  # a checkpoint's key


class SameRun(pl.Callback):
    """Saves the function that is trained, as `function_of` says, and a fingerprint of the data.

    Args:
        function: by key.
    """

    # Lightning times each hook of each callback at each step, empty ones too; a hook that is None costs nothing.
    on_train_batch_start = None  # type: ignore[assignment]
    on_train_batch_end = None  # type: ignore[assignment]

    def __init__(self, function: dict[str, Any]) -> None:
        self.function = function
        self.data: dict[str, Any] | None = None

    def setup(self, trainer: pl.Trainer, pl_module: Task, stage: str) -> None:
        saves = any(isinstance(callback, Checkpoint) for callback in trainer.callbacks)  # type: ignore[attr-defined]
        if stage == "fit" and self.data is None and saves and trainer.is_global_zero:
            self.data = trainer.datamodule.fingerprint()  # type: ignore[attr-defined]

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: Task, checkpoint: dict[str, Any]) -> None:
        checkpoint[SAME_RUN] = {"function": self.function, "data": self.data}


def of_same_run(checkpoint: Mapping[str, Any], part: str) -> dict[str, Any] | None:
    """Returns `function` or `data` as a checkpoint has it; None for one that has none."""
    same_run = checkpoint.get(SAME_RUN)
    content = same_run.get(part) if isinstance(same_run, dict) else None
    return content if isinstance(content, dict) else None
