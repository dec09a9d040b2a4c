"""Features of real molecules for FCD and NSPDK's evaluation, computed by processes beside a training."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from src.errors import UserError
from src.launch.ending import Interrupted
from src.models.moflow import task as module
from src.models.moflow.task import MoFlowTask
from src.molecules import distances
from src.molecules.distances import FeaturesAhead
from src.report.record import Record
from src.run import train as run
from tests.support.tiny_run import tiny_config

pytestmark = pytest.mark.slow
DISTANCES = ("fcd", "nspdk", "floor_fcd", "floor_nspdk")
STEPS = 8
NICENESS = 1  # enough to tell the processes by; with 19 they would wait for other tests


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[FeaturesAhead]:
    """Returns what runs compute ahead: on 8 cores, by chunks of 2; they generate molecules of the training."""
    begun = list[FeaturesAhead]()

    def features_ahead(*args: Any, features_ahead: Callable[..., Any] = module.features_ahead) -> FeaturesAhead | None:
        features = features_ahead(*args)
        begun.extend(filter(None, [features]))
        return features

    def generate(task: MoFlowTask, size: int) -> tuple[np.ndarray, np.ndarray]:
        data = task.trainer.datamodule.data  # type: ignore[attr-defined]
        rows = np.sort(data.train_index[:size])
        return np.array(data.nodes[rows]), np.array(data.edges[rows])

    monkeypatch.setattr(module, "features_ahead", features_ahead)
    monkeypatch.setattr(MoFlowTask, "generate", generate)
    monkeypatch.setattr(distances, "NICENESS", NICENESS)
    monkeypatch.setattr(distances, "CHUNK", 2)
    monkeypatch.setattr(distances, "cpu_count", lambda: 8)
    return begun


def ahead_processes() -> int:
    """Returns how many child processes have the priority of those that work ahead."""
    return sum(child.nice() == psutil.Process().nice() + NICENESS for child in psutil.Process().children())


def in_step(step: int, call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls in a step of the next run, from 1 on."""
    steps = iter(range(1, STEPS + 1))

    def loss(*args: Any, loss: Callable[..., Any] = MoFlowTask.loss) -> Any:
        if next(steps) == step:
            call()
        return loss(*args)

    monkeypatch.setattr(MoFlowTask, "loss", loss)


def judged(home: Path, name: str, *overrides: str) -> Record:
    return run(tiny_config(home, f"output_dir={home / name}", "model.task.distances=true", *overrides))


def test_distances_are_the_same_as_without_work_ahead(
    home: Path, begun: list[FeaturesAhead], monkeypatch: pytest.MonkeyPatch
) -> None:
    processes, computed, without = [], [], {}

    def watch() -> None:
        processes.append(ahead_processes())
        for future in begun[0]._futures.values():
            future.result()

    def judge(task: MoFlowTask, smiles: list[str], judge: Callable[..., Any] = MoFlowTask._distances) -> Any:
        ahead, task._ahead = task._ahead, None
        without.update(judge(task, smiles))
        task._ahead = ahead
        computed.append(len(begun[0]._futures))
        return judge(task, smiles)

    in_step(STEPS, watch, monkeypatch)
    monkeypatch.setattr(MoFlowTask, "_distances", judge)
    metrics = judged(home, "ahead").history[-1]
    assert processes == [2] and ahead_processes() == 0
    assert computed == [4 + 24 / 2] and not begun[0]._futures  # all are taken
    assert without == {name: metrics[name] for name in DISTANCES}


def interrupt() -> None:
    signal.raise_signal(signal.SIGTERM)


def fail() -> None:
    raise UserError("failed")


@pytest.mark.parametrize(("step", "end"), [(2, fail), (2, interrupt), (STEPS, interrupt)])
def test_a_run_that_ends_early_ends_the_processes(
    step: int, end: Callable[[], None], home: Path, begun: list[FeaturesAhead], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its last step, too, after which Lightning's training is complete."""
    in_step(step, end, monkeypatch)
    with pytest.raises((UserError, Interrupted)):
        judged(home, f"{end.__name__}_{step}")
    assert any(future.cancelled() for future in begun[0]._futures.values())
    assert ahead_processes() == 0


def test_few_cores_compute_nothing_ahead(
    home: Path, begun: list[FeaturesAhead], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distances, "cpu_count", lambda: 3)
    in_step(2, fail, monkeypatch)
    with pytest.raises(UserError):
        judged(home, "few_cores")
    assert begun == []


def test_nothing_is_computed_ahead_of_no_final_evaluation(home: Path, begun: list[FeaturesAhead]) -> None:
    judged(home, "not_judged", "fit.final_evaluation=false")
    assert begun == []
