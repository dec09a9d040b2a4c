"""Distances between sets of molecules against their definitions, computed in other ways."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import torch
from eden.graph import vectorize
from fcd_torch.utils import SmilesDataset, calculate_frechet_distance
from sklearn.metrics import pairwise_kernels

from src.errors import UserError
from src.molecules import distances as module
from src.molecules.distances import (
    FeaturesAhead,
    Statistics,
    check_installed,
    chemnet,
    distances,
    graph_of,
    statistics,
    summed_features,
    workers_ahead,
)
from src.system.workers import WorkerPool

pytestmark = pytest.mark.slow
CPU = torch.device("cpu")
ACIDS = [f"{'C' * carbons}C(=O)O" for carbons in range(1, 9)]
RINGS = ["c1ccccc1", "Cc1ccccc1", "c1ccncc1", "C1CCNCC1", "Oc1ccc(Cl)cc1", "c1ccsc1", "CC(C)c1ccco1"]


class Counted(WorkerPool):
    """Counts the chunks whose features it was asked for."""

    chunks = 0

    def submit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        self.chunks += function is summed_features
        return super().submit(function, *args, **kwargs)


@pytest.fixture(scope="module")
def pool() -> Iterator[Counted]:
    workers = Counted(2)
    yield workers
    workers.close()


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


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> Iterator[FeaturesAhead]:
    """Features of two sets of three chunks, computed by one process; at the usual priority, so that it has a core."""
    monkeypatch.setattr(module, "CHUNK", 3)
    monkeypatch.setattr(module, "NICENESS", 0)
    features = FeaturesAhead([ACIDS, RINGS], 1)
    yield features
    features.close()


def assert_equal(one: Statistics, other: Statistics) -> None:
    for values, others in zip(one, other, strict=True):
        np.testing.assert_array_equal(values, others)


def test_features_computed_ahead_are_taken_with_the_same_bits(ahead: FeaturesAhead, pool: Counted) -> None:
    """Those of a set, and of a part of it less its last chunk; once, and none of other molecules."""
    for future in ahead._futures.values():
        future.result()
    for smiles, computed in ((ACIDS, 0), (RINGS[:5], 1), (ACIDS, 3), (RINGS[1:], 2)):
        pool.chunks = 0
        result = statistics(smiles, CPU, pool, ahead)
        assert pool.chunks == computed
        assert_equal(result, statistics(smiles, CPU, pool))


def test_chunks_that_are_not_begun_are_computed_by_the_other_pool(ahead: FeaturesAhead, pool: Counted) -> None:
    """The only process imports packages, for its first chunk, when the others are asked for."""
    pool.chunks = 0
    result = statistics(ACIDS, CPU, pool, ahead)
    assert pool.chunks == 2
    assert_equal(result, statistics(ACIDS, CPU, pool))


def test_chunks_of_a_process_that_died_are_computed_by_the_other_pool(ahead: FeaturesAhead, pool: Counted) -> None:
    ahead._pool._processes[0].kill()
    for future in ahead._futures.values():
        assert future.exception() is not None
    pool.chunks = 0
    statistics(RINGS, CPU, pool, ahead)
    assert pool.chunks == 3


def test_no_more_chunks_are_held_than_allowed(ahead: FeaturesAhead, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_AHEAD", 4)
    features = FeaturesAhead([ACIDS, RINGS], 1)
    features.close()
    assert [*features._futures] == [*ahead._futures][:4]


@pytest.mark.parametrize(
    ("cores", "ranks", "workers"), [(3, 1, 0), (4, 1, 1), (16, 1, 4), (16, 4, 4), (16, 8, 0), (128, 8, 8)]
)
def test_few_cores_work_ahead_and_of_few_none(
    cores: int, ranks: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "cpu_count", lambda: cores)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    assert workers_ahead() == workers
