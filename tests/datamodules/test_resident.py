"""The resident loader: order, shares of ranks, resuming."""

import pytest
import torch

from src.datamodules.resident import ResidentLoader
from src.errors import UserError

ROWS = torch.arange(100)


def loader(batch_size: int = 8, *, rank: int = 0, world_size: int = 1, train: bool = True) -> ResidentLoader:
    index = torch.arange(10, 60)
    return ResidentLoader((ROWS,), index, batch_size, shuffle=train, drop_last=train, seed=3, rank=rank,
                          world_size=world_size)  # fmt: skip


def drawn(loader: ResidentLoader) -> list[int]:
    return [int(row) for (rows,) in loader for row in rows]


def test_an_epoch_is_a_permutation_without_the_tail() -> None:
    rows = drawn(loader())
    assert len(rows) == len(set(rows)) == 48
    assert set(rows) <= set(range(10, 60))


def test_epochs_differ_and_repeat_with_the_seed() -> None:
    one, other = loader(), loader()
    first, second = drawn(one), drawn(one)
    assert first != second
    assert [drawn(other), drawn(other)] == [first, second]


def test_no_epoch_of_a_seed_is_one_of_another_seed() -> None:
    orders = []
    for seed in range(3):
        one = loader()
        one.seed = seed
        orders += [tuple(drawn(one)) for _ in range(3)]
    assert len(set(orders)) == 9


def test_ranks_share_the_global_batches_of_one_process() -> None:
    one_process = list(loader(16))
    shares = [list(loader(8, rank=rank, world_size=2)) for rank in (0, 1)]
    for (expected,), *parts in zip(one_process, *shares, strict=True):
        assert sorted(torch.cat([part for (part,) in parts]).tolist()) == sorted(expected.tolist())


def test_evaluation_has_every_row_once_over_ranks() -> None:
    rows = [row for rank in range(3) for row in drawn(loader(7, rank=rank, world_size=3, train=False))]
    assert sorted(rows) == list(range(10, 60))
    assert len(loader(7, rank=2, world_size=3, train=False)) == 3


def test_a_resumed_loader_gives_the_remaining_batches() -> None:
    uninterrupted = loader()
    batches = [rows.tolist() for _ in range(2) for (rows,) in uninterrupted]
    interrupted = loader()
    iterator = iter(interrupted)
    for _ in range(4):
        next(iterator)
    resumed = loader()
    resumed.load_state_dict(interrupted.state_dict())
    rest = [rows.tolist() for _ in range(2) for (rows,) in resumed]
    assert rest == batches[4:]


def test_a_loader_saved_at_the_end_of_an_epoch_resumes_with_the_next() -> None:
    uninterrupted = loader()
    drawn(uninterrupted)
    resumed = loader()
    resumed.load_state_dict(uninterrupted.state_dict())
    assert drawn(resumed) == drawn(uninterrupted)


def test_a_batch_larger_than_the_split_is_refused() -> None:
    with pytest.raises(UserError, match=r"hp\.batch_size=26 on 2 rank\(s\).*at most 25"):
        loader(26, world_size=2)
