"""What every datamodule shares: a loader whose waiting the clock sees."""

from collections.abc import Iterator
from typing import Any

import pytorch_lightning as pl

from src.measure.clock import Clock


class DataModule(pl.LightningDataModule):
    """Base of every datamodule: `self.metered(loader)` around the training loader lets the clock see the fetching."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.clock = Clock()

    def metered(self, loader: Any) -> "Metered":
        return Metered(loader, self.clock)


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
        if hasattr(self.loader, "load_state_dict"):
            self.loader.load_state_dict(state)
