"""Molecular graphs as batches of fixed shapes; the whole data set is kept on the training device."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int

from src.config.ranges import Count, Seed
from src.datamodules.base import Metered, SplitDataModule
from src.datamodules.fingerprint import CONTENT, hash_of
from src.datamodules.graphs.data import ELEMENTS, GraphData, number_of, symbol_of
from src.datamodules.graphs.edges import Edges
from src.datamodules.graphs.loader import Buckets, GraphLoader, ResidentGraphs
from src.datamodules.graphs.periodic import image_neighbours
from src.datamodules.prepared import LEAVE_OUT, sums_of
from src.errors import UserError
from src.measure.reading import EXAMPLES, Reading

NO_BONDS = "has no bonds: give datamodule.edges.kind=radius or full"
IN_BOHR = " (or datamodule.source.length_unit=bohr if its coordinates are)"
ACROSS = (
    "has neighbours across the border of its periodic box, which no edge joins: give datamodule.edges.kind=bonds, "
    'pbc="F F F" in the file'
)


class GraphDataModule(SplitDataModule):
    """Batches of molecules with one target each (`src.batches.molecular_graphs.GraphBatch`).

    After `setup`: `data` (the molecules), `splits` (rows of `train`, `val`, `test`, `all`), `mean` and `std` (of the
    target over the training split, NaN if unknown), `unit` (of the target, "" if unknown).

    Args:
        name, batch_size, seed, predict: as for SplitDataModule.
        source: prepares or reads the data set in a folder (`_partial_: true` in the config).
        data_dir: that folder.
        task: the target; None if molecules are only to be predicted.
        unit: of the target, where the data do not know it.
        elements: symbols that the atoms may have; those of QM9 if the data have no others, else those of the data.
        edges: which atoms exchange messages; the bonds if not given.
    """

    test_split = "test"
    splits: dict[str, Int[np.ndarray, " rows"]]

    def __init__(
        self,
        name: str,
        source: Callable[..., GraphData],
        data_dir: str,
        batch_size: Count,
        seed: Seed,
        task: str | None = None,
        edges: Edges | None = None,
        predict: str = "test",
        unit: str | None = None,
        elements: Sequence[str] | None = None,
    ) -> None:
        super().__init__(name, batch_size, seed, predict)
        self.source, self.data_dir = source, Path(data_dir)
        self.task, self.edges = task, edges or Edges()
        self.data: GraphData | None = None
        self.mean = self.std = float("nan")
        self.unit, self.given_unit = "", unit
        self.elements = None if elements is None else list(elements)
        self._graphs: ResidentGraphs | None = None

    def prepare_data(self) -> None:
        self.data = data = self.source(self.data_dir)
        data.target(self.task)
        splits, reading = self._usable(data)
        left_out = len(data.names) - len(splits["all"])
        if left_out and reading is None:  # of published molecules; the report of others has them
            print(f"{left_out} molecules without bonds are left out; datamodule.edges.kind=radius would include them")

    def fingerprint(self) -> dict[str, Any]:
        data = self.data or self.source(self.data_dir)
        splits = {name: rows for name, rows in self._usable(data)[0].items() if name != "all"}
        content = hash_of([sums_of(data.folder), *splits.values()])
        return {name: len(rows) for name, rows in splits.items()} | {CONTENT: content}

    def setup(self, stage: str) -> None:
        if self._graphs is not None:
            return
        self.data = data = self.data or self.source(self.data_dir)
        targets = data.target(self.task)
        self.splits, reading = self._usable(data)
        if reading is not None:
            self.tell(reading)
        trained = targets[self.splits["train"]].astype(np.float32).astype(np.float64)
        if len(trained) > 1:
            self.mean, self.std = float(trained.mean()), float(trained.std(ddof=1))
        self.unit = self._unit_in(data)
        numbers = self._numbers(data)
        self.elements = [symbol_of(number) for number in numbers]
        edges = self.edges.of(data.arrays)
        self._graphs = ResidentGraphs(data.arrays, edges, targets, self.target_device, numbers)

    def _unit_in(self, data: GraphData) -> str:
        """Returns the target's unit. Raises UserError where another is given than the data have."""
        unit = data.units.get(self.task or "", "")
        if unit and self.given_unit not in (None, unit):
            raise UserError(f"datamodule.unit={self.given_unit}: {self.task} of {self.name} is in {unit}")
        return unit or self.given_unit or ""

    def _numbers(self, data: GraphData) -> list[int]:
        """Returns the atomic numbers that atoms may have, ascending. Raises UserError for an atom of another one."""
        there = set(np.unique(data.arrays.numbers).tolist())
        published = sorted(ELEMENTS.values())
        if self.elements is None:
            return published if there <= set(published) else sorted(there)
        allowed = sorted({number_of(symbol) for symbol in self.elements})
        if foreign := sorted(there - set(allowed)):
            atom = int((data.arrays.numbers == foreign[0]).argmax())
            name = data.names[int(np.searchsorted(data.arrays.num_atoms.cumsum(), atom, side="right"))]
            raise UserError(
                f"{name} has the element {symbol_of(foreign[0])}; known are {', '.join(self.elements)}: leave it out, "
                "or train with molecules that have it"
            )
        return allowed

    def _usable(self, data: GraphData) -> tuple[dict[str, Int[np.ndarray, " rows"]], Reading | None]:
        """Returns the splits without molecules that have no edges, wrong ones, or in all but `all` no target.

        The report, of a person's own file, has them among the dropped ones. Raises UserError for a molecule without
        edges, or with wrong ones, unless `skip_bad` is set.
        """
        reasons = {
            NO_BONDS: (data.arrays.num_bonds == 0) & (data.arrays.num_atoms > 1) & (self.edges.kind == "bonds"),
            ACROSS: self._has_images(data),
        }
        for reason, rows in reasons.items():
            if rows.any() and not data.skip_bad:
                hint = IN_BOHR if reason is NO_BONDS and data.reading is not None else ""
                raise UserError(f"{data.names[int(rows.argmax())]} {reason}{hint}, or {LEAVE_OUT}")
        left_out = np.logical_or.reduce(list(reasons.values()))
        missing = np.isnan(data.target(self.task)) & ~left_out
        missing &= data.skip_bad and not missing[~left_out].all()
        splits = {name: rows[~(left_out | (missing & (name != "all")))[rows]] for name, rows in data.splits.items()}
        if data.reading is None:
            return splits, None
        report = Reading.of_dict(asdict(data.reading))
        reasons[f"has no value of {self.task}, and is only predicted"] = missing
        for reason, rows in reasons.items():
            for row in np.flatnonzero(rows).tolist():
                report.drop(reason, data.names[row])
                report.changed_items -= data.changed is not None and bool(data.changed[row])
        report.splits = {name: len(splits[name]) for name in report.splits}
        return splits, report

    def _has_images(self, data: GraphData) -> Bool[np.ndarray, " molecules"]:
        """Returns which periodic molecules have neighbours across the border of their box, which edges would miss."""
        rows = np.zeros(len(data.names), bool)
        if data.boxes is None or self.edges.kind == "bonds":
            return rows
        ends = np.cumsum(data.arrays.num_atoms)
        cutoff = self.edges.cutoff if self.edges.kind == "radius" else None
        for row in np.flatnonzero(data.boxes.any((1, 2))).tolist():
            positions = data.arrays.positions[ends[row] - data.arrays.num_atoms[row] : ends[row]].astype(np.float64)
            rows[row] = image_neighbours(positions, data.boxes[row], cutoff) is not None
            if rows[row] and not data.skip_bad:
                break
        return rows

    def loader(self, split: str, /, *, train: bool = False, batch_size: int | None = None) -> GraphLoader:
        """Batches of a split (`train`, `val`, `test` or `all`); `train` shuffles. Raises UserError for other splits."""
        assert self._graphs is not None
        self.check_split(split)
        size = batch_size or self.test_batch_size
        buckets = Buckets(self._graphs.num_nodes, self._graphs.num_edges, size)
        index = torch.from_numpy(np.ascontiguousarray(self.splits[split]))
        return GraphLoader(self._graphs, buckets, index, size, shuffle=train, **self.order)

    def train_dataloader(self) -> Metered:
        self._check_trainable()
        return super().train_dataloader()

    def _check_trainable(self) -> None:
        assert self.data is not None
        if self.task is None:
            raise UserError(f"datamodule.task is not set; give the target to train on: {', '.join(self.data.units)}")
        rows, targets = self.splits["train"], self.data.target(self.task)
        if len(rows) < 2:
            raise UserError(f"{self.data.folder} has {len(rows)} molecules to train on: give more, or hold out less")
        held = np.concatenate([self.splits[name] for name in ("train", "val", "test")])
        if (unknown := np.sort(held[~np.isfinite(targets[held])])).size:
            names = ", ".join(self.data.names[row] for row in unknown[:EXAMPLES])
            raise UserError(
                f"{len(unknown):,} of {len(held):,} molecules have no value of datamodule.task={self.task}: {names}"
                f"{' and others' if len(unknown) > EXAMPLES else ''}; give one of each, or {LEAVE_OUT}"
            )
        if self.std == 0:
            raise UserError(f"datamodule.task={self.task} is the same for every molecule: there is nothing to learn")
