"""A training loop with the measuring callbacks, whose loader, step, evaluation and checkpoint take known times."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from src.callbacks.checkpoint import AtomicCheckpointIO, Checkpoint
from src.callbacks.history import History
from src.callbacks.phases import Phases
from src.callbacks.throughput import Throughput
from src.config.schema import Hardware, Precision
from src.datamodules.base import Metered
from src.datamodules.resident import PoolLoader
from src.measure.clock import Clock
from src.measure.phases import PHASES
from src.measure.roofline import Cost
from src.run import quieten
from src.training.prediction import Prediction
from src.training.task import FinalMetric, Task
from tests.support.stand_ins import StandInTrainer, stand_in_task

LOADER_S, STEP_S, EVALUATION_S, CHECKPOINT_S, OTHER_S = 0.01, 0.02, 0.05, 0.03, 0.005
BATCH, STEPS, EPOCHS, WARMUP = 3, 8, 2, 4
Batch = tuple[Tensor]


class Spent:
    """Busy loops of a given time; adds up the real times, which are longer on a busy machine."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.times: Counter[str] = Counter()

    def spin(self, phase: str, seconds: float, then: Callable[[], object] = lambda: None) -> None:
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            pass
        then()
        self.seconds[phase] += time.perf_counter() - begin
        self.times[phase] += 1


class Loader(PoolLoader[Batch]):
    """Yields batches that each take LOADER_S to fetch."""

    def __init__(self, spent: Spent) -> None:
        super().__init__([(torch.ones(BATCH, 1),)], STEPS, BATCH)
        self.spent = spent

    def batch(self, step: int) -> Batch:
        self.spent.spin("fetch", LOADER_S)
        return super().batch(step)


class SlowTask(Task):
    """A task whose step takes OTHER_S and STEP_S, and whose evaluation takes EVALUATION_S."""

    unit = "samples"
    final_metric = FinalMetric("quality", "max", None)

    def __init__(self, spent: Spent) -> None:
        super().__init__(nn.Linear(1, 1), partial(torch.optim.SGD, lr=0.1))
        self.spent = spent
        self.crash_in_evaluation = False

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        self.spent.spin("compute", STEP_S)
        return {"loss": self.network(*batch).square().mean()}

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.spent.spin("evaluation", EVALUATION_S)
        if self.crash_in_evaluation:
            raise RuntimeError("evaluation broke")
        self.metrics = {"quality": float(self.current_epoch)}

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        self.spent.spin("other", OTHER_S)

    def count(self, batch: Batch) -> int:
        return len(batch[0])

    def cost(self) -> Cost:
        return Cost(flops_forward=2, flops_training=6, bytes_forward=8, bytes_training=24)

    def example_batch(self, size: int) -> Batch:
        return (torch.ones(size, 1),)

    def predict(self, *_: Any, **__: Any) -> Prediction:
        raise NotImplementedError


class Run:
    """A run of SlowTask: the measured figures, and the real times."""

    def __init__(self, folder: Path, crash_in_evaluation: bool = False) -> None:
        quieten()
        self.spent = Spent()
        self.task = SlowTask(self.spent)
        self.task.crash_in_evaluation = crash_in_evaluation
        hardware = Hardware(name="invented", accelerator="cpu", peak_flops={"fp32": 1e6}, peak_bandwidth=1e6)
        callbacks = [
            Phases(),
            Throughput(WARMUP, hardware, Precision(name="fp32")),
            History(4),
            Checkpoint(str(folder)),
        ]
        begin = time.perf_counter()
        clock = self.task.clock = Clock(origin_s=begin)
        trainer = pl.Trainer(
            accelerator="cpu", devices=1, max_epochs=EPOCHS, logger=False, callbacks=callbacks,
            enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
            plugins=[AtomicCheckpointIO()],
        )  # fmt: skip
        save = trainer.save_checkpoint
        trainer.save_checkpoint = lambda path, **options: self.spent.spin(  # type: ignore[method-assign]
            "checkpoint", CHECKPOINT_S, partial(save, path, **options)
        )
        self.failed = False
        try:
            trainer.fit(self.task, Metered(Loader(self.spent), clock), [(torch.ones(1, 1),)])
        except RuntimeError:
            self.failed = True
        self.in_training_s, self.fit_s = sum(self.spent.seconds.values()), time.perf_counter() - begin
        self.spent.spin("other", 10 * OTHER_S)  # other work before the record is written
        self.figures: dict[str, Any] = {}
        self.least_wall_s = time.perf_counter() - begin
        for callback in reversed(callbacks[:3]):
            self.figures |= callback.figures(self.task)  # type: ignore[attr-defined]
        self.most_wall_s = time.perf_counter() - begin

    def check_phases(self) -> None:
        """A phase has at least the real time spent in it, and all have no more than the wall time between two readings.

        So time that one phase takes from another is missing there, however busy the machine is.
        """
        phases = dict(self.figures["phases_s"])
        wall = phases.pop("wall")
        assert set(phases) == set(PHASES)
        assert sum(phases.values()) == pytest.approx(wall, rel=1e-9)
        assert self.least_wall_s <= wall <= self.most_wall_s
        assert all(phases[phase] >= seconds for phase, seconds in self.spent.seconds.items())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("checkpoints"))


def test_a_phase_has_its_real_time(run: Run) -> None:
    steps = STEPS * EPOCHS
    # Every epoch is the best so far, and `last.ckpt` is written then, too: the same file.
    assert run.spent.times == {
        "fetch": steps, "compute": steps, "evaluation": EPOCHS, "checkpoint": EPOCHS, "other": steps + 1,
    }  # fmt: skip
    run.check_phases()


def test_transfer_and_communication_are_zero_on_one_cpu(run: Run) -> None:
    assert run.figures["phases_s"]["transfer"] == run.figures["phases_s"]["communication"] == 0


def test_samples_of_finished_steps_are_counted(run: Run) -> None:
    assert run.figures["samples"] == BATCH * STEPS * EPOCHS
    assert run.figures["ranks"] == 1


def test_each_rate_is_samples_over_its_own_time(run: Run) -> None:
    samples, phases = BATCH * STEPS * EPOCHS, run.figures["phases_s"]
    assert run.figures["p_core"] == pytest.approx(samples / phases["compute"])
    training_s = run.task.clock.training_s
    assert run.figures["p_whole"] == pytest.approx(samples / training_s)
    assert run.figures["p_train"] == pytest.approx(samples / (training_s - phases["evaluation"]))
    assert run.in_training_s <= training_s <= run.fit_s
    assert run.figures["p_whole"] < run.figures["p_train"] < run.figures["p_core"]


def test_steady_rates_exclude_warm_up_evaluation_and_checkpoints(run: Run) -> None:
    steady, left = run.figures["steady"], STEPS * EPOCHS - WARMUP
    iterations, compute = run.task.clock.steps.iteration_s[WARMUP:], run.task.clock.steps.compute_s[WARMUP:]
    assert len(iterations) == left
    assert steady["p_train"] == pytest.approx(BATCH * left / sum(iterations))
    assert steady["p_core"] == pytest.approx(BATCH * left / sum(compute))
    assert min(iterations) >= LOADER_S + STEP_S
    outside = run.spent.seconds["evaluation"] + run.spent.seconds["checkpoint"]
    assert sum(run.task.clock.steps.iteration_s) + outside <= run.task.clock.training_s
    assert min(iterations) <= steady["step_time_s"]["p50"] <= max(iterations)


def test_the_start_is_that_of_the_first_step_and_the_warm_up(run: Run) -> None:
    start, clock = run.figures["start"], run.task.clock
    first, *others = clock.steps.iteration_s[:WARMUP]
    assert start["first_step_s"] == pytest.approx(clock.before_training_s + first)
    assert start["steady_from_s"] == pytest.approx(start["first_step_s"] + sum(others))
    assert sum(start["parts_s"].values()) == pytest.approx(start["steady_from_s"])


def test_utilisation_is_the_steady_rate_over_the_peaks(run: Run) -> None:
    used, rate = run.figures["utilisation"], run.figures["steady"]["p_core"]
    assert used["flops_per_s"] == pytest.approx(6 * rate) and used["of_peak_flops"] == pytest.approx(6 * rate / 1e6)
    assert used["bytes_per_s"] == pytest.approx(24 * rate)
    assert used["of_peak_bandwidth"] == pytest.approx(24 * rate / 1e6)


def test_history_has_losses_by_window_and_evaluations(run: Run) -> None:
    rows = run.figures["history"]
    assert [row["step"] for row in rows] == [4, 8, 8, 12, 16, 16]  # in temporal order
    assert [row["quality"] for row in rows if "loss" not in row] == [0, 1]
    windows = [row for row in rows if "loss" in row]
    assert [row["step"] for row in windows] == [4, 8, 12, 16]
    losses = [row["loss"] for row in windows]
    assert losses == sorted(losses, reverse=True) and losses[0] > losses[-1]
    seconds = run.task.clock.steps.iteration_s
    for end, row in enumerate(windows, 1):
        assert row["samples_per_s"] == pytest.approx(BATCH * 4 / sum(seconds[4 * end - 4 : 4 * end]))


def test_phases_add_up_after_a_failed_evaluation(tmp_path: Path) -> None:
    run = Run(tmp_path, crash_in_evaluation=True)
    assert run.failed and run.figures["samples"] == BATCH * STEPS
    run.check_phases()


def test_the_time_before_a_sanity_check_is_start_up() -> None:
    task = stand_in_task()
    Phases().on_sanity_check_start(StandInTrainer(), task)
    assert task.clock.totals_s["startup"] == sum(task.clock.totals_s.values()) > 0


def test_moving_a_batch_to_its_device_counts_as_transfer() -> None:
    task = SlowTask(Spent())
    batch = (torch.ones(4), torch.ones(2))
    assert task.transfer_batch_to_device(batch, torch.device("cpu"), 0) is batch
    assert task.clock.totals_s["transfer"] == 0
    moved = task.transfer_batch_to_device(batch, torch.device("meta"), 0)
    assert all(tensor.device.type == "meta" for tensor in moved)
    assert task.clock.totals_s["transfer"] > 0
