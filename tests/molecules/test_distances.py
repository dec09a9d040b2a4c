"""Distances between sets of molecules against their definitions, computed in other ways."""

import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from eden.graph import vectorize
from fcd_torch.utils import SmilesDataset, calculate_frechet_distance
from sklearn.metrics import pairwise_kernels

from src.errors import UserError
from src.molecules.distances import (
    Statistics,
    check_installed,
    chemnet,
    distances,
    graph_of,
    statistics,
    summed_features,
)
from src.system.workers import WorkerPool

pytestmark = pytest.mark.slow
CPU = torch.device("cpu")
ACIDS = [f"{'C' * carbons}C(=O)O" for carbons in range(1, 9)]
RINGS = ["c1ccccc1", "Cc1ccccc1", "c1ccncc1", "C1CCNCC1", "Oc1ccc(Cl)cc1", "c1ccsc1", "CC(C)c1ccco1"]


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2) as workers:
        yield workers


@pytest.fixture(scope="module")
def both(pool: WorkerPool) -> tuple[Statistics, Statistics]:
    return statistics(ACIDS, CPU, pool), statistics(RINGS, CPU, pool)


@pytest.mark.slow
def test_fcd_is_that_of_fcd_torch(both: tuple[Statistics, Statistics]) -> None:
    moments = []
    for smiles in (ACIDS, RINGS):
        inputs = torch.stack([torch.from_numpy(row) for row in SmilesDataset(smiles)]).transpose(1, 2)
        with torch.no_grad():
            activations = chemnet()(inputs.float()).double().numpy()
        moments += [activations.mean(0), np.cov(activations.T)]
    assert distances(*both)["fcd"] == pytest.approx(calculate_frechet_distance(*moments), rel=1e-3)


def test_nspdk_is_the_mean_kernel_over_all_pairs(both: tuple[Statistics, Statistics]) -> None:
    one, other = (vectorize(list(map(graph_of, smiles)), complexity=4, discrete=True) for smiles in (ACIDS, RINGS))
    expected = (
        pairwise_kernels(one, metric="linear").mean()
        + pairwise_kernels(other, metric="linear").mean()
        - 2 * pairwise_kernels(one, other, metric="linear").mean()
    )
    assert distances(*both)["nspdk"] == pytest.approx(expected, rel=1e-9)


def test_a_set_is_at_no_distance_from_itself(both: tuple[Statistics, Statistics]) -> None:
    assert distances(both[0], both[0]) == pytest.approx({"fcd": 0, "nspdk": 0}, abs=1e-5)


def test_one_molecule_is_too_few(pool: WorkerPool) -> None:
    with pytest.raises(UserError, match="two molecules or more"):
        statistics(["C"], CPU, pool)


@pytest.mark.slow
def test_processes_number_features_alike() -> None:
    with WorkerPool(2) as workers:
        results = [workers.submit(summed_features, RINGS).result() for _ in range(3)]
    assert all(np.array_equal(result, summed_features(RINGS)) for result in results)


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "eden", None)
    with pytest.raises(UserError, match="need the package eden; install the extra distances"):
        check_installed()
