"""The clock's phases get the marked times and add up to the wall time."""

import pytest
import torch

from src.measure.clock import Clock


class FakeTime:
    """A host clock that is advanced by hand."""

    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def clock(time: FakeTime) -> Clock:
    return Clock(origin_s=100.0, now=time)


def test_phases_add_up_to_the_wall_time(clock: Clock, time: FakeTime) -> None:
    for phase, seconds in (("startup", 3.0), ("fetch", 0.5), ("compute", 2.0), ("other", 0.25), ("compute", 1.0)):
        time.s += seconds
        clock.mark(phase)
    assert clock.totals_s["compute"] == 3.0
    assert clock.totals_s["fetch"] == 0.5
    assert sum(clock.totals_s.values()) == clock.wall_s() == 6.75


def test_a_step_has_its_iteration_and_compute_time(clock: Clock, time: FakeTime) -> None:
    for _ in range(3):
        time.s += 0.25
        clock.mark("fetch")
        time.s += 0.125
        clock.mark("transfer")
        time.s += 1.0
        clock.mark("compute", samples=8)
    assert list(clock.steps.samples) == [8, 8, 8]
    assert list(clock.steps.iteration_s) == [1.375] * 3
    assert list(clock.steps.compute_s) == [1.0] * 3


def test_exposed_communication_is_part_of_a_steps_compute(clock: Clock, time: FakeTime) -> None:
    for phase, seconds in (("fetch", 0.25), ("compute", 1.0), ("communication", 0.5)):
        time.s += seconds
        clock.mark(phase)
    clock.mark("compute", samples=8)
    assert (list(clock.steps.iteration_s), list(clock.steps.compute_s)) == ([1.75], [1.5])


def test_waits_for_other_ranks_are_communication_and_no_compute(clock: Clock, time: FakeTime) -> None:
    clock.begin_training(torch.device("cpu"))
    time.s += 4.0
    clock.mark("compute", samples=8)
    clock.waited_s = lambda: 1.5
    spent = clock.spent()
    assert (spent.totals_s["compute"], spent.totals_s["communication"]) == (2.5, 1.5)
    assert sum(spent.totals_s.values()) == spent.training_s == 4.0
    assert clock.totals_s["compute"] == 4.0  # until training ends


def test_evaluation_is_one_phase_outside_the_iteration(clock: Clock, time: FakeTime) -> None:
    time.s += 1.0
    with clock.within("evaluation"):
        time.s += 5.0
        clock.mark("fetch")
        with clock.within("checkpoint"):
            time.s += 2.0
    time.s += 1.0
    clock.mark("compute", samples=4)
    assert clock.totals_s["evaluation"] == 7.0
    assert clock.totals_s["fetch"] == clock.totals_s["checkpoint"] == 0.0
    assert clock.totals_s["other"] == 1.0
    assert list(clock.steps.iteration_s) == [2.0]


def test_training_time_excludes_startup_and_final_evaluation(clock: Clock, time: FakeTime) -> None:
    time.s += 10.0
    clock.begin_training(torch.device("cpu"))
    time.s += 2.0
    clock.mark("compute", samples=1)
    with clock.within("evaluation"):
        time.s += 3.0
    clock.end_training()
    with clock.within("evaluation"):
        time.s += 40.0
    assert clock.totals_s["startup"] == 10.0
    assert clock.training_s == 5.0
    assert clock.training_phases_s["evaluation"] == 3.0
    assert clock.totals_s["evaluation"] == 43.0


def test_the_first_steps_have_the_time_at_which_they_ended(clock: Clock, time: FakeTime) -> None:
    time.s += 10.0
    clock.begin_training(torch.device("cpu"))
    for evaluation_s in (3.0, 0.0):
        time.s += 0.5
        clock.mark("fetch")
        time.s += 2.0
        clock.mark("compute", samples=8)
        with clock.within("evaluation"):
            time.s += evaluation_s
    assert clock.before_training_s == 10.0
    assert list(clock.step_ends_s) == [12.5, 18.0]


def test_on_the_host_a_note_is_a_mark(clock: Clock, time: FakeTime) -> None:
    time.s += 2.0
    clock.note("fetch")
    time.s += 1.0
    clock.mark("compute", samples=1)
    assert clock.totals_s["fetch"] == 2.0
    assert list(clock.steps.iteration_s) == [3.0]
