"""How a run's time to its first step is divided."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from src.config.values import target_of
from src.errors import UserError
from src.measure import starting
from src.measure.clock import Clock
from src.measure.starting import Start, launched_s, process_creation_s, start_of
from src.system.group import ANSWERED_FOR


@pytest.fixture(autouse=True)
def no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ANSWERED_FOR, raising=False)


def test_parts_add_up_to_the_steady_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what ended before the run began or after training did, nothing is counted: other runs of the process."""
    ends = {90.0: "imports", 100.5: "config", 102.5: "imports", 103.0: "config", 104.0: "data", 120.0: "data"}
    monkeypatch.setattr(starting, "_ends", [(part, end_s, os.getpid()) for end_s, part in ends.items()])
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


def test_modules_loaded_while_a_config_is_checked_count_as_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "_ends", [])
    monkeypatch.delitem(sys.modules, "this", raising=False)
    for _ in range(2):  # the second time nothing is loaded
        with pytest.raises(UserError, match="no class or function"):
            target_of("datamodule", "this.nothing")
    assert [part for part, _, _ in starting._ends] == ["config", "imports"]


@pytest.mark.parametrize("warmup_steps", [0, 3])
def test_without_steady_steps_the_parts_are_those_of_the_first(warmup_steps: int) -> None:
    start = start_of(0.0, 6.0, [7.0, 8.0], warmup_steps)
    assert start is not None and start.steady_from_s is None
    assert sum(seconds or 0 for seconds in start.parts_s.values()) == start.first_step_s == 7.0


def test_before_the_first_step_nothing_has_started() -> None:
    assert start_of(0.0, 6.0, [], 3) is None


def test_a_process_was_created_when_it_was_started() -> None:
    """To 20 ms: psutil's time of creation adds a boot time in whole seconds, and is wrong by up to one."""
    before_s = time.perf_counter()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        after_s = time.perf_counter()
        created_s = process_creation_s(process.pid)
    assert before_s - 0.02 <= created_s <= after_s + 0.02
    assert Clock().wall_s() >= time.perf_counter() - process_creation_s() - 0.02 > 0


def test_a_process_that_is_gone_was_never_created() -> None:
    with pytest.raises(psutil.NoSuchProcess):
        process_creation_s(2**31 - 1)


@pytest.mark.parametrize("imports_s", [99.5, 100.004])
def test_a_fork_of_the_launcher_knows_its_parts(imports_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "launched_s", lambda: 5.0)
    ends = [("interpreter", 96.0, os.getppid()), ("imports", imports_s, os.getppid()), ("config", 101.0, os.getpid())]
    monkeypatch.setattr(starting, "_ends", ends)
    start = start_of(100.0, 2.0, [3.0, 4.0], warmup_steps=2)
    parts = {"interpreter": 1.0, "imports": 3.5, "launcher": 0.5, "config": 1.0, "device": 1.0, "first step": 1.0}
    if imports_s > 100.0:  # as it is known to a hundredth of a second when a process began
        parts = {name: seconds for name, seconds in {**parts, "imports": 4.0}.items() if name != "launcher"}
    assert start == Start(8.0, 9.0, {**parts, "warm-up": 1.0})


def test_a_rank_starts_with_its_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ANSWERED_FOR, str(os.getppid()))
    seconds = process_creation_s() - process_creation_s(os.getppid())
    assert launched_s() == pytest.approx(seconds, abs=1e-3)
    start = start_of(0.0, 6.0, [7.0, 8.0], 2)
    assert start is not None and start.first_step_s == pytest.approx(7.0 + seconds, abs=1e-3)
    assert sum(part or 0 for part in start.parts_s.values()) == pytest.approx(start.steady_from_s)


@pytest.mark.parametrize("launcher", ["none", str(2**31 - 1)])
def test_a_launcher_that_is_gone_is_left_out(launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ANSWERED_FOR, launcher)
    assert launched_s() == 0.0
