"""How a run's time to its first step is divided."""

import os

import psutil
import pytest

from src.measure import starting
from src.measure.starting import Start, launched_s, start_of
from src.system.group import ANSWERED_FOR


@pytest.fixture(autouse=True)
def no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ANSWERED_FOR, raising=False)


def test_parts_add_up_to_the_steady_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what ended before the run began or after training did, nothing is counted: other runs of the process."""
    ends = {90.0: "imports", 100.5: "config", 102.5: "imports", 103.0: "config", 104.0: "data", 120.0: "data"}
    monkeypatch.setattr(starting, "_ends", [(part, end_s) for end_s, part in ends.items()])
    start = start_of(100.0, 6.0, [7.0, 7.5, 8.0], warmup_steps=3)
    parts: dict[str, float | int | None] = {
        "config": 1.0,
        "imports": 2.0,
        "data": 1.0,
        "device": 2.0,
        "first step": 1.0,
        "warm-up": 1.0,
    }
    assert start == Start(7.0, 8.0, parts)


@pytest.mark.parametrize("warmup_steps", [0, 3])
def test_without_steady_steps_the_parts_are_those_of_the_first(warmup_steps: int) -> None:
    start = start_of(0.0, 6.0, [7.0, 8.0], warmup_steps)
    assert start is not None and start.steady_from_s is None
    assert sum(seconds or 0 for seconds in start.parts_s.values()) == start.first_step_s == 7.0


def test_before_the_first_step_nothing_has_started() -> None:
    assert start_of(0.0, 6.0, [], 3) is None


def test_a_rank_starts_with_its_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ANSWERED_FOR, str(os.getppid()))
    seconds = psutil.Process().create_time() - psutil.Process(os.getppid()).create_time()
    assert launched_s() == pytest.approx(seconds)
    start = start_of(0.0, 6.0, [7.0, 8.0], 2)
    assert start is not None and start.first_step_s == pytest.approx(7.0 + seconds)
    assert sum(part or 0 for part in start.parts_s.values()) == pytest.approx(start.steady_from_s)


@pytest.mark.parametrize("launcher", ["none", str(2**31 - 1)])
def test_a_launcher_that_is_gone_is_left_out(launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ANSWERED_FOR, launcher)
    assert launched_s() == 0.0
