"""The kernels that write to other GPUs' memory, here to other tensors of the CPU; on GPUs see test_ranks_gpu.py."""

import pytest
import torch

from src.batches.clicks import EmbeddingTable
from src.models.dlrm.embeddings import GradientSlots, PlainEmbeddings
from src.models.dlrm.fast import interaction
from src.models.dlrm.fast import tables as kernels

ONE_HOT = (EmbeddingTable("cat_0.bin", 20), EmbeddingTable("cat_1.bin", 7))
MULTI_HOT = (EmbeddingTable("cat_0.bin", 20, 3), EmbeddingTable("cat_1.bin", 7, 2))


def ids_of(tables: tuple[EmbeddingTable, ...], batch: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(0)
    parts = [torch.randint(t.cardinality, (batch * t.hotness,), generator=random) for t in tables]
    return torch.cat(parts).int()


@pytest.mark.parametrize("tables", [ONE_HOT, MULTI_HOT])
@pytest.mark.parametrize("batch", [5, 17])
def test_lookup_writes_vectors_to_each_ranks_output(tables: tuple[EmbeddingTable, ...], batch: int) -> None:
    ranks, dim, columns = 3, 16, (3, 1)
    plain = PlainEmbeddings(tables, dim)
    ids = ids_of(tables, ranks * batch)
    outs = [torch.full((batch, 4, dim), 9.0, dtype=torch.float16) for _ in range(ranks)]
    kernels.look_up_into(outs, columns, list(plain.weights), tables, ids)
    expected = plain.look_up(ids, ranks * batch, torch.float16).view(ranks, batch, 2, dim)
    for out, vectors in zip(outs, expected, strict=True):
        assert torch.equal(out[:, list(columns)], vectors)
        assert bool((out[:, [0, 2]] == 9).all())


def test_backward_writes_gradients_to_the_tables_slots() -> None:
    samples, tables, dim = 6, 3, 16
    random = torch.Generator().manual_seed(1)
    dense, sparse = torch.randn(samples, dim, generator=random), torch.randn(samples, tables, dim, generator=random)
    results = []
    for with_slots in (False, True):
        d, s, overflow = dense.clone().requires_grad_(), sparse.clone().requires_grad_(), torch.zeros(())
        memory = torch.full((5, samples, dim), 9.0)
        offsets = torch.tensor([3, 0, 4]) * samples * dim
        slots = GradientSlots(memory, offsets) if with_slots else None
        features = interaction.dot_features(d, s, overflow, slots)
        features.backward(torch.linspace(-1, 1, features.numel()).view_as(features))
        assert d.grad is not None and s.grad is not None
        results.append((d.grad, memory[[3, 0, 4]].transpose(0, 1) if with_slots else s.grad))
        if with_slots:
            assert not s.grad.any()
            assert bool((memory[[1, 2]] == 9).all())
    for plain, written in zip(*results, strict=True):
        assert torch.equal(plain, written)


def test_ids_are_copied_to_the_ranks_that_hold_the_rows() -> None:
    ids = torch.arange(4000, dtype=torch.int32)
    received = torch.full((6000,), -1, dtype=torch.int32)
    kernels.send_ids(ids, [slice(100, 3000), slice(3000, 3001)], [received[2000:], received[7:]])
    assert torch.equal(received[2000:4900], ids[100:3000]) and received[7] == 3000
    assert int((received >= 0).sum()) == 2901


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_rows_are_read_beside_vectors_to_the_bit(dtype: torch.dtype) -> None:
    """Tables 0 and 2 are read by their rows. Their vectors, which no lookup wrote, and the rows' neighbours are NaN."""
    samples, cardinalities, dim = 6, (20, 7, 3), 16
    random = torch.Generator().manual_seed(1)
    dense = torch.randn(samples, dim, generator=random).to(dtype)
    weights = [torch.randn(rows, dim, generator=random).to(dtype) for rows in cardinalities]
    ids = torch.stack([torch.randint(rows, (samples,), generator=random) for rows in cardinalities]).int()
    vectors = torch.stack([weight[number] for weight, number in zip(weights, ids, strict=True)], 1)
    torn = vectors.clone()
    torn[:, [0, 2]] = torch.nan
    gap = torch.full((1, dim), torch.nan, dtype=dtype)
    rows = interaction.Rows(torch.cat([gap, weights[2], weights[0], gap]), torch.tensor([4, -1, 1]), ids)
    results = []
    for sparse, read in (vectors, None), (torn, rows):
        d, overflow, memory = dense.clone().requires_grad_(), torch.zeros(()), torch.zeros(3, samples, dim, dtype=dtype)
        slots = GradientSlots(memory, torch.arange(3) * samples * dim)
        features = interaction.dot_features(d, sparse.requires_grad_(), overflow, slots, read)
        features.backward(torch.linspace(-1, 1, features.numel()).view_as(features).to(dtype))
        assert d.grad is not None
        results.append((features.detach(), d.grad, memory, overflow))
    for whole, partly in zip(*results, strict=True):
        assert torch.equal(whole, partly) and whole.isfinite().all()
