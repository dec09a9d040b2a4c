"""A training loader yields optimiser steps: as many batches as hp.accumulate says, with the samples of all ranks."""

from itertools import pairwise

import pytest
import torch

from src.datamodules.base import Metered
from src.datamodules.resident import ResidentLoader
from src.measure.clock import Clock


def loader(rows: int, batch_size: int = 2, *, drop_last: bool = False, rank: int = 0, world: int = 1) -> ResidentLoader:
    order = {"rank": rank, "world_size": world}
    values = torch.arange(rows)
    return ResidentLoader((values,), values, batch_size, shuffle=False, drop_last=drop_last, **order)


def metered(rows: int, accumulate: int, rank: int = 0, world: int = 1) -> Metered:
    return Metered(loader(rows, rank=rank, world=world), Clock(), accumulate, rank, world)


def test_an_item_is_a_step_and_the_last_has_what_is_left() -> None:
    steps = metered(rows=13, accumulate=3)
    items = list(steps)
    assert len(steps) == len(items) == 3
    assert [[batch[0].tolist() for batch in item.batches] for item in items] == [
        [[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9], [10, 11]], [[12]]
    ]  # fmt: skip
    assert [item.samples for item in items] == [6, 6, 1]


@pytest.mark.parametrize("done", [1, 2])
def test_a_state_between_steps_goes_on_with_the_next_step(done: int) -> None:
    whole, interrupted, resumed = (metered(rows=13, accumulate=3) for _ in range(3))
    iterator = iter(interrupted)
    for _ in range(done):
        next(iterator)
    resumed.load_state_dict(interrupted.state_dict())
    rest = [[batch[0].tolist() for batch in item.batches] for item in resumed]
    assert rest == [[batch[0].tolist() for batch in item.batches] for item in whole][done:]


@pytest.mark.parametrize(("rows", "world"), [(1, 1), (5, 1), (6, 2), (7, 2), (11, 2), (10, 3), (11, 3), (17, 3)])
def test_every_rank_knows_the_samples_of_all_ranks(rows: int, world: int) -> None:
    """Of loaders with equally many batches on all ranks, as those of a training have."""
    of_ranks = [list(metered(rows, accumulate=2, rank=rank, world=world)) for rank in range(world)]
    for steps in zip(*of_ranks, strict=True):
        counted = sum(len(batch[0]) for step in steps for batch in step.batches)
        assert {step.samples for step in steps} == {counted}
    assert sum(step.samples for step in of_ranks[0]) == rows


def test_batches_of_steps_are_counted_from_the_start_of_the_run() -> None:
    steps = metered(rows=13, accumulate=3)
    for _ in range(2):
        list(steps)
    assert steps.batches_of(slice(0, 6)) == slice(0, 14)
    assert steps.batches_of(slice(2, 4)) == slice(6, 10)  # one of the first epoch, three of the second
    assert steps.batches_of(slice(6, 6)) == slice(14, 14)
    ends = [steps.batches_of(slice(n, n + 1)) for n in range(6)]
    assert [part.stop - part.start for part in ends] == [3, 3, 1, 3, 3, 1]
    assert all(one.stop == two.start for one, two in pairwise(ends))
