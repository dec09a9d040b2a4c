"""Copies of the tables in half precision, which training reads in the tables' place and keeps equal to them."""

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from src.batches.clicks import EmbeddingTable
from src.gpu import triton_helpers, weight_copies
from src.gpu.weight_copies import WeightCopies
from src.models.dlrm.embeddings import Pending, Rule
from src.models.dlrm.fast import interaction, tables
from src.models.dlrm.fast.embeddings import FastEmbeddings
from tests.support.dlrm_kernels import some_ids
from tests.support.kernel_differences import random

TABLES = tuple(EmbeddingTable(f"cat_{number}.bin", rows) for number, rows in enumerate((3, 40, 1, 7)))
BATCH, DIM = 20, 8
HALF = torch.float16


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_helpers, "devices", {"cpu"})


def made(optimizer: Rule = "sgd") -> FastEmbeddings:
    torch.manual_seed(0)
    return FastEmbeddings(TABLES, DIM, optimizer)


def step(embeddings: FastEmbeddings, seed: int, found_inf: float = 0) -> Tensor:
    """Trains on one batch; returns its features."""
    ids = torch.cat([some_ids(table, BATCH).roll(seed) for table in TABLES])
    dense = random(BATCH, DIM, seed=seed).to(HALF).requires_grad_()
    features = interaction.gathered_features(dense, embeddings, ids)
    features.backward(random(*features.shape, seed=seed + 1).to(HALF))
    embeddings.update(torch.tensor(0.5), torch.tensor(float(found_inf)))
    return features.detach()


def copies_of(embeddings: FastEmbeddings) -> list[Tensor]:
    kept = weight_copies.kept()
    return [kept[weight.data_ptr()] for weight in embeddings.weights]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter multiplies with numpy
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_training_with_copies_is_that_without(optimizer: Rule) -> None:
    """To the bit, through a step that is skipped and a change of the tables by someone else."""
    ours, plain = made(optimizer), made(optimizer)
    copies = WeightCopies()
    for seed in range(5):
        copies.refresh()
        with copies.active():
            features = step(ours, seed, found_inf=seed == 2)
            assert all(torch.equal(c, w.to(HALF)) for c, w in zip(copies_of(ours), ours.weights, strict=True))
        assert torch.equal(features, step(plain, seed, found_inf=seed == 2))
        assert all(map(torch.equal, ours.weights, plain.weights))
        if seed == 3:
            with torch.no_grad():
                for embeddings in (ours, plain):
                    embeddings.weights[1].mul_(2)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_rows_are_read_from_the_copies() -> None:
    embeddings = made()
    with WeightCopies().active():
        step(embeddings, 0)
        for copy in copies_of(embeddings):
            copy.zero_()
        assert not step(embeddings, 1)[:, DIM + 1 :].any()  # after the dense vector and its products: only of tables


def test_an_update_without_kernels_renews_the_copies() -> None:
    embeddings = made()
    with WeightCopies().active():
        step(embeddings, 0)
        ids = torch.zeros(BATCH * len(TABLES), dtype=torch.int32)
        gradient = torch.ones(BATCH, len(TABLES), DIM).to(HALF)
        embeddings.pending = [Pending(ids, gradient, None)]
        embeddings.update(torch.tensor(0.5))
        assert all(torch.equal(c, w.to(HALF)) for c, w in zip(copies_of(embeddings), embeddings.weights, strict=True))


@pytest.mark.parametrize(
    ("kept", "dtype", "most", "dim", "weights"),
    [
        (False, HALF, 1 / 8, 8, torch.float32),
        (True, torch.float32, 1 / 8, 8, torch.float32),
        (True, HALF, 0, 8, torch.float32),
        (True, HALF, 1 / 8, 12, torch.float32),
        (True, HALF, 1 / 8, 8, torch.float16),
    ],
)
def test_tables_are_read_themselves_elsewhere(
    kept: bool, dtype: torch.dtype, most: float, dim: int, weights: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without copies that last, in float32, without room, where kernels could not write them, and of half precision."""
    monkeypatch.setattr(tables, "MOST_COPIES", most)
    embeddings = FastEmbeddings(TABLES, dim).to(weights)
    with WeightCopies().active() if kept else nullcontext():
        assert all(a is b for a, b in zip(embeddings.tables_to_read(dtype), embeddings.weights, strict=True))
        assert not weight_copies.kept()
