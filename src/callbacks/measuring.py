"""The contract of a callback that contributes to the record."""

from abc import abstractmethod
from typing import Any

import pytorch_lightning as pl

from src.training.task import Task


class Measuring(pl.Callback):
    """Gives its figures when the run is over, also when it failed on the way."""

    # Lightning times every hook of every callback around each step, empty ones too; one that is None costs nothing.
    on_train_batch_start = None  # type: ignore[assignment]
    on_train_batch_end = None  # type: ignore[assignment]

    @abstractmethod
    def figures(self, task: Task) -> dict[str, Any]:
        """Fields of the record by name."""
