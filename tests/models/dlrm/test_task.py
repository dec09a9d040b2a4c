"""DLRM's task: the contract of all models, and DLRM's own behaviour."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.nn import functional as F

from src.batches.step import StepBatches
from src.callbacks.history import History
from src.config.complete import complete
from src.measure.clock import Clock
from src.models.dlrm.embeddings import PlainEmbeddings
from src.models.dlrm.task import DLRMTask
from src.report.record import Record, read_record
from src.run import Job, build, fit, quieten
from src.run import train as run
from tests.support import warm
from tests.support.same import assert_same_bits, lasting_state
from tests.support.task_contract import TaskContract
from tests.support.tiny_dlrm import CARDINALITIES, ON_DISK, tiny_dlrm, tiny_overrides

TABLES_FROM_DATA = "model.task.tables=null"


class TestDLRM(TaskContract):
    def config(self, home: Path, *overrides: str) -> DictConfig:
        return tiny_dlrm(home, *overrides)


def job_of(home: Path, *overrides: str, **options: Any) -> Job:
    """Returns a run that is ready to fit."""
    quieten()
    return build(complete(tiny_dlrm(home, *overrides, **options)), Clock())


def task_of(job: Job) -> DLRMTask:
    assert isinstance(job.task, DLRMTask)
    return job.task


def history(job: Job) -> list[dict[str, Any]]:
    return next(c.rows for c in job.trainer.callbacks if isinstance(c, History))  # type: ignore[attr-defined]


def watch_steps(job: Job, note: Callable[[Any, dict[str, Tensor]], Callable[[], None]]) -> None:
    """Calls `note` with batch and weights before each step, and after it the function that `note` returned."""
    step, task = job.task.training_step, task_of(job)

    def watched(batch: StepBatches, batch_idx: int) -> None:
        (clicks,) = batch.batches
        after = note(clicks, {name: value.clone() for name, value in task.network.state_dict().items()})
        step(batch, batch_idx)
        after()

    job.task.training_step = watched  # type: ignore[method-assign]


# Tables from the data.


def test_the_networks_tables_come_from_the_data(tmp_path: Path) -> None:
    job = job_of(tmp_path, TABLES_FROM_DATA)
    fit(job)
    task = task_of(job)
    assert [table.cardinality for table in task.network.tables] == CARDINALITIES
    saved = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=False)
    config = saved["model_config"]["task"]
    assert (config["tables"], config["num_numerical"]) == ([[rows, 1] for rows in CARDINALITIES], 13)
    again = instantiate(config)
    again.load_state_dict(saved["state_dict"])
    assert again.layout == task.layout
    assert_same_bits(dict(again.network.state_dict()), dict(task.network.state_dict()))


@pytest.mark.slow
def test_resuming_with_tables_of_the_data_gives_the_same_bits(tmp_path: Path) -> None:
    ending = "fit.final_evaluation=false"
    fit(job_of(tmp_path / "straight", TABLES_FROM_DATA, ending, "fit.max_epochs=2"))
    fit(job_of(tmp_path / "first", TABLES_FROM_DATA, ending))
    checkpoint = tmp_path / "first" / "run" / "checkpoints" / "last.ckpt"
    fit(job_of(tmp_path / "second", TABLES_FROM_DATA, ending, "fit.max_epochs=2", f"ckpt_path={checkpoint}"))
    straight, resumed = (lasting_state(tmp_path / n / "run/checkpoints/last.ckpt") for n in ("straight", "second"))
    assert_same_bits(resumed, straight)


# Evaluations.


def auc_by_pairs(scores: np.ndarray, labels: np.ndarray) -> float:
    """Returns the share of (click, no click) pairs where the click has the higher score; ties count half."""
    clicked, others = scores[labels == 1, None], scores[labels == 0]
    return float(((clicked > others) + 0.5 * (clicked == others)).mean())


def test_an_evaluation_is_exact_over_the_whole_test_set(tmp_path: Path) -> None:
    """With batches of different sizes, against other formulas in float64."""
    job = job_of(tmp_path, "datamodule.test_batch_size=64", data=ON_DISK)
    fit(job)
    data: Any = job.datamodule
    batches = list(data.loader("test"))
    assert [batch.count for batch in batches] == [64, 36]
    network = task_of(job).network.double()
    with torch.no_grad():
        scores = torch.cat([network(batch.clicks()) for batch in batches]).numpy()
    labels = torch.cat([batch.clicks().labels for batch in batches]).numpy()
    log_loss = np.mean(np.log1p(np.exp(-scores * (2 * labels - 1))))
    expected = {"auc": auc_by_pairs(scores, labels), "test_loss": log_loss, "bayes_auc": data.bayes_auc}
    assert job.task.metrics == pytest.approx(expected, rel=1e-5)
    validated = next(row for row in history(job) if "auc" in row)
    assert {name: validated[name] for name in expected} == pytest.approx(expected, rel=1e-5)


def test_the_record_has_the_auc_and_its_target(tmp_path: Path) -> None:
    record = run(tiny_dlrm(tmp_path, "model.task.target=0.01"))
    assert record.final_metric is not None
    assert record.final_metric.name == "auc" and record.final_metric.reached is True
    assert record.final_metric.value == record.history[-1]["auc"]


def steps_of_evaluations(record: Record) -> list[int]:
    """Returns the steps of the evaluations during training."""
    return [row["step"] for row in record.history if "auc" in row][:-1]


def test_evaluations_every_few_steps_continue_over_epochs(tmp_path: Path) -> None:
    record = run(tiny_dlrm(tmp_path, "fit.eval_every_n_steps=3", "fit.max_epochs=2"))
    assert steps_of_evaluations(record) == [3, 6, 9, 12, 15]
    looked = [row["auc"] for row in record.history if "auc" in row][:-1]
    checkpoints = tmp_path / "run" / "checkpoints"
    best = torch.load(checkpoints / "best.ckpt", weights_only=False)
    assert best["global_step"] == 3 * (1 + int(np.argmax(looked)))
    assert torch.load(checkpoints / "last.ckpt", weights_only=False)["global_step"] == 16


@pytest.mark.slow
def test_resuming_from_an_evaluation_within_an_epoch_gives_the_same_bits(tmp_path: Path) -> None:
    often = "fit.eval_every_n_steps=3", "fit.final_evaluation=false"
    fit(job_of(tmp_path / "straight", *often, "fit.max_epochs=2"))
    fit(job_of(tmp_path / "first", *often, "fit.max_steps=4"))
    best = tmp_path / "first" / "run" / "checkpoints" / "best.ckpt"
    assert torch.load(best, weights_only=False)["global_step"] == 3
    again = job_of(tmp_path / "again", *often, "fit.max_epochs=2", f"ckpt_path={best}")
    fit(again)
    straight, resumed = (lasting_state(tmp_path / name / "run/checkpoints/last.ckpt") for name in ("straight", "again"))
    assert_same_bits(resumed, straight)


@pytest.mark.parametrize(("often", "steps"), [("fit.eval_every_n_steps=3", 3), ("fit.eval_every_n_epochs=1", 8)])
def test_training_ends_with_the_evaluation_that_reaches_the_target(often: str, steps: int, tmp_path: Path) -> None:
    stopping = "fit.stop_at_target=true", "model.task.target=0.01", "fit.max_epochs=5"
    record = run(tiny_dlrm(tmp_path, often, *stopping))
    assert record.status == "done" and record.samples == 64 * steps
    assert record.final_metric is not None and record.final_metric.reached is True
    assert torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=False)["global_step"] == steps


# Updates.


@pytest.mark.slow
def test_accumulated_batches_equal_one_batch(tmp_path: Path) -> None:
    """Two of 32 equal one of 64. At the end of an epoch one is left over; samples and steps add up."""
    rows = "datamodule.generate.train_rows=480", "fit.final_evaluation=false"
    jobs = {}
    for name, hp in {"whole": ("hp.batch_size=64",), "halves": ("hp.batch_size=32", "hp.accumulate=2")}.items():
        jobs[name] = job_of(tmp_path / name, *rows, *hp, data=ON_DISK)
        fit(jobs[name])
    whole, halves = (jobs[name].task for name in ("whole", "halves"))
    assert (whole.global_step, halves.global_step) == (7, 8)  # training drops the last, incomplete batch
    assert list(halves.clock.steps.samples) == [64] * 7 + [32]
    again = job_of(tmp_path / "again", *rows, "hp.batch_size=32", "hp.accumulate=2", "fit.max_steps=7", data=ON_DISK)
    fit(again)
    states = [dict(job.task.network.state_dict()) for job in (jobs["whole"], again)]
    torch.testing.assert_close(states[1], states[0], rtol=1e-5, atol=1e-6)
    figures = [{row["step"]: row["loss"] for row in history(job) if "loss" in row} for job in (jobs["whole"], again)]
    assert figures[1][6] == pytest.approx(figures[0][6], rel=1e-5)


def test_the_optimiser_gets_no_tables(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    fit(job)
    network = task_of(job).network
    optimised = {id(p) for group in job.trainer.optimizers[0].param_groups for p in group["params"]}
    tables = {id(weight) for weight in network.embeddings.parameters()}
    assert len(tables) == len(CARDINALITIES) and not optimised & tables
    assert optimised | tables == {id(parameter) for parameter in network.parameters()}
    assert all(weight.grad is None for weight in network.embeddings.parameters())


@pytest.mark.parametrize("precision", ["fp32", "amp"])
def test_tables_and_layers_change_by_rate_times_gradient(precision: str, tmp_path: Path) -> None:
    """The rate rises by 2 / 20 a step; a copy of the network gives the expected gradient."""
    job = job_of(tmp_path, f"precision={precision}", "fit.max_steps=3", "fit.eval_every_n_epochs=null")
    task, changed = task_of(job), []

    def note(batch: Any, before: dict[str, Tensor]) -> Callable[[], None]:
        twin, scale, clicks = deepcopy(task.network), 65536.0, batch.clicks()
        (F.binary_cross_entropy_with_logits(twin(clicks), clicks.labels) * scale).backward()
        gradients = {name: p.grad for name, p in twin.named_parameters() if p.grad is not None}
        assert isinstance(twin.embeddings, PlainEmbeddings)
        of_vectors = twin.embeddings.pending[0].gradient.float()
        for number, ids in enumerate(clicks.ids.view(len(CARDINALITIES), -1).long()):
            empty = torch.zeros_like(before[f"embeddings.weights.{number}"])
            gradients[f"embeddings.weights.{number}"] = empty.index_add(0, ids, of_vectors[:, number])

        def compare() -> None:
            rate = 2 * (len(changed) + 1) / 20
            after = task.network.state_dict()
            assert gradients.keys() == after.keys()
            for name, gradient in gradients.items():
                expected = before[name] - rate / scale * gradient
                torch.testing.assert_close(after[name], expected, rtol=1e-5, atol=1e-6, msg=name)
            changed.append(not torch.equal(after["embeddings.weights.0"], before["embeddings.weights.0"]))

        return compare

    watch_steps(job, note)
    fit(job)
    assert changed == [True] * 3


@pytest.mark.slow
def test_the_loss_scale_stays_constant(tmp_path: Path) -> None:
    """As published; with another growth interval it grows."""
    steady = run(tiny_dlrm(tmp_path / "steady", "precision=amp", "fit.max_epochs=3", "measure.window=1"))
    scales = [row["loss_scale"] for row in steady.history if "loss_scale" in row]
    assert scales == [65536.0] * 24
    assert steady.config["precision"]["loss_scale_growth_steps"] == 10**9
    grown = run(tiny_dlrm(tmp_path / "g", "precision=amp", "precision.loss_scale_growth_steps=4", "measure.window=1"))
    assert [row["loss_scale"] for row in grown.history if "loss_scale" in row][-1] == 4 * 65536.0


@pytest.mark.parametrize("where", ["everywhere", "layers", "tables"])
@pytest.mark.parametrize("tried", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_step_that_overflows_changes_nothing(
    where: str, tried: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer's gradient overflows, or a table's, or all with a loss scale beyond float16, whatever the torch."""
    monkeypatch.setattr("src.training.step.TRIED", tried)
    scale = 2.0**100 if where == "everywhere" else 65536.0
    job = job_of(tmp_path, "precision=amp", f"precision.loss_scale={scale}", "fit.max_steps=3")
    task, scales = task_of(job), []
    if where == "layers":
        cast(Tensor, task.network.top.layers[0].weight).register_hook(times_infinity)
    if where == "tables":
        task.network.embeddings.register_forward_hook(overflow_behind)

    def note(batch: Any, before: dict[str, Tensor]) -> Callable[[], None]:
        def compare() -> None:
            assert_same_bits(dict(task.network.state_dict()), before)
            scales.append(float(task.last["loss_scale"]))

        return compare

    watch_steps(job, note)
    fit(job)
    assert scales == [scale / 2, scale / 4, scale / 8]


def times_infinity(gradient: Tensor) -> Tensor:
    return gradient * float("inf")


def overflow_behind(module: nn.Module, inputs: Any, output: Tensor) -> None:
    """Makes the gradient of the output infinite; a forward hook."""
    if output.requires_grad:
        output.register_hook(times_infinity)


# DLRM-DCNv2.


@pytest.mark.slow
def test_dcnv2_learns_with_adagrad(tmp_path: Path) -> None:
    hotness = [3, 1, 5, 2]
    sizes = [[rows, hot] for rows, hot in zip(CARDINALITIES, hotness, strict=True)]
    overrides = (
        f"datamodule.hotness={hotness}".replace(" ", ""), f"model.task.tables={sizes}".replace(" ", ""),
        "model.task.network.cross_rank=4", "hp.lr=0.05", "fit.max_epochs=8",
    )  # fmt: skip
    job = job_of(tmp_path, *overrides, model="dlrm_dcnv2")
    optimizer = job.task.configure_optimizers()
    assert isinstance(optimizer, torch.optim.Adagrad) and optimizer.defaults["eps"] == 1e-8
    fit(job)
    embeddings = task_of(job).network.embeddings
    assert isinstance(embeddings, PlainEmbeddings) and (embeddings.optimizer, embeddings.eps) == ("adagrad", 1e-8)
    assert all(squares.any() for squares in embeddings.accumulators.buffers())
    losses = [row["loss"] for row in history(job) if "loss" in row]
    assert np.mean(losses[-4:]) < np.mean(losses[:4]) - 0.02


# Several ranks.


@pytest.mark.slow
def test_two_ranks_resume_like_one(tmp_path: Path) -> None:
    """From one checkpoint, with sharded tables, they give the same figures and the same state."""
    train_on = "fit.max_epochs=3", f"ckpt_path={tmp_path / 'run' / 'checkpoints' / 'last.ckpt'}"
    run(tiny_dlrm(tmp_path, TABLES_FROM_DATA, data=ON_DISK))
    one = run(tiny_dlrm(tmp_path, TABLES_FROM_DATA, *train_on, f"output_dir={tmp_path / 'one'}", data=ON_DISK))
    command = [
        "train.py", "trainer=1x2",
        *tiny_overrides(tmp_path, ON_DISK), TABLES_FROM_DATA, *train_on, f"output_dir={tmp_path / 'two'}",
    ]  # fmt: skip
    ended = warm.run(*command)
    assert ended.returncode == 0, ended.stderr
    two = read_record(tmp_path / "two")
    assert (one.ranks, two.ranks, two.samples) == (1, 2, one.samples)
    for name in ("auc", "test_loss", "bayes_auc"):
        assert two.history[-1][name] == pytest.approx(one.history[-1][name], rel=1e-5)
    states = [torch.load(tmp_path / name / "checkpoints" / "last.ckpt", weights_only=False) for name in ("one", "two")]
    torch.testing.assert_close(states[1]["state_dict"], states[0]["state_dict"], rtol=1e-4, atol=1e-6)
