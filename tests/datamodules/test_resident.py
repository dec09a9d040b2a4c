"""The resident loader: order, shares of ranks, position."""

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


def test_ranks_share_the_global_batches_of_one_process() -> None:
    whole = list(loader(16))
    shares = [list(loader(8, rank=rank, world_size=2)) for rank in (0, 1)]
    for (together,), *parts in zip(whole, *shares, strict=True):
        assert sorted(torch.cat([part for (part,) in parts]).tolist()) == sorted(together.tolist())


def test_evaluation_sees_every_row_once_over_ranks() -> None:
    rows = [row for rank in range(3) for row in drawn(loader(7, rank=rank, world_size=3, train=False))]
    assert sorted(rows) == list(range(10, 60))
    assert len(loader(7, rank=2, world_size=3, train=False)) == 3


def test_a_saved_position_goes_on_where_it_was() -> None:
    whole = loader()
    batches = [rows.tolist() for _ in range(2) for (rows,) in whole]
    broken = loader()
    seen = iter(broken)
    for _ in range(4):
        next(seen)
    resumed = loader()
    resumed.load_state_dict(broken.state_dict())
    rest = [rows.tolist() for _ in range(2) for (rows,) in resumed]
    assert rest == batches[4:]


def test_a_position_at_the_end_goes_on_with_the_next_epoch() -> None:
    whole = loader()
    drawn(whole)
    resumed = loader()
    resumed.load_state_dict(whole.state_dict())
    assert drawn(resumed) == drawn(whole)


def test_a_batch_larger_than_the_split_is_refused() -> None:
    with pytest.raises(UserError, match=r"hp\.batch_size=26 on 2 rank\(s\).*at most 25"):
        loader(26, world_size=2)
