"""The SE(3)-Transformer on a GPU: CUDA graphs of ragged batches give the eager results."""

import csv
import math
from pathlib import Path
from typing import Any, cast

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor

from src.config.complete import complete
from src.measure.clock import Clock
from src.run import Job, build, fit, quieten
from src.training.step import TrainStep
from src.training.task import Task
from tests.support.composing import prediction_of
from tests.support.tiny_se3 import tiny_prediction, tiny_se3

# torch warns about TF32, with other words in every release.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

STEPS = 7  # per epoch


@pytest.fixture(autouse=True)
def several_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes size buckets small, so that batches of these molecules have several shapes."""
    monkeypatch.setattr("src.datamodules.graphs.loader.MULTIPLE", 16)
    monkeypatch.setattr("src.datamodules.graphs.loader.SPREAD", -1.0)


def trained(home: Path, *overrides: str) -> tuple[Job, list[dict[str, Any]], dict[str, Tensor]]:
    """Trains on the GPU; returns the job, the history of every step and the weights of the last checkpoint."""
    home.mkdir(exist_ok=True)
    quieten()
    # With AdamW's own eps a gradient that is zero but for rounding moves its weight by the whole learning rate.
    mine = ["hardware=auto", "precision=fp32", "+model.task.optimizer.eps=0.01", "execution.graph_warmup_steps=1",
            "fit.eval_every_n_epochs=null", "fit.max_epochs=6", "measure.window=1"]  # fmt: skip
    job = build(complete(tiny_se3(home, *mine, *overrides)), Clock())
    job.trainer.callbacks.append(Captures())  # type: ignore[attr-defined]
    fit(job)
    checkpoint = torch.load(home / "run" / "checkpoints" / "last.ckpt", weights_only=False, map_location="cpu")
    history: Any = next(callback for callback in job.trainer.callbacks if hasattr(callback, "rows"))  # type: ignore[attr-defined]
    steps = sorted((row for row in history.rows if "loss" in row), key=lambda row: row["step"])
    return job, steps, checkpoint["state_dict"]


def values(steps: list[dict[str, Any]], name: str) -> list[float]:
    return [step[name] for step in steps]


class Captures(pl.Callback):
    """Counts the captured shapes at the end of training, before the task closes its step."""

    count = -1

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        step = cast(Task, pl_module)._step
        assert isinstance(step, TrainStep)
        self.count = len(step.run.captures)


def captured_shapes(job: Job) -> int:
    return next(
        callback.count
        for callback in job.trainer.callbacks  # type: ignore[attr-defined]
        if isinstance(callback, Captures)
    )


FIT = "fit.final_evaluation=false"


def test_graphs_of_several_shapes_give_the_losses_and_weights_of_eager_steps(tmp_path: Path) -> None:
    """Within float32 rounding; eager steps and replays of several graphs alternate in any order."""
    eager, expected, weights = trained(tmp_path / "eager", "execution.graph=off", FIT)
    graphed, rows, again = trained(tmp_path / "graph", "execution.graph=on", FIT)
    assert captured_shapes(eager) == 0 and captured_shapes(graphed) >= 2
    assert len(expected) == len(rows) == 6 * STEPS
    assert values(rows, "loss") == pytest.approx(values(expected, "loss"), rel=1e-3, abs=1e-4)
    torch.testing.assert_close(again, weights, rtol=1e-2, atol=1e-3)
    assert sum(values(rows, "loss")[-STEPS:]) < sum(values(rows, "loss")[:STEPS])


def test_graphs_use_the_current_learning_rate(tmp_path: Path) -> None:
    """With weight decay alone, every step multiplies the weights by 1 - lr x decay."""
    decay = "model.task.optimizer.weight_decay=0.5", "model.task.optimizer.eps=1e12", "hp.lr=0.1"
    still, _, before = trained(tmp_path / "still", *decay, "hp.lr=0", "fit.max_epochs=1", FIT)
    job, steps, after = trained(tmp_path / "moved", *decay, "fit.max_epochs=4", "execution.graph=on", FIT)
    rates = [0.01 + 0.09 * (1 + math.cos(math.pi * epoch / 4)) / 2 for epoch in range(4) for _ in range(STEPS)]
    assert values(steps, "lr") == pytest.approx(rates, rel=1e-6)
    assert captured_shapes(job) >= 1 and captured_shapes(still) >= 0
    shrunk = math.prod(1 - 0.5 * rate for rate in rates)
    name = "network.head.0.weight"
    torch.testing.assert_close(after[name], before[name] * shrunk, rtol=1e-4, atol=1e-7)


def test_a_resumed_run_gives_the_losses_and_weights_of_an_uninterrupted_one(tmp_path: Path) -> None:
    """Rounding differs: the uninterrupted run replays while the resumed one warms up again."""
    straight, steps, weights = trained(tmp_path / "straight", "execution.graph=on", FIT)
    home = tmp_path / "halves"
    trained(home, "execution.graph=on", FIT, f"fit.max_steps={3 * STEPS + 2}")
    checkpoint = home / "run" / "checkpoints" / "last.ckpt"
    group = torch.load(checkpoint, weights_only=False)["optimizer_states"][0]["param_groups"][0]
    assert isinstance(group["lr"], float)
    resumed, more, again = trained(home, "execution.graph=on", FIT, f"ckpt_path={checkpoint}")
    assert captured_shapes(resumed) >= 1 <= captured_shapes(straight)
    assert values(more, "lr") == values(steps, "lr")[-len(more) :]
    assert values(more, "loss") == pytest.approx(values(steps, "loss")[-len(more) :], rel=1e-3, abs=1e-4)
    torch.testing.assert_close(again, weights, rtol=1e-2, atol=1e-3)


def test_mixed_precision_trains_in_graphs(tmp_path: Path) -> None:
    job, steps, weights = trained(tmp_path, "precision=amp", "execution.graph=on", "fit.max_epochs=12", FIT)
    losses = values(steps, "loss")
    assert all(map(math.isfinite, losses)) and min(values(steps, "loss_scale")) >= 1
    assert sum(losses[-STEPS:]) < 0.8 * sum(losses[:STEPS])
    assert all(value.isfinite().all() and value.dtype != torch.float16 for value in weights.values())
    assert captured_shapes(job) >= 2


def test_evaluations_and_predictions_in_graphs_equal_the_eager_ones(tmp_path: Path) -> None:
    """For evaluations in training, of the last and the best weights, also after Lightning moved the weights."""
    often = "fit.eval_every_n_epochs=1", "fit.max_epochs=3"
    figures = {}
    for graph in ("off", "on"):
        job, _, _ = trained(tmp_path, *often, "seed=4", f"execution.graph={graph}", f"output_dir={tmp_path / 'run'}")
        figures[graph] = job.task.metrics
        checkpoint = tmp_path / "run" / "checkpoints" / "best.ckpt"
        record = prediction_of(
            tiny_prediction(
                tmp_path, "hardware=auto", f"ckpt_path={checkpoint}", "datamodule.predict=test", "batch_size=8",
                f"execution.graph={graph}", "num_samples=40", "benchmark=true",
            )
        )  # fmt: skip
        with (tmp_path / "predicted" / "predictions.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        error = sum(abs(float(row["predicted"]) - float(row["true"])) for row in rows) / len(rows)
        assert error == pytest.approx(job.task.metrics["test_at_best_energy_mae"], rel=1e-3)
        assert record.with_loading is not None and record.throughput is not None
        assert (record.with_loading.throughput or 0) < record.throughput
    assert figures["on"] == pytest.approx(figures["off"], rel=1e-2)
