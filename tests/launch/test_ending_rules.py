"""What a signal does to a run in each of its parts; tests/launch/test_ending.py sends signals to whole runs."""

import signal

import pytest

from src.launch import ending
from src.launch.ending import Ending, Interrupted, Question
from tests.support.stand_ins import StandInTrainer


def test_the_same_signal_may_come_twice_within_a_second_and_another_one_ends_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter([10.0, 10.9, 11.1])
    monkeypatch.setattr(ending.time, "monotonic", lambda: next(times))
    ends = Ending()
    ends._waits = True
    ends._signalled(signal.SIGINT, None)
    ends._signalled(signal.SIGTERM, None)
    assert ends.asked == signal.SIGINT and ends.interrupted is None
    with pytest.raises(Interrupted, match="SIGTERM before the next step"):
        ends._signalled(signal.SIGTERM, None)


@pytest.mark.parametrize("evaluates", [False, True])
def test_a_run_ends_after_its_step_unless_an_evaluation_follows(
    evaluates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "is_evaluated_next", lambda trainer: evaluates)
    ends, trainer = Ending(), StandInTrainer()
    ends._question, ends._stops, trainer.step = Question(1), True, 7
    ends._question.ask(signal.SIGTERM)
    if evaluates:
        ends._after_step(trainer)
        return
    with pytest.raises(Interrupted, match="SIGTERM after step 7"):
        ends._after_step(trainer)
