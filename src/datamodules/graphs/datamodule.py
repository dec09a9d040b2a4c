"""Molecular graphs as batches of fixed shapes: the whole data set lives on the training device."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int

from src.datamodules.base import DataModule, Metered
from src.datamodules.graphs.data import GraphData
from src.datamodules.graphs.edges import Edges
from src.datamodules.graphs.loader import Buckets, GraphLoader, ResidentGraphs
from src.errors import UserError


class GraphDataModule(DataModule):
    """Batches of molecules with one target each (`src.batches.molecular_graphs.GraphBatch`).

    After `setup`: `data` (the molecules), `splits` (rows of `train`, `val`, `test`, `all`), `mean` and `std` (of the
    target over the training split, NaN where it is unknown), `unit` (of the target, "" where nobody said).

    Args:
        name: as records call the data set.
        source: makes or opens the data set in a folder, with progress (`_partial_: true` in the config).
        data_dir: that folder.
        batch_size: molecules per device and step.
        seed: of the order of the training molecules.
        task: the target; None where molecules are only to be predicted.
        edges: which atoms exchange messages; the bonds if not given.
        predict: the split that `predict_dataloader` goes over.
    """

    def __init__(
        self,
        name: str,
        source: Callable[..., GraphData],
        data_dir: str,
        batch_size: int,
        seed: int,
        task: str | None = None,
        edges: Edges | None = None,
        predict: str = "test",
    ) -> None:
        super().__init__(name)
        self.source, self.data_dir = source, Path(data_dir)
        self.batch_size, self.seed = batch_size, seed
        self.task, self.edges, self.predict = task, edges or Edges(), predict
        self.data: GraphData | None = None
        self.splits: dict[str, Int[np.ndarray, " rows"]] = {}
        self.mean = self.std = float("nan")
        self.unit = ""
        self._graphs: ResidentGraphs | None = None

    def prepare_data(self) -> None:
        data = self.source(self.data_dir)
        data.target(self.task)
        left_out = len(data.names) - len(self._usable(data)["all"])
        if left_out:
            print(f"{left_out} molecules without bonds are left out; datamodule.edges.kind=radius would take them")

    def setup(self, stage: str) -> None:
        if self._graphs is not None:
            return
        self.data = data = self.source(self.data_dir)
        targets = data.target(self.task)
        self.splits = self._usable(data)
        trained = targets[self.splits["train"]].astype(np.float32).astype(np.float64)
        if len(trained) > 1:
            self.mean, self.std = float(trained.mean()), float(trained.std(ddof=1))
        self.unit = data.units.get(self.task or "", "")
        self._graphs = ResidentGraphs(data.arrays, self.edges.of(data.arrays), targets, self.target_device)

    def _usable(self, data: GraphData) -> dict[str, Int[np.ndarray, " rows"]]:
        """The splits without molecules that have no edge to send a message over. Raises UserError if there are any."""
        lonely = (data.arrays.num_bonds == 0) & (data.arrays.num_atoms > 1) & (self.edges.kind == "bonds")
        if lonely.any() and not data.skip_bad:
            raise UserError(
                f"{data.names[int(lonely.argmax())]} has no bonds: give datamodule.edges.kind=radius or full, or set "
                f"skip_bad=true to leave such molecules out"
            )
        return {name: rows[~lonely[rows]] for name, rows in data.splits.items()}

    def loader(self, split: str, *, shuffle: bool = False, batch_size: int | None = None) -> GraphLoader:
        """Batches of a split (`train`, `val`, `test` or `all`). Raises UserError for another one."""
        assert self._graphs is not None
        if split not in self.splits:
            raise UserError(f"datamodule.predict={split}: there is no such split; choose from {', '.join(self.splits)}")
        batch_size, (rank, world_size) = batch_size or self.batch_size, self.rank_and_world
        return GraphLoader(
            self._graphs,
            Buckets(self._graphs.num_nodes, self._graphs.num_edges, batch_size),
            torch.from_numpy(np.ascontiguousarray(self.splits[split])),
            batch_size,
            shuffle=shuffle,
            seed=self.seed,
            rank=rank,
            world_size=world_size,
        )

    def train_dataloader(self) -> Metered:
        self._check_trainable()
        return self.metered(self.loader("train", shuffle=True))

    def val_dataloader(self) -> GraphLoader:
        return self.loader("val")

    def test_dataloader(self) -> GraphLoader:
        return self.loader("test")

    def predict_dataloader(self) -> GraphLoader:
        return self.loader(self.predict)

    def _check_trainable(self) -> None:
        assert self.data is not None
        if self.task is None:
            raise UserError(f"datamodule.task has no value; give the target to train on: {', '.join(self.data.units)}")
        rows, targets = self.splits["train"], self.data.target(self.task)
        if len(rows) < 2:
            raise UserError(f"{self.data.folder} has {len(rows)} molecules to train on: give more, or hold out less")
        unknown = ~np.isfinite(targets[rows])
        if unknown.any():
            name = self.data.names[rows[unknown.argmax()]]
            raise UserError(f"{name} has no value of datamodule.task={self.task}: give one for every molecule")
        if self.std == 0:
            raise UserError(f"datamodule.task={self.task} is the same for every molecule: there is nothing to learn")
