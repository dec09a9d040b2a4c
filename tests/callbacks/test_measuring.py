"""The other callbacks: history, rates over ranks, memory, energy, target, random generators, progress bar."""

import random
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import distributed

from src.callbacks import energy
from src.callbacks.energy import Energy
from src.callbacks.history import History, thinned
from src.callbacks.memory import Memory
from src.callbacks.plateau import Plateau
from src.callbacks.progress import Progress
from src.callbacks.rng import RngState, restore, rng_state
from src.callbacks.target import Target
from src.measure.energy import EnergyCounter
from src.measure.memory import GIB
from src.measure.over_ranks import gather, min_mean_max, sum_or_none
from src.training.task import FinalMetric
from tests.support.stand_ins import StandInTrainer, stand_in_task


def test_a_thinned_history_keeps_every_evaluation() -> None:
    rows: list[dict[str, Any]] = [{"step": step, "loss": 1.0} for step in range(2001)]
    for step in (7, 700, 1999):
        rows[step] = {"step": step, "validity": 1.0}
    kept = thinned(rows, most=400)
    assert len(kept) <= 405 and kept[-1] == rows[-1]
    assert [row["step"] for row in kept if "validity" in row] == [7, 700, 1999]
    assert thinned(rows[:400], most=400) == rows[:400]


def test_history_has_the_loss_of_its_step_though_the_tensor_is_overwritten() -> None:
    history, trainer, task = History(2), StandInTrainer(), stand_in_task()
    task.last = {"loss": torch.tensor(0.0)}
    for step in range(1, 6):
        task.last["loss"].fill_(step)  # in place, as a captured graph does
        trainer.step = step
        history.on_train_batch_end(trainer, task, None, None, step)
    history.on_train_end(trainer, task)
    assert [(row["step"], row["loss"]) for row in history.rows] == [(2, 2.0), (4, 4.0)]
    assert history.latest["loss"] == 4.0


def test_the_progress_bar_shows_the_values_of_the_history() -> None:
    trainer, history = StandInTrainer(), History(1)
    history.latest = {"loss": 1.23456, "samples_per_s": 12345.6}
    trainer.callbacks = [history]
    assert Progress().get_metrics(trainer, stand_in_task()) == {"loss": "1.23", "samples_per_s": "12,346"}


def test_sums_over_ranks_need_every_rank() -> None:
    assert sum_or_none([1.0, 2.5]) == 3.5
    assert sum_or_none([1.0, None]) is None and sum_or_none([]) is None
    assert min_mean_max([1.0, 2.0, 6.0]) == {"min": 1.0, "mean": 3.0, "max": 6.0}
    assert min_mean_max([None, 4.0]) == {"min": 4.0, "mean": 4.0, "max": 4.0} and min_mean_max([None]) is None


@pytest.fixture
def group() -> Iterator[None]:
    distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)  # pyright: ignore
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_gather_keeps_a_missing_value() -> None:
    assert gather(0.1) == [0.1] and gather(None) == [None]


def test_memory_is_the_peak_of_the_process() -> None:
    memory, task = Memory(), stand_in_task()
    assert memory.figures(task) == {}
    ballast = np.ones(2**25)  # 256 MiB
    held = psutil.Process().memory_info().rss / GIB
    del ballast
    memory.on_train_end(StandInTrainer(), task)
    figures = memory.figures(task)["mem"]
    # Linux counts resident pages in batches for each core: on 64 cores the two figures differ by megabytes.
    assert 0.25 < held <= figures["peak_reserved_gib"] + 0.02 <= figures["total_gib"]
    assert figures["peak_allocated_gib"] is None
    assert 0 < figures["free_gib"] < figures["total_gib"] - held


def test_joules_are_those_since_the_counter_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    millijoules = iter([7_000_000, 7_002_500])
    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: {"GPU-8": millijoules}[handle].__next__(),
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="8"))
    assert EnergyCounter(torch.device("cuda")).joules() == 2.5


def test_energy_has_joules_of_training_and_samples_per_joule(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counter(energy.EnergyCounter):
        def __init__(self) -> None:
            pass

        def joules(self) -> float:
            return 50.0

    task, trainer, measured = stand_in_task(), StandInTrainer(), Energy()
    task.clock.mark("compute", samples=200)
    assert measured.figures(task) == {"energy": None}
    monkeypatch.setattr(energy, "energy_counter", lambda device: Counter())
    measured.on_train_start(trainer, task)
    measured.on_train_end(trainer, task)
    figures = measured.figures(task)["energy"]
    assert figures == {"joules": 50.0, "samples_per_joule": 4.0, "source": "nvml total energy"}


@pytest.mark.parametrize(
    ("direction", "stop", "value", "stops"),
    [("max", True, 5.0, True), ("max", True, 4.9, False), ("min", True, 4.9, True), ("min", True, 5.1, False),
     ("max", False, 9.0, False), ("max", True, None, False)],
)  # fmt: skip
def test_a_reached_target_ends_training_if_stop_is_set(
    direction: Any, stop: bool, value: float | None, stops: bool
) -> None:
    trainer, task = StandInTrainer(), stand_in_task(direction, target=5.0)
    task.metrics = {} if value is None else {"quality": value}
    Target(stop).on_validation_end(trainer, task)
    assert trainer.should_stop is stops


@pytest.mark.parametrize(
    ("direction", "values", "ends"),
    [
        ("max", [1, 2, 2, 1, 3, 3, 2.9, 3], [7]),  # the third in a row that is no better
        ("min", [3, 2, 1, float("nan"), 1, 1.5, 1], [6]),
        ("min", [3, 2, 1, 0.5, 0.2, 0.1], []),
    ],
)
def test_a_plateau_ends_training(
    direction: str, values: list[float], ends: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    task, plateau, ended = stand_in_task(direction), Plateau(3), []
    for number, value in enumerate(values):
        trainer = StandInTrainer()
        resumed = Plateau(3)
        resumed.load_state_dict(plateau.state_dict())
        plateau = resumed  # each evaluation is in a resumed run
        task.metrics = {"quality": value}
        plateau.on_validation_end(trainer, task)
        ended += [number] * trainer.should_stop
    assert ended == ends
    said = "training ends: 3 evaluations without a better quality than " in capsys.readouterr().out
    assert said == bool(ends)


def test_reached_is_none_without_a_target() -> None:
    assert FinalMetric("quality", "max", None).reached(1.0) is None


def draw() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


@pytest.mark.parametrize("ranks", [1, 2])
def test_generators_continue_after_resuming_with_the_same_ranks(ranks: int) -> None:
    trainer, task, checkpoint = StandInTrainer(), stand_in_task(), {}
    RngState().on_save_checkpoint(trainer, task, checkpoint)
    expected = draw()
    resumed = RngState()
    trainer.ranks = ranks
    resumed.on_load_checkpoint(trainer, task, checkpoint)
    draw()
    resumed.on_train_start(trainer, task)
    assert (draw() == expected) == (ranks == 1)  # saved with one rank, not restored with two


def test_an_evaluation_does_not_change_the_numbers_that_training_draws() -> None:
    trainer, task, generators = StandInTrainer(), stand_in_task(), RngState()
    state = rng_state(task.device)
    expected = draw()
    restore(state, task.device)
    generators.on_validation_start(trainer, task)
    assert draw() == expected
    generators.on_validation_end(trainer, task)
    assert draw() == expected
