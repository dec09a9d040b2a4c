"""What every datamodule shares: a loader whose waiting the clock sees."""

from collections.abc import Iterator
from typing import Any

import pytorch_lightning as pl
import torch

from src.measure.clock import Clock


class DataModule(pl.LightningDataModule):
    """Base of every datamodule: `self.metered(loader)` around the training loader lets the clock see the fetching.

    The training loader's position is part of every checkpoint. Lightning's own way would forget it between epochs.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.device: torch.device | None = None  # where the data goes without a trainer
        self.clock = Clock()
        self._training: Metered | None = None
        self._resumed: dict[str, Any] = {}

    @property
    def target_device(self) -> torch.device:
        """Where batches are wanted: where the trainer trains."""
        return self.trainer.strategy.root_device if self.trainer else self.device or torch.device("cpu")

    @property
    def rank_and_world(self) -> tuple[int, int]:
        """This rank's number and how many there are."""
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)

    def metered(self, loader: Any) -> "Metered":
        self._training = Metered(loader, self.clock)
        self._training.load_state_dict(self._resumed)
        return self._training

    def tokens(self, steps: slice) -> tuple[int, int] | None:
        """Real and processed tokens of this rank's training batches of those numbers, counted from the run's first.

        None where the data has no tokens.
        """
        return None

    def state_dict(self) -> dict[str, Any]:
        return self._training.state_dict() if self._training else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._resumed = state_dict


class Metered:
    """Marks the time inside the loader's `next` as `fetch`; otherwise the loader itself."""

    def __init__(self, loader: Any, clock: Clock) -> None:
        self.loader, self.clock = loader, clock

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        self.clock.note("other")
        for batch in self.loader:
            self.clock.note("fetch")
            yield batch
            self.clock.note("other")

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict() if hasattr(self.loader, "state_dict") else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state and hasattr(self.loader, "load_state_dict"):
            self.loader.load_state_dict(state)
