"""Molecular graphs as batches; the whole data set is kept on the training device as uint8."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from src.config.ranges import Count, Seed
from src.datamodules.base import SplitDataModule
from src.datamodules.fingerprint import CONTENT, hash_of
from src.datamodules.molecules.encoded import MolecularData
from src.datamodules.prepared import sums_of
from src.datamodules.resident import ResidentLoader
from src.system.read_ahead import ReadAhead


def tensors_of(data: MolecularData) -> tuple[Tensor, Tensor]:
    """Returns nodes and edges in memory: a tensor of a memory-mapped array would share the mapping."""
    nodes, edges = (torch.from_numpy(np.array(array)) for array in (data.nodes, data.edges))
    return nodes, edges


class MoleculeLoader(ResidentLoader):
    """Gives a rank without a molecule of an evaluation one empty batch: Lightning refuses a loader without any."""

    def __len__(self) -> int:
        return super().__len__() or int(not self.drop_last and len(self.index) > 0)


class MoleculeDataModule(SplitDataModule):
    """Batches of (nodes uint8 [batch, atoms], edges uint8 [batch, atoms, atoms]) from a prepared molecular data set.

    Args:
        name: of the data set, in records.
        source: prepares or reads the data set in a folder (`_partial_: true` in the config).
        data_dir: that folder.
        batch_size: molecules of each rank in a batch.
        seed: of the order of the training molecules.
    """

    def __init__(
        self, name: str, source: Callable[..., MolecularData], data_dir: str, batch_size: Count, seed: Seed
    ) -> None:
        super().__init__(name, batch_size, seed, predict="val")
        self.source, self.data_dir = source, Path(data_dir)
        self.data: MolecularData | None = None
        self.tensors: tuple[Tensor, Tensor] | None = None
        self._ahead: ReadAhead[tuple[MolecularData, tuple[Tensor, Tensor]]] | None = None
        self._host_tensors: tuple[Tensor, Tensor] | None = None

    def read_ahead(self) -> None:
        def read() -> tuple[MolecularData, tuple[Tensor, Tensor]]:
            data = self.source(self.data_dir)
            return data, tensors_of(data)

        self._ahead = ReadAhead(read)

    def _read(self) -> MolecularData:
        """Returns the data set, which the thread may have read."""
        read = self._ahead and self._ahead.value()
        if read is None:
            return self.source(self.data_dir)
        data, self._host_tensors = read
        return data

    def prepare_data(self) -> None:
        self.data = self._read()

    def fingerprint(self) -> dict[str, Any]:
        data = self.data or self.source(self.data_dir)
        splits = {"train": data.train_index, "val": data.valid_index}
        content = hash_of([sums_of(data.folder), *splits.values()])
        return {name: len(rows) for name, rows in splits.items()} | {CONTENT: content}

    def setup(self, stage: str) -> None:
        if self.tensors is None:
            self.data = self.data or self._read()
            if self.data.reading is not None:
                self.tell(self.data.reading)
            self.splits = {"train": self.data.train_index, "val": self.data.valid_index}
            nodes, edges = self._host_tensors or tensors_of(self.data)
            self.tensors = nodes.to(self.target_device), edges.to(self.target_device)
            self._host_tensors = None

    def rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the molecules of these row numbers as a batch."""
        assert self.tensors is not None
        nodes, edges = (tensor[rows.to(tensor.device)] for tensor in self.tensors)
        return nodes, edges

    def loader(self, split: str, /, *, train: bool = False, batch_size: int | None = None) -> MoleculeLoader:
        assert self.tensors is not None
        self.check_split(split)
        index = torch.from_numpy(np.ascontiguousarray(self.splits[split]))
        size = batch_size or self.test_batch_size
        return MoleculeLoader(self.tensors, index, size, shuffle=train, drop_last=train, **self.order)
