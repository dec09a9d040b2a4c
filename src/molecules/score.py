"""Scores of generated molecules: the published metrics and comparable ones."""

from collections.abc import Iterable, Sequence, Set
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np
from jaxtyping import UInt8
from rdkit import Chem, RDLogger
from rdkit.Chem.QED import qed
from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator
from rdkit.Chem.rdMolDescriptors import CalcCrippenDescriptors
from rdkit.DataStructs import TanimotoSimilarity

from src.molecules.build import build_molecule, canonical_smiles, correct
from src.molecules.vocabulary import Vocabulary
from src.system.workers import WorkerPool

if TYPE_CHECKING:  # workers import this module and need no torch
    import torch

    from src.molecules.distances import FeaturesAhead, Statistics

CHUNK = 64
FINGERPRINTS = GetMorganGenerator(radius=2, fpSize=2048)
# Mean and standard deviation of logP, -SAS and minus the excess ring atoms over ZINC-250k, as published.
LOGP, NEGATIVE_SAS, NEGATIVE_EXCESS = (
    (2.4570953396190123, 1.434324401111988),
    (-3.0525811293166134, 0.8335207024513095),
    (-0.0485696876403053, 0.2860212110245455),
)

NodeBatch = UInt8[np.ndarray, "batch max_atoms"]
EdgeBatch = UInt8[np.ndarray, "batch max_atoms max_atoms"]
T = TypeVar("T")


@dataclass(frozen=True)
class Scores:
    """Percentages of batches. Uniqueness and novelty are relative to valid molecules, all others to generated ones.

    `nuv` (novel, unique, valid): distinct valid molecules that are not in the training set.
    """

    validity: float
    uniqueness: float
    novelty: float
    abs_uniqueness: float
    abs_novelty: float
    nuv: float


def score_batches(batches: Iterable[Sequence[str | None]], train: Set[str]) -> Scores:
    """Returns the scores of generated molecules (None: invalid) against the training set.

    Every molecule weighs alike, in batches of whatever sizes. A molecule is a repeat only within its batch.
    """
    generated = valid = distinct = novel = new = 0
    for smiles in batches:
        built = [text for text in smiles if text is not None]
        generated, valid = generated + len(smiles), valid + len(built)
        distinct += len(set(built))
        novel += sum(text not in train for text in built)
        new += len(set(built) - train)
    return Scores(
        validity=_percent(valid, generated),
        uniqueness=_percent(distinct, valid),
        novelty=_percent(novel, valid),
        abs_uniqueness=_percent(distinct, generated),
        abs_novelty=_percent(novel, generated),
        nuv=_percent(new, generated),
    )


def score(
    smiles: Sequence[str | None], published: Set[str], canonical: Set[str], batch_size: int, pool: int
) -> dict[str, float]:
    """Returns all scores of generated molecules, in percent.

    - `validity` ... `nuv`: by batches of `batch_size` (the last may be smaller) against `published`, the training set
      as the published code writes it; aromatic training molecules count as novel;
    - `canonical_novelty`, `canonical_abs_novelty`, `canonical_nuv`: the same batches against `canonical`;
    - `pool_uniqueness`, `pool_nuv`: the first `pool` molecules as one batch against `canonical`, independent of the
      batch size; absent if fewer were generated.
    """
    batches = [smiles[start : start + batch_size] for start in range(0, len(smiles), batch_size)]
    scores = asdict(score_batches(batches, published))
    against_canonical = score_batches(batches, canonical)
    for name in ("novelty", "abs_novelty", "nuv"):
        scores[f"canonical_{name}"] = getattr(against_canonical, name)
    if len(smiles) >= pool:
        pooled = score_batches([smiles[:pool]], canonical)
        scores |= {"pool_uniqueness": pooled.uniqueness, "pool_nuv": pooled.nuv}
    return scores


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


class Properties(NamedTuple):
    """Drug-likeness (QED, 0 to 1), Crippen's logP, synthetic accessibility (SAS, from 1 for easy to 10).

    `plogp`: see `penalised_logp`.
    """

    qed: float
    logp: float
    sas: float
    plogp: float


class Pending(Generic[T]):
    """Results of worker processes, in the order of submission."""

    def __init__(self, futures: list[Future[list[T]]]) -> None:
        self._futures = futures

    def result(self) -> list[T]:
        """Waits for all results and returns them. Raises the exception of a worker."""
        return [item for future in self._futures for item in future.result()]


class Scorer:
    """Worker processes that build and score molecules asynchronously; a context manager whose exit ends them.

    `published` and `canonical` are the training set in both forms (see `score`).
    """

    def __init__(
        self, vocabulary: Vocabulary, published: Set[str], canonical: Set[str], workers: int | None = None
    ) -> None:
        self.vocabulary, self.published, self.canonical = vocabulary, published, canonical
        self._pool = WorkerPool(workers)
        self.workers = self._pool.workers

    def build(self, nodes: NodeBatch, edges: EdgeBatch, correct_validity: bool = False) -> Pending[str | None]:
        """Starts building a batch of graphs: the canonical SMILES of each, or None if it is no valid molecule."""
        return Pending(
            [
                self._pool.submit(smiles_of, nodes[rows], edges[rows], self.vocabulary, correct_validity)
                for rows in _chunks(len(nodes))
            ]
        )

    def properties(self, smiles: Sequence[str]) -> Pending[Properties]:
        """Starts computing the properties of valid SMILES."""
        return Pending([self._pool.submit(properties_of, list(smiles[rows])) for rows in _chunks(len(smiles))])

    def similarities(self, pairs: Sequence[tuple[str, str]]) -> Pending[float]:
        """Starts computing the Tanimoto similarity of each pair of valid SMILES."""
        return Pending([self._pool.submit(similarities_of, list(pairs[rows])) for rows in _chunks(len(pairs))])

    def statistics(
        self, smiles: Sequence[str], device: "torch.device", ahead: "FeaturesAhead | None" = None
    ) -> "Statistics":
        """Returns what distances between sets of molecules need; see `src.molecules.distances`."""
        from src.molecules.distances import statistics

        return statistics(smiles, device, self._pool, ahead)

    def score(self, smiles: Sequence[str | None], batch_size: int, pool: int) -> dict[str, float]:
        """Returns all scores of generated molecules against the training set; see the function `score`."""
        return score(smiles, self.published, self.canonical, batch_size, pool)

    def __enter__(self) -> "Scorer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._pool.close()


def smiles_of(nodes: NodeBatch, edges: EdgeBatch, vocabulary: Vocabulary, correct_validity: bool) -> list[str | None]:
    """Returns the canonical SMILES of each graph, or None if it is no valid molecule."""
    RDLogger.DisableLog("rdApp.*")  # pyright: ignore[reportAttributeAccessIssue]
    build = correct if correct_validity else build_molecule
    molecules = [build(*graph, vocabulary) for graph in zip(nodes, edges, strict=True)]
    return [None if molecule is None else canonical_smiles(molecule) for molecule in molecules]


def properties_of(smiles: Sequence[str]) -> list[Properties]:
    """Returns the properties of valid SMILES. Raises ValueError for one that does not parse."""
    # Imported here, because reading its table of fragments takes half a second.
    from rdkit.Contrib.SA_Score.sascorer import calculateScore  # pyright: ignore[reportMissingImports]

    rated = []
    for text in smiles:
        molecule = Chem.MolFromSmiles(text)
        if molecule is None:
            raise ValueError(f"invalid SMILES: {text!r}")
        logp, _ = CalcCrippenDescriptors(molecule)
        sas = calculateScore(molecule)
        largest_ring = max(map(len, molecule.GetRingInfo().AtomRings()), default=0)
        rated.append(Properties(qed(molecule), logp, sas, penalised_logp(logp, sas, largest_ring)))
    return rated


def penalised_logp(logp: float, sas: float, largest_ring: int) -> float:
    """Returns logP - SAS - (atoms of the largest ring beyond six), normalised.

    Each of the three terms is a z-score over ZINC-250k, as MoFlow's author and GCPN report it
    (github.com/calvin-zcx/moflow). Their largest ring is of a cycle basis, which depends on the order of the atoms.
    Here it is the largest of RDKit's smallest rings; the two differ in bridged molecules, 33 of 8,000 of ZINC-250k.
    """
    terms = (logp, *LOGP), (-sas, *NEGATIVE_SAS), (-max(largest_ring - 6, 0), *NEGATIVE_EXCESS)
    return sum((value - mean) / deviation for value, mean, deviation in terms)


def similarities_of(pairs: Sequence[tuple[str, str]]) -> list[float]:
    """Returns the Tanimoto similarity of each pair of valid SMILES: Morgan fingerprints, radius 2, 2048 bits."""
    fingerprint = cache(lambda text: FINGERPRINTS.GetFingerprint(Chem.MolFromSmiles(text)))
    return [TanimotoSimilarity(fingerprint(one), fingerprint(other)) for one, other in pairs]


def _chunks(total: int) -> list[slice]:
    return [slice(start, start + CHUNK) for start in range(0, total, CHUNK)]
