"""The base class of callbacks that contribute to the record."""

from abc import abstractmethod
from typing import Any

import pytorch_lightning as pl

from src.training.task import Task


class Measuring(pl.Callback):
    """A callback whose `figures` are read at the end of a run, also of a failed one."""

    # Lightning times each hook of each callback at each step, empty ones too; a hook that is None costs nothing.
    on_train_batch_start = None  # type: ignore[assignment]
    on_train_batch_end = None  # type: ignore[assignment]

    @abstractmethod
    def figures(self, task: Task) -> dict[str, Any]:
        """Returns fields of the record by name. With several ranks every rank calls it."""
