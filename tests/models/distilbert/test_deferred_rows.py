"""Whole runs of DistilBERT whose word vectors' steps are deferred, in Triton's interpreter."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor

from src.config.complete import complete
from src.gpu import deferred_rows, triton_helpers
from src.measure.clock import Clock
from src.models.distilbert.task import DistilBertTask
from src.run import Job, build, fit, quieten
from src.training.tables import with_kernels
from tests.support.tiny_distilbert import tiny_distilbert
from tests.support.trained import state_of

KERNELS = "execution.kernels=[embedding,adam,deferred_rows]", "execution.kernels=[embedding,adam]"
# Evaluations within an epoch, whose checkpoints lack RING steps, and a schedule; without dropout, whose seeds resume.
OPTIONS = (
    "fit.max_epochs=2",
    "fit.eval_every_n_steps=3",
    "fit.eval_every_n_epochs=null",
    "model.task.optimizer.weight_decay=0.1",
)


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_helpers, "devices", {"cuda", "cpu"})
    monkeypatch.setattr(DistilBertTask, "fast_optimizer_flags", lambda task: {"fused": True})
    monkeypatch.setattr(deferred_rows, "RING", 5)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Yields a list that fills with each deferred step, and each time that all rows catch up."""
    noted, take_step, catch_up = list[str](), deferred_rows.Rows.take_step, deferred_rows.Rows.catch_up

    def stepped(rows: deferred_rows.Rows) -> None:
        noted.append("step")
        take_step(rows)

    def caught_up(rows: deferred_rows.Rows, in_order: Tensor | None = None) -> None:
        noted.extend(["all"] if in_order is None else [])
        catch_up(rows, in_order)

    monkeypatch.setattr(deferred_rows.Rows, "take_step", stepped)
    monkeypatch.setattr(deferred_rows.Rows, "catch_up", caught_up)
    yield noted


def fitted(home: Path, *overrides: str) -> Job:
    quieten()
    job = build(complete(tiny_distilbert(home, *OPTIONS, *overrides)), Clock())
    fit(job)
    return job


def result(home: Path, job: Job) -> tuple[list[Tensor], dict[str, float]]:
    """Returns the last checkpoint's weights and averages, the weights in memory, and the last evaluation's metrics."""
    saved = torch.load(home / "run" / "checkpoints" / "last.ckpt", weights_only=False)
    states = [s[name] for s in saved["optimizer_states"][0]["state"].values() for name in ("exp_avg", "exp_avg_sq")]
    return [*saved["state_dict"].values(), *states, *state_of(job.task.network).values()], job.task.metrics


@pytest.mark.slow
def test_runs_are_those_of_steps_taken_at_once(tmp_path: Path, events: list[str]) -> None:
    """Evaluations and checkpoints included, whole or resumed after 5 steps."""
    results = []
    for number, kernels in enumerate(KERNELS):
        home = tmp_path / str(number)
        results.append(result(home, fitted(home, kernels)))
    # Nothing reads the weights but three evaluations, and a checkpoint between them.
    assert (events.count("step"), events.count("all")) == (7, 4)
    half, rest = tmp_path / "half", tmp_path / "rest"
    last = half / "run" / "checkpoints" / "last.ckpt"
    fitted(half, KERNELS[0], "fit.max_steps=5")
    results.append(result(rest, fitted(rest, KERNELS[0], f"ckpt_path={last}", "accept_changes=true")))
    assert events.count("step") == 7 + 4 + 2
    for ours in (results[0], results[2]):
        torch.testing.assert_close(ours[0], results[1][0], rtol=1e-5, atol=1e-7)
        assert ours[1] == pytest.approx(results[1][1], rel=1e-5)


class Other(pl.Callback):
    """A callback that is not the project's."""


@pytest.mark.parametrize(
    ("overrides", "defers"),
    [
        ((), True), (("execution.kernels=[embedding,adam]",), False), (("execution.kernels=[deferred_rows]",), False),
        (("execution.kernels=off",), False), (("hp.accumulate=2",), False), (("fit.ema_decay=0.9",), False),
        (("fit.clip_norm=1",), False), (("model.task.optimizer.amsgrad=true",), False), (("scaler",), False),
        (("ranks",), False), (("callback",), False),
    ],
)  # fmt: skip
def test_steps_are_deferred_where_nothing_needs_dense_gradients(
    overrides: tuple[str, ...], defers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [f"++{key}" if "amsgrad" in key else key for key in overrides if "=" in key]
    job: Any = build(complete(tiny_distilbert(tmp_path, *keys)), Clock())
    plugin = SimpleNamespace(scaler=object() if "scaler" in overrides else None)
    callbacks = [*job.trainer.callbacks, *([Other()] if "callback" in overrides else [])]
    trainer = SimpleNamespace(precision_plugin=plugin, callbacks=callbacks, world_size=1 + ("ranks" in overrides))
    monkeypatch.setattr(DistilBertTask, "trainer", trainer)
    optimizer = job.task.configure_optimizers()
    has_kernels = not {"execution.kernels=off", "execution.kernels=[deferred_rows]"} & {*overrides}
    assert (optimizer in with_kernels) == has_kernels
    assert job.task.defers_rows(optimizer) == defers
