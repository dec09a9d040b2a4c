"""Batches of tokens: contents, sizes, order, shares of ranks, resuming, token counts."""

from collections import Counter
from itertools import chain, combinations, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

from src.batches.tokens import PackedTokens, PaddedTokens
from src.datamodules.text.data import TokenData
from src.datamodules.text.loader import MULTIPLE, PADDINGS, ResidentTokens, TokenLoader, few_sizes
from src.errors import UserError

COUNT, LONGEST, MAX_LENGTH = 203, 61, 64
LENGTHS = np.concatenate([[LONGEST], np.random.default_rng(0).geometric(0.1, COUNT - 1).clip(1, LONGEST - 3) + 2])
# The label of a sentence is its row here, and no two sentences share a token.
DATA = TokenData(
    np.arange(1, LENGTHS.sum() + 1, dtype=np.int32), np.concatenate([[0], LENGTHS.cumsum()]), np.arange(COUNT)
)
Batch = PaddedTokens | PackedTokens


def loader(padding: str, batch_size: int = 8, *, train: bool = True, **order: Any) -> TokenLoader:
    tokens = ResidentTokens(DATA, torch.device("cpu"))
    options = {"padding": padding, "max_length": MAX_LENGTH, "train": train, "seed": 3, **order}
    return TokenLoader(tokens, batch_size, **options)


def sentences_of(batch: Batch) -> list[tuple[int, list[int]]]:
    """Returns the label and the tokens of each sentence."""
    if isinstance(batch, PackedTokens):
        parts = [batch.ids[a:b].tolist() for a, b in pairwise(batch.starts.tolist())]
    else:
        parts = [row[:length].tolist() for row, length in zip(batch.ids, batch.lengths, strict=True)]
    return list(zip(batch.labels.tolist(), parts, strict=True))


def size_of(batch: Batch) -> int:
    return batch.ids.shape[-1]


def rows(batches: TokenLoader) -> list[int]:
    return [row for batch in batches for row in batch.labels.tolist()]


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("batch_size", [1, 8, 203])
def test_every_sentence_keeps_its_tokens(padding: str, train: bool, batch_size: int) -> None:
    pairs = [pair for batch in loader(padding, batch_size, train=train) for pair in sentences_of(batch)]
    assert len({row for row, _ in pairs}) == len(pairs) == (COUNT // batch_size * batch_size if train else COUNT)
    for row, ids in pairs:
        assert ids == DATA.ids[DATA.starts[row] : DATA.starts[row + 1]].tolist()


@pytest.mark.parametrize("padding", ["max_length", "longest", "bucketed"])
def test_padding_follows_each_sentence(padding: str) -> None:
    for batch in loader(padding):
        assert isinstance(batch, PaddedTokens)
        assert batch.ids.shape[1] == MAX_LENGTH or padding != "max_length"
        behind = torch.arange(batch.ids.shape[1]) >= batch.lengths[:, None]
        assert not batch.ids[behind].any()
        assert (batch.ids.dtype, batch.lengths.dtype, batch.labels.dtype) == (torch.int32, torch.int32, torch.int64)


def test_a_packed_batch_has_its_padding_at_the_end() -> None:
    for batch in loader("packed"):
        assert isinstance(batch, PackedTokens)
        ends = batch.starts.tolist()
        expected = [position for length in np.diff(ends) for position in range(length)]
        assert batch.positions.tolist() == expected + [0] * (len(batch.ids) - ends[-1])
        assert not batch.ids[ends[-1] :].any()
        assert ends[0] == 0 and len(ends) == len(batch.labels) + 1
        assert batch.longest == LONGEST
        assert {leaf.dtype for leaf in (batch.ids, batch.positions, batch.starts)} == {torch.int32}


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("batch_size", [4, 32])
def test_batches_of_many_epochs_have_few_sizes(padding: str, batch_size: int) -> None:
    batches = loader(padding, batch_size)
    counts = Counter(size_of(batch) for _ in range(20) for batch in batches)
    chosen = batches.sizes.tolist()
    assert 1 <= len(chosen) <= (1 if padding == "max_length" else 4)
    assert sum(counts[size] for size in chosen) >= 0.99 * counts.total()


@pytest.mark.parametrize("padding", ["longest", "packed"])
def test_a_batch_has_the_smallest_size_that_fits(padding: str) -> None:
    batches = loader(padding, train=False)
    batches.sizes = batches.sizes[:2]  # some batches are larger
    for batch in batches:
        lengths = LENGTHS[batch.labels]
        minimum = int(lengths.sum() if padding == "packed" else lengths.max())
        rounded = -(-minimum // MULTIPLE[padding]) * MULTIPLE[padding]
        assert size_of(batch) == next((size for size in batches.sizes.tolist() if size >= minimum), rounded)


def test_a_size_is_never_above_max_length() -> None:
    batches = loader("longest", max_length=LONGEST)
    assert max(batch.ids.shape[1] for batch in batches) == LONGEST


def test_few_sizes_finds_the_least_total() -> None:
    minimum = torch.from_numpy(np.random.default_rng(1).integers(1, 12, 40) * 8)
    values = minimum.unique().tolist()

    def total(sizes: tuple[int, ...]) -> int:
        return sum(min(size for size in sizes if size >= least) for least in minimum.tolist())

    for count in (1, 2, 3, 4):
        best = min(total((*chosen, values[-1])) for chosen in combinations(values[:-1], count - 1))
        sizes = few_sizes(minimum, count)
        assert sizes == sorted(set(sizes)) and len(sizes) <= count
        assert total(tuple(sizes)) == best
    assert few_sizes(torch.tensor([8, 8]), 4) == [8]


@pytest.mark.parametrize("padding", PADDINGS)
def test_epochs_differ_and_repeat_with_the_seed(padding: str) -> None:
    one, other = loader(padding), loader(padding)
    first, second = rows(one), rows(one)
    assert first != second
    assert [rows(other), rows(other)] == [first, second]
    assert rows(loader(padding, seed=4)) != first


def test_bucketed_batches_have_similar_lengths_and_random_order() -> None:
    batches = list(loader("bucketed"))
    spread = [int(batch.lengths.max() - batch.lengths.min()) for batch in batches if isinstance(batch, PaddedTokens)]
    assert np.median(spread) <= 1
    sizes = [batch.ids.shape[1] for batch in batches]
    assert sizes != sorted(sizes) and sizes != sorted(sizes, reverse=True)


def test_packed_batches_have_similar_numbers_of_tokens() -> None:
    batches = loader("packed", 8)
    list(batches)
    balanced = np.array([real for real, _ in batches.counts])
    random = LENGTHS[np.random.default_rng(0).permutation(COUNT)[:200]].reshape(-1, 8).sum(1)
    assert balanced.std() < random.std() / 2


def test_evaluation_keeps_the_order() -> None:
    for padding in PADDINGS:
        assert rows(loader(padding, train=False)) == list(range(COUNT))


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("world_size", [1, 3, 16])
def test_evaluation_has_every_sentence_once_at_any_world_size(padding: str, world_size: int) -> None:
    shares = [rows(loader(padding, 4, train=False, rank=rank, world_size=world_size)) for rank in range(world_size)]
    assert sorted(chain.from_iterable(shares)) == list(range(COUNT))


@pytest.mark.parametrize("padding", PADDINGS)
def test_ranks_train_on_shares_that_do_not_overlap(padding: str) -> None:
    shares = [loader(padding, 8, rank=rank, world_size=3) for rank in range(3)]
    assert {len(share) for share in shares} == {COUNT // 24}
    together = list(chain.from_iterable(map(rows, shares)))
    assert len(set(together)) == len(together) == COUNT // 24 * 24


def test_ranks_have_batches_of_similar_lengths_in_each_step() -> None:
    shares = [loader("bucketed", rank=rank, world_size=2) for rank in range(2)]
    longest = np.array([[max(len(ids) for _, ids in sentences_of(batch)) for batch in share] for share in shares])
    assert abs(longest[0] - longest[1]).mean() < abs(longest[0] - longest[1][::-1]).mean() / 4


@pytest.mark.parametrize("padding", PADDINGS)
def test_a_resumed_loader_gives_the_remaining_batches(padding: str) -> None:
    def leaves(batch: Batch) -> list[Any]:
        return [leaf.tolist() if isinstance(leaf, torch.Tensor) else leaf for leaf in tree_leaves(batch)]

    uninterrupted = loader(padding)
    assert uninterrupted.state_dict() == {"epoch": 0, "position": 0}
    batches = [leaves(batch) for _ in range(3) for batch in uninterrupted]
    interrupted = loader(padding)
    list(interrupted)
    iterator = iter(interrupted)
    for _ in range(4):
        next(iterator)
    resumed = loader(padding)
    resumed.load_state_dict(interrupted.state_dict())
    assert [leaves(batch) for _ in range(2) for batch in resumed] == batches[len(uninterrupted) + 4 :]


@pytest.mark.parametrize("padding", PADDINGS)
def test_tokens_are_counted_batch_by_batch(padding: str) -> None:
    batches = loader(padding)
    two_epochs = [batch for _ in range(2) for batch in batches]
    for batch, (real, processed) in zip(two_epochs, batches.counts, strict=True):
        assert real == sum(len(ids) for _, ids in sentences_of(batch))
        assert processed == batch.processed_tokens == batch.ids.numel()


def test_a_batch_larger_than_the_split_is_refused() -> None:
    with pytest.raises(UserError, match=r"hp.batch_size=102 on 2 rank\(s\) is larger than the training split of 203"):
        loader("packed", 102, world_size=2)


@pytest.mark.parametrize("padding", PADDINGS)
def test_a_rank_without_a_sentence_has_no_batch(padding: str) -> None:
    assert len(loader(padding, train=False, rank=202, world_size=204)) == 1
    assert list(loader(padding, train=False, rank=203, world_size=204)) == []
