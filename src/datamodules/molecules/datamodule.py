"""Molecular graphs as batches: the whole data set lives on the training device as uint8."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from src.datamodules.base import DataModule, Metered
from src.datamodules.molecules.encoded import MolecularData
from src.datamodules.resident import ResidentLoader


class MoleculeDataModule(DataModule):
    """Batches of (nodes uint8 [batch, atoms], edges uint8 [batch, atoms, atoms]) from a prepared molecular data set.

    Args:
        name: as records call the data set.
        source: makes or opens the data set in a folder, with progress (`_partial_: true` in the config).
        data_dir: that folder.
        batch_size: molecules per device and step.
        seed: of the order of the training molecules.
    """

    def __init__(
        self, name: str, source: Callable[..., MolecularData], data_dir: str, batch_size: int, seed: int
    ) -> None:
        super().__init__(name)
        self.source, self.data_dir = source, Path(data_dir)
        self.batch_size, self.seed = batch_size, seed
        self.data: MolecularData | None = None
        self.tensors: tuple[Tensor, Tensor] | None = None

    def prepare_data(self) -> None:
        self.source(self.data_dir)

    def setup(self, stage: str) -> None:
        if self.tensors is None:
            self.data = self.source(self.data_dir)
            self.tensors = (
                to_device(self.data.nodes, self.target_device),
                to_device(self.data.edges, self.target_device),
            )

    def train_dataloader(self) -> Metered:
        return self.metered(self._loader(training=True))

    def val_dataloader(self) -> ResidentLoader:
        return self._loader(training=False)

    test_dataloader = val_dataloader

    def _loader(self, training: bool) -> ResidentLoader:
        assert self.data is not None and self.tensors is not None
        index = self.data.train_index if training else self.data.valid_index
        rank, world_size = self.rank_and_world
        return ResidentLoader(
            self.tensors,
            torch.from_numpy(np.ascontiguousarray(index)),
            self.batch_size,
            shuffle=training,
            drop_last=training,
            seed=self.seed,
            rank=rank,
            world_size=world_size,
        )


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """A memory-mapped array as a tensor on the device; on the CPU it is read into memory once."""
    return torch.from_numpy(np.array(array)).to(device)
