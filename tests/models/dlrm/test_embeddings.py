"""Lookups and update rules of the tables against torch's dense embeddings and optimisers."""

from inspect import unwrap

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from src.batches.clicks import EmbeddingTable
from src.errors import UserError
from src.models.dlrm.embeddings import PlainEmbeddings, Rule, summed_by_id
from src.models.dlrm.pieces import BLOCK_ROWS
from tests.support.random_clicks import TABLES, random_clicks

DIM, BATCH = 6, 16


def make(rule: Rule = "sgd", dtype: torch.dtype = torch.float64) -> PlainEmbeddings:
    torch.manual_seed(0)
    return PlainEmbeddings(TABLES, DIM, rule).to(dtype)


def ids_of(seed: int = 0) -> Tensor:
    return random_clicks(TABLES, BATCH, seed=seed).ids


def backward(embeddings: PlainEmbeddings, seed: int, scale: float = 1.0) -> None:
    """Runs a backward pass with random gradients."""
    vectors = embeddings(ids_of(seed), BATCH)
    generator = torch.Generator().manual_seed(seed)
    vectors.backward(scale * torch.randn(vectors.shape, generator=generator).to(vectors.dtype))


def dense_lookup(tables: list[nn.Parameter], ids: Tensor) -> Tensor:
    parts = ids.split([BATCH * table.hotness for table in TABLES])
    return torch.stack([F.embedding(part.view(BATCH, -1), w).sum(1) for part, w in zip(parts, tables, strict=True)], 1)


def test_a_vector_is_the_sum_of_the_rows_of_its_ids() -> None:
    embeddings = make()
    vectors = embeddings(ids_of(), BATCH)
    assert vectors.shape == (BATCH, 3, DIM)
    torch.testing.assert_close(vectors, dense_lookup(list(embeddings.weights), ids_of()))


@pytest.mark.parametrize("rule", ["sgd", "adagrad"])
def test_updates_equal_those_of_dense_gradients(rule: Rule) -> None:
    """Ids repeat within a batch, within a bag and over steps; in float64."""
    embeddings = make(rule)
    tables = [nn.Parameter(weight.detach().clone()) for weight in embeddings.weights]
    optimizer = torch.optim.SGD(tables, lr=0.3) if rule == "sgd" else torch.optim.Adagrad(tables, lr=0.3, eps=1e-8)
    for seed in range(4):
        backward(embeddings, seed)
        embeddings.update(torch.tensor(0.3, dtype=torch.float64))
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(seed)
        dense_lookup(tables, ids_of(seed)).backward(torch.randn(BATCH, 3, DIM, generator=generator).double())
        optimizer.step()
        torch.testing.assert_close(list(embeddings.weights), tables, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("rule", ["sgd", "adagrad"])
def test_loss_scale_does_not_change_updates(rule: Rule) -> None:
    plain, scaled = make(rule), make(rule)
    for seed in range(2):
        backward(plain, seed)
        plain.update(torch.tensor(0.5))
        backward(scaled, seed, scale=1024.0)
        scaled.update(torch.tensor(0.5 / 1024), loss_scale=torch.tensor(1024.0))
    assert all(
        torch.equal(a, b) for a, b in zip(plain.state_dict().values(), scaled.state_dict().values(), strict=True)
    )


def test_gradients_are_summed_in_the_order_of_the_bags() -> None:
    """Float32 sums depend on their order; here it is the batch's, bit for bit."""
    torch.manual_seed(0)
    ids = torch.randint(3, (200,))
    gradients = torch.randn(100, 2) * 10 ** torch.randn(100, 1)
    rows, sums = summed_by_id(ids, gradients)
    assert rows.tolist() == sorted(ids.tolist())
    for i in range(3):
        expected = torch.zeros(2)
        for bag in (ids == i).nonzero()[:, 0] // 2:
            expected = expected + gradients[bag]
        totals = sums[rows == i]
        assert torch.equal(totals, expected.expand_as(totals))


def test_update_applies_gradients_of_several_backward_passes() -> None:
    together, alone = make(), make()
    for seed in (1, 2):
        backward(together, seed)
        backward(alone, seed)
        alone.update(torch.tensor(0.1))
    together.update(torch.tensor(0.1))
    torch.testing.assert_close(list(together.weights), list(alone.weights))


@pytest.mark.parametrize("rule", ["sgd", "adagrad"])
def test_an_overflow_skips_the_update(rule: Rule) -> None:
    embeddings = make(rule, torch.float32)
    backward(embeddings, 1)
    embeddings.update(torch.tensor(0.1))
    before = {name: value.clone() for name, value in embeddings.state_dict().items()}
    backward(embeddings, 2)
    assert embeddings.overflowed() == 0
    backward(embeddings, 3, scale=float("inf"))
    assert embeddings.overflowed() == 1
    embeddings.update(torch.tensor(0.1), found_inf=torch.tensor(1.0))
    assert not embeddings.pending and embeddings.overflowed() == 0
    assert all(torch.equal(value, before[name]) for name, value in embeddings.state_dict().items())
    backward(embeddings, 2)
    embeddings.update(torch.tensor(0.1), found_inf=torch.tensor(0.0))
    assert not all(torch.equal(value, before[name]) for name, value in embeddings.state_dict().items())


def test_gradients_are_pending_until_the_update() -> None:
    embeddings = make()
    with torch.no_grad():
        embeddings(ids_of(), BATCH)
    assert not embeddings.pending
    before = [weight.detach().clone() for weight in embeddings.weights]
    backward(embeddings, 1)
    assert len(embeddings.pending) == 1 and all(weight.grad is None for weight in embeddings.weights)
    embeddings.update(torch.tensor(0.1))
    changed = [weight.detach().clone() for weight in embeddings.weights]
    assert not embeddings.pending and not torch.equal(changed[0], before[0])
    embeddings.update(torch.tensor(0.1))
    assert all(torch.equal(a, b) for a, b in zip(embeddings.weights, changed, strict=True))


def test_vectors_have_the_autocast_dtype_and_sums_are_float32() -> None:
    embeddings = make(dtype=torch.float32)
    assert embeddings(ids_of(), BATCH).dtype == torch.float32
    exact = embeddings(ids_of(), BATCH)
    with torch.autocast("cpu", torch.bfloat16):
        vectors = embeddings(ids_of(), BATCH)
    assert vectors.dtype == torch.bfloat16 and torch.equal(vectors, exact.bfloat16())
    vectors.backward(torch.full_like(vectors, 1 / 3))
    before = embeddings.weights[0].detach().clone()
    embeddings.update(torch.tensor(1.0))
    counts = torch.bincount(ids_of()[:BATCH], minlength=11)[:, None].expand(-1, DIM)
    third = torch.tensor(1 / 3).bfloat16().double()
    torch.testing.assert_close(embeddings.weights[0], (before.double() - counts * third).float(), rtol=1e-6, atol=1e-6)


def test_tables_are_initialised_uniformly_within_one_over_sqrt_rows() -> None:
    for table, weight in zip(TABLES, make(dtype=torch.float32).weights, strict=True):
        bound = table.cardinality**-0.5
        assert weight.shape == (table.cardinality, DIM)
        assert 0.8 * bound < weight.abs().max() <= bound and weight.min() < 0 < weight.max()


def test_state_dict_has_one_entry_per_table() -> None:
    assert list(make().state_dict()) == ["weights.0", "weights.1", "weights.2"]
    assert list(make("adagrad").state_dict())[3:] == ["accumulators.0", "accumulators.1", "accumulators.2"]


def test_an_unknown_optimizer_is_an_error() -> None:
    with pytest.raises(UserError, match="optimizer=adam is unknown; give sgd or adagrad"):
        unwrap(PlainEmbeddings.__init__)(PlainEmbeddings.__new__(PlainEmbeddings), TABLES, DIM, "adam")


def test_two_networks_of_one_seed_begin_with_different_tables() -> None:
    torch.manual_seed(0)
    first, second = (PlainEmbeddings(TABLES, DIM) for _ in range(2))
    torch.manual_seed(0)
    again = PlainEmbeddings(TABLES, DIM)
    for number, weight in enumerate(first.weights):
        assert torch.equal(weight, again.weights[number]) and not torch.equal(weight, second.weights[number])
        assert weight.abs().max() <= TABLES[number].cardinality ** -0.5


def test_tables_and_blocks_of_rows_begin_with_different_numbers() -> None:
    rows = BLOCK_ROWS + 2
    first, second = PlainEmbeddings([EmbeddingTable("cat_0.bin", rows), EmbeddingTable("cat_1.bin", rows)], 1).weights
    blocks = [part for table in (first, second) for part in (table[:2], table[BLOCK_ROWS:])]
    assert len(torch.cat(blocks).unique()) == 8
