"""What generated molecules are judged by: scores against training molecules, distances from those held out."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from src.datamodules.molecules.datamodule import MoleculeDataModule
from src.datamodules.molecules.encoded import MolecularData
from src.errors import UserError
from src.molecules.distances import FeaturesAhead, Statistics, distances, workers_ahead
from src.molecules.score import Scorer
from src.molecules.vocabulary import Vocabulary
from src.training.prediction import PredictionJob, Quality

POOL = 10_000  # molecules of the scores that do not depend on the batch size
RATED = 1000  # molecules whose properties are drawn
REPORTED = {
    "validity": "valid",
    "uniqueness": "distinct among the valid ones of a batch",
    "nuv": "new, distinct and valid in a batch, as published",
    "canonical_nuv": "the same against canonical SMILES",
    "pool_uniqueness": "distinct among the valid ones of all batches",
    "pool_nuv": "new, distinct and valid of all batches",
}
DISTANCES = {"fcd": "Fréchet ChemNet distance from held-out molecules", "nspdk": "NSPDK's discrepancy from them"}


class Judge:
    """Compares generated molecules with prepared ones.

    Args:
        data: the molecules of the training.
        scorer: workers that know the training molecules.
        device: where ChemNet computes.
        ahead: of `features_ahead`, if it was called.
    """

    def __init__(
        self, data: MolecularData, scorer: Scorer, device: torch.device, ahead: FeaturesAhead | None = None
    ) -> None:
        self.data, self.scorer, self.device, self.ahead = data, scorer, device, ahead

    @cached_property
    def held_out(self) -> Statistics:
        return self._statistics(held_out_molecules(self.data))

    def distances(self, smiles: Sequence[str | None]) -> dict[str, float]:
        """Returns `fcd` and `nspdk` of the valid ones from all held-out molecules; nothing for fewer than two."""
        valid = [*filter(None, smiles)]
        return distances(self._statistics(valid), self.held_out) if len(valid) > 1 else {}

    def floor(self, count: int) -> dict[str, float]:
        """Returns `floor_fcd` and `floor_nspdk`: the distances of as many training molecules."""
        real = self.distances(floor_molecules(self.data, count))
        return {f"floor_{name}": value for name, value in real.items()}

    def scores(self, smiles: Sequence[str | None], batch_size: int) -> dict[str, float]:
        """Returns the scores of `Scorer.score`, then the distances."""
        return self.scorer.score(smiles, batch_size, POOL) | self.distances(smiles)

    def picture(self, smiles: Sequence[str | None], path: Path) -> dict[str, Path]:
        """Draws the properties of distinct valid molecules beside those of held-out ones; nothing without molecules."""
        from src.models.moflow.plots import properties_picture  # it takes a while and runs once

        held_out = [self.data.canonical[row] for row in self.data.valid_index[: 2 * RATED]]
        texts = {"generated": smiles, "held out": held_out}
        distinct = {name: list(dict.fromkeys(filter(None, group)))[:RATED] for name, group in texts.items()}
        if not all(distinct.values()):
            return {}
        properties_picture({name: self.scorer.properties(group).result() for name, group in distinct.items()}, path)
        return {"properties": path}

    def _statistics(self, smiles: Sequence[str]) -> Statistics:
        return self.scorer.statistics(smiles, self.device, self.ahead)


def held_out_molecules(data: MolecularData) -> list[str]:
    """Returns the held-out molecules whose canonical SMILES RDKit reads."""
    return [text for row in data.valid_index if (text := data.canonical[row])]


def floor_molecules(data: MolecularData, count: int) -> list[str]:
    """Returns `count` training molecules, less those that RDKit does not read: the first ones of any larger count."""
    rows = np.random.default_rng(0).permutation(data.train_index)[:count]
    return [text for row in rows if (text := data.canonical[row])]


def features_ahead(data: MolecularData, count: int) -> FeaturesAhead | None:
    """Begins to compute what `Judge.distances` and `Judge.floor(count)` need of real molecules; None on few cores."""
    workers = workers_ahead()
    return FeaturesAhead((held_out_molecules(data), floor_molecules(data, count)), workers) if workers else None


def reported(scores: dict[str, float], group: str, which: str) -> list[Quality]:
    """Returns scores as figures of a group; `which` says in words of which molecules."""
    units = {**dict.fromkeys(REPORTED, "%"), **dict.fromkeys(DISTANCES, "")}
    words = REPORTED | DISTANCES
    return [Quality(name, scores[name], units[name], f"{words[name]}, of {which}", group) for name in words
            if name in scores]  # fmt: skip


def training_molecules(job: PredictionJob, vocabulary: Vocabulary, key: str, least: int = 1) -> MolecularData:
    """Returns the configured molecules, up to the network's number of atoms; `key` asks for them.

    Raises UserError where they are not prepared, are not what the network was trained on, or fewer than `least`.
    """
    datamodule = job.datamodule()
    if not isinstance(datamodule, MoleculeDataModule):
        raise UserError(f"{key} needs the molecules of the training; give datamodule=zinc250k, qm9_molecules, ...")
    if not any(datamodule.data_dir.rglob("prepared_*/meta.json")):
        way_out = (
            f"run python prepare.py datamodule={datamodule.name}, or give data_root or the datamodule of the training"
        )
        raise UserError(f"{key} needs the molecules of the training, and {datamodule.data_dir} has none: {way_out}")
    data = datamodule.source(datamodule.data_dir)
    if data.vocabulary != vocabulary:
        raise UserError(
            f"{key}: {datamodule.name} has other elements than the network ({', '.join(vocabulary.elements)}) or "
            f"molecules of other sizes (up to {vocabulary.max_atoms} atoms); give the datamodule of the training"
        )
    if len(data.train_index) < least:
        raise UserError(f"{key} needs {least} training molecules, and {data.folder} has fewer: prepare more")
    return data
