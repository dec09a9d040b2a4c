"""Distances between two sets of molecules, as papers on molecule generation report them.

- FCD, the Fréchet ChemNet distance (Preuer et al. 2018): between normal distributions fitted to ChemNet's activations,
  with the network of the package fcd-torch.
- NSPDK: the squared maximum mean discrepancy under the neighbourhood subgraph pairwise distance kernel (Costa and De
  Grave 2010) of the package eden-kernel, on graphs and with options as in GDSS (Jo et al. 2022). Its kernel is a scalar
  product of normalised features, so the mean over all pairs is the product of mean features.
"""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np
from jaxtyping import Float
from rdkit import Chem

from src.errors import UserError
from src.system.workers import WorkerPool, cpu_count

if TYPE_CHECKING:  # workers import this module, and NSPDK's features need no torch
    import torch
    from torch import nn

ALPHABET = 35  # characters that ChemNet knows; its inputs are one-hot numbers over that
CHUNK = 128  # molecules of a worker's call and of a pass through ChemNet
PAIR_RADIUS = 4  # EDeN's `complexity`: largest radius and distance of subgraphs
MOST_AHEAD = 512  # chunks: their features take 256 MiB
CORES_AHEAD = 4  # of a rank, one of which may work ahead
NICENESS = 19  # the lowest priority: they run on cores that nothing else wants
WORKERS_AHEAD = 8  # at most; each takes about 200 MiB


class Statistics(NamedTuple):
    """What the distances need of a set of molecules."""

    mean: Float[np.ndarray, " activations"]
    covariance: Float[np.ndarray, "activations activations"]
    features: Float[np.ndarray, " features"]  # means of NSPDK's


class FeaturesAhead:
    """NSPDK's features of real molecules, computed while a network trains, by processes of the lowest priority.

    Holds 0.5 MiB for each chunk of 128 molecules until `take` returns them. `close` kills the processes.

    Args:
        sets: sets of valid SMILES, each as `statistics` will get it; 65,536 molecules at most are computed ahead.
        workers: number of processes, as of `workers_ahead`.
    """

    def __init__(self, sets: Iterable[Sequence[str]], workers: int) -> None:
        self._pool = WorkerPool(workers, niceness=NICENESS)
        chunks = [chunk for smiles in sets for chunk in chunks_of(smiles)]
        self._futures = {chunk: self._pool.submit(summed_features, chunk) for chunk in chunks[:MOST_AHEAD]}

    def take(self, chunk: tuple[str, ...]) -> Future[np.ndarray] | None:
        """Returns the future features of a chunk, once; None if they must be computed elsewhere.

        That is so for chunks of no set, for those that no process has begun, which are cancelled, and for failed ones.
        """
        future = self._futures.pop(chunk, None)
        if future is None or future.cancel() or (future.done() and future.exception() is not None):
            return None
        return future

    def close(self) -> None:
        self._pool.close()


def workers_ahead() -> int:
    """Returns how many processes may work ahead: a quarter of the cores, at most 8; 0 for less than 4 cores a rank."""
    cores, ranks_here = cpu_count(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return min(cores // CORES_AHEAD, WORKERS_AHEAD) if cores >= CORES_AHEAD * ranks_here else 0


def statistics(
    smiles: Sequence[str], device: "torch.device", pool: WorkerPool, ahead: FeaturesAhead | None = None
) -> Statistics:
    """Returns the statistics of valid SMILES, with features that were computed ahead where there are any.

    Raises UserError for fewer than two molecules, and where fcd-torch or eden-kernel is not installed.
    """
    import torch

    if len(smiles) < 2:
        raise UserError(f"distances need two molecules or more, and there are {len(smiles)}")
    network = chemnet().to(device)
    chunks = chunks_of(smiles)
    encoded = [pool.submit(one_hot, chunk) for chunk in chunks]
    features = [(ahead and ahead.take(chunk)) or pool.submit(summed_features, chunk) for chunk in chunks]
    with torch.inference_mode():
        parts = [network(torch.from_numpy(future.result()).to(device).float() / ALPHABET).cpu() for future in encoded]
    activations = torch.cat(parts).double().numpy()
    sums = np.sum([future.result() for future in features], 0)
    return Statistics(activations.mean(0), np.cov(activations.T), sums / len(smiles))


def chunks_of(smiles: Sequence[str]) -> list[tuple[str, ...]]:
    return [tuple(smiles[begin : begin + CHUNK]) for begin in range(0, len(smiles), CHUNK)]


def distances(one: Statistics, other: Statistics) -> dict[str, float]:
    """Returns `fcd` and `nspdk` between two sets of molecules."""
    return {"fcd": frechet(one, other), "nspdk": float(np.square(one.features - other.features).sum())}


def frechet(one: Statistics, other: Statistics) -> float:
    """Returns |m - n|^2 + tr(S + T - 2 (S T)^(1/2)) for means m, n and covariances S, T."""
    values, vectors = np.linalg.eigh(one.covariance)
    root = (vectors * np.sqrt(values.clip(min=0))) @ vectors.T
    # S T has the eigenvalues of S^(1/2) T S^(1/2), which is symmetric.
    shared = np.sqrt(np.linalg.eigvalsh(root @ other.covariance @ root).clip(min=0)).sum()
    apart = np.square(one.mean - other.mean).sum()
    return float(apart + np.trace(one.covariance) + np.trace(other.covariance) - 2 * shared)


def chemnet() -> "nn.Module":
    """Returns ChemNet up to its last hidden layer: [molecules, 35, 350] to [molecules, 512]."""
    package = needed("fcd_torch")
    import torch
    from fcd_torch.utils import load_imported_model  # pyright: ignore[reportMissingImports]

    weights = Path(package.__file__).with_name("ChemNet_v0.13_pretrained.pt")
    return load_imported_model(torch.load(weights, weights_only=True)).eval()


def one_hot(smiles: Sequence[str]) -> np.ndarray:
    """Returns ChemNet's inputs for valid SMILES, [molecules, 35, 350], 0 or 1."""
    needed("fcd_torch")
    from fcd_torch.utils import SmilesDataset  # pyright: ignore[reportMissingImports]

    rows = SmilesDataset(smiles)
    inputs = np.stack([rows[number] for number in range(len(rows))])
    return (inputs > 0).astype(np.uint8).transpose(0, 2, 1)


def summed_features(smiles: Sequence[str]) -> Float[np.ndarray, " features"]:
    """Returns the sum of NSPDK's features over valid SMILES."""
    needed("eden")
    from eden.graph import vectorize  # pyright: ignore[reportMissingImports]

    features: Any = vectorize([graph_of(text) for text in smiles], complexity=PAIR_RADIUS, discrete=True)
    return np.asarray(features.sum(0)).ravel()


def graph_of(smiles: str) -> Any:
    """Returns GDSS's graph of a molecule: elements, and bond orders rounded down, as labels.

    An element is a checksum of its symbol. EDeN numbers features by Python's hash, which differs between processes for
    strings but not for integers.
    """
    import networkx  # an optional package, as the others

    molecule, graph = Chem.MolFromSmiles(smiles), networkx.Graph()
    if molecule is None:
        raise ValueError(f"invalid SMILES: {smiles!r}")
    for atom in molecule.GetAtoms():
        graph.add_node(atom.GetIdx(), label=crc32(atom.GetSymbol().encode()))
    for bond in molecule.GetBonds():
        graph.add_edge(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx(), label=int(bond.GetBondTypeAsDouble()))
    return graph


def check_installed() -> None:
    """Raises UserError where fcd-torch or eden-kernel is not installed."""
    needed("fcd_torch")
    needed("eden")


def needed(package: str) -> Any:
    """Imports an optional package. Raises UserError where it is not installed."""
    try:
        return import_module(package)
    except ImportError as error:
        raise UserError(
            f"FCD and NSPDK need the package {error.name}; install the extra distances, or leave "
            "model.task.distances and model.predict.judge false"
        ) from None
