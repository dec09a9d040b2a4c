"""Learning rates along a schedule: closed forms against torch's, and what an optimiser is given."""

import math

import pytest
import torch
from torch import nn

from src.errors import UserError
from src.training.schedule import Cosine, Linear, ScheduledRate, Steps, WarmupPolynomial

CPU = torch.device("cpu")


def optimizer(lr: float) -> torch.optim.Optimizer:
    """Of two groups, the second one with twice the learning rate."""
    first, second = (nn.Parameter(torch.zeros(2)) for _ in range(2))
    return torch.optim.AdamW([{"params": [first]}, {"params": [second], "lr": 2 * lr}], lr=lr)


@pytest.mark.parametrize("final_ratio", [0.0, 0.1])
def test_the_cosine_is_the_published_one(final_ratio: float) -> None:
    """Torch's CosineAnnealingWarmRestarts, stepped once per epoch, whose period is the run."""
    theirs = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.002)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(theirs, T_0=30, eta_min=0.002 * final_ratio)
    ours = Cosine(final_ratio=final_ratio)
    for epoch in range(30):
        assert 0.002 * ours(epoch, 30) == pytest.approx(theirs.param_groups[0]["lr"])
        theirs.step()
        scheduler.step()


def test_a_warm_up_rises_in_equal_steps_and_the_cosine_follows() -> None:
    schedule = Cosine(final_ratio=0.1, warmup=4)
    assert [schedule(done, 14) for done in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert schedule(9, 14) == pytest.approx(0.55)
    assert schedule(14, 14) == schedule(99, 14) == pytest.approx(0.1)


def test_a_run_of_nothing_but_warm_up_has_no_cosine() -> None:
    assert [Cosine(warmup=3)(done, 2) for done in range(2)] == [0.25, 0.5]


def test_dlrms_published_schedule() -> None:
    schedule = WarmupPolynomial()
    assert (schedule.interval, schedule.total) == ("step", 72_000)
    expected = {
        1: 1 / 8000,
        4000: 0.5,
        8000: 1,
        8001: 1,
        48_000: 1,
        60_000: 0.25,
        71_999: 24_000**-2,
        72_000: 0,
        80_000: 0,
    }
    assert {step: schedule(step - 1, 72_000) for step in expected} == pytest.approx(expected, abs=1e-15)
    # One epoch of the published training ends at a learning rate of 2.66.
    assert 24 * schedule(64_013 - 1, 72_000) == pytest.approx(2.66, abs=0.005)


def test_a_warm_up_factor_of_1_begins_in_the_middle() -> None:
    schedule = WarmupPolynomial(warmup_steps=4, warmup_factor=1.0, decay_start_step=6, decay_steps=2)
    assert [schedule(done, 8) for done in range(8)] == pytest.approx([0.625, 0.75, 0.875, 1, 1, 1, 0.25, 0])


def test_a_polynomial_falls_to_its_end_and_stays_there() -> None:
    schedule = WarmupPolynomial(warmup_steps=0, decay_start_step=1, decay_steps=4, decay_power=1.0, end_factor=0.3)
    assert [schedule(done, 5) for done in range(7)] == pytest.approx([1, 0.75, 0.5, 0.3, 0.3, 0.3, 0.3])


def test_without_a_decay_the_end_follows_at_once() -> None:
    schedule = WarmupPolynomial(warmup_steps=1, decay_start_step=2, decay_steps=0, end_factor=0.1)
    assert [schedule(done, 2) for done in range(4)] == [1.0, 1.0, 0.1, 0.1]


def test_a_decay_within_the_warm_up_is_refused() -> None:
    with pytest.raises(UserError, match=r"decay_start_step=5 lies within the warmup_steps=6"):
        WarmupPolynomial(warmup_steps=6, decay_start_step=5)


def test_every_group_keeps_its_share() -> None:
    groups = optimizer(0.1)
    rate = ScheduledRate(Cosine(), 4, groups, CPU)
    for done in range(5):
        factor = (1 + math.cos(math.pi * done / 4)) / 2
        assert rate.follow(done) == pytest.approx(0.1 * factor)
        assert [group["lr"] for group in groups.param_groups] == pytest.approx([0.1 * factor, 0.2 * factor])


def test_a_resumed_optimiser_goes_on_from_its_first_learning_rate() -> None:
    before = optimizer(0.1)
    ScheduledRate(Cosine(), 4, before, CPU).follow(3)
    after = optimizer(7.0)
    after.load_state_dict(before.state_dict())
    rate = ScheduledRate(Cosine(), 4, after, CPU)
    assert rate.follow(2) == pytest.approx(0.05)
    assert after.param_groups[1]["lr"] == pytest.approx(0.1)


def test_linear_falls_to_0_after_its_warm_up() -> None:
    assert [Linear(warmup=2)(n, 6) for n in range(8)] == [0, 0.5, 1, 0.75, 0.5, 0.25, 0, 0]


def test_steps_fall_where_they_are_told_to() -> None:
    schedule = Steps(at=[2, 4], factor=0.5)
    assert [schedule(n, 10) for n in range(6)] == [1, 1, 0.5, 0.5, 0.25, 0.25]
    assert (schedule.total, schedule.interval) == (5, "epoch")
