"""DistilBERT's task: the contract of all models, and DistilBERT's own behaviour."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch import Tensor
from torch.nn import functional as F
from torchmetrics.functional.classification import multiclass_f1_score, multiclass_recall

from src.callbacks.history import History
from src.config.complete import complete
from src.errors import UserError
from src.measure.clock import Clock
from src.models.distilbert.task import DistilBertTask
from src.report.record import read_record
from src.run import Job, build, fit, quieten
from src.run import train as run
from src.training.task import Task
from tests.support import warm
from tests.support.composing import composed
from tests.support.hugging_face import distilbert
from tests.support.same import assert_same_bits
from tests.support.task_contract import TaskContract
from tests.support.tiny_distilbert import NUM_DEV, NUM_TRAIN, tiny_distilbert, tiny_overrides, write_sentences


class TestDistilBertPadded(TaskContract):
    def config(self, home: Path, *overrides: str) -> DictConfig:
        return tiny_distilbert(home, *overrides, padding="max_length")


class TestDistilBertPacked(TaskContract):
    sizes_of_data = ("vocab_size",)
    ragged = True

    def config(self, home: Path, *overrides: str) -> DictConfig:
        return tiny_distilbert(home, *overrides)

    def wasted_flops(self, task: Task) -> tuple[float, float]:
        """Plain torch pads 4 sentences and the batch's padding to the maximum length for attention."""
        assert isinstance(task, DistilBertTask)
        sizes, (sentences, _, squares) = task.network.sizes, task.worked.tolist()
        wasted = 5 * task.max_length**2 / 4 - squares / sentences
        flops = 4 * sizes.n_layers * sizes.dim * wasted
        return flops, 3 * flops


def job_of(home: Path, *overrides: str, padding: str = "packed") -> Job:
    """Returns a run that is ready to fit."""
    quieten()
    return build(complete(tiny_distilbert(home, *overrides, padding=padding)), Clock())


def task_of(job: Job) -> DistilBertTask:
    assert isinstance(job.task, DistilBertTask)
    return job.task


def history(job: Job) -> list[dict[str, Any]]:
    return next(c.rows for c in job.trainer.callbacks if isinstance(c, History))  # type: ignore[attr-defined]


# Evaluations.


@pytest.mark.parametrize("padding", ["packed", "longest"])
def test_an_evaluation_is_exact_over_all_sentences(padding: str, tmp_path: Path) -> None:
    """With batches of different sizes, against float64 with all sentences in one batch."""
    job = job_of(tmp_path, "fit.max_epochs=3", "datamodule.test_batch_size=4", padding=padding)
    fit(job)
    data: Any = job.datamodule
    (batch,) = data.loader("dev", batch_size=100)
    network = task_of(job).network.double().eval()
    with torch.no_grad():
        probabilities = network(batch).softmax(1)
    expected = {
        "acc": float((probabilities.argmax(1) == batch.labels).sum()) / NUM_DEV,
        "dev_loss": float(-probabilities[torch.arange(NUM_DEV), batch.labels].log().mean()),
    }
    assert batch.num_sentences == NUM_DEV
    given, every = probabilities.argmax(1), {"num_classes": 2, "average": "macro"}
    expected["balanced_acc"] = float(multiclass_recall(given, batch.labels, **every))
    expected["macro_f1"] = float(multiclass_f1_score(given, batch.labels, **every))
    assert job.task.metrics == pytest.approx(expected, rel=1e-5)
    validated = [row for row in history(job) if "acc" in row]
    assert {name: validated[-1][name] for name in expected} == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_the_record_has_the_accuracy_and_its_target(tmp_path: Path) -> None:
    record = run(tiny_distilbert(tmp_path, "model.task.target=0.1"))
    assert record.final_metric is not None
    assert record.final_metric.name == "acc" and record.final_metric.reached is True
    assert record.final_metric.value == record.history[-1]["acc"]


def test_training_ends_with_the_evaluation_that_reaches_the_target(tmp_path: Path) -> None:
    record = run(tiny_distilbert(tmp_path, "fit.stop_at_target=true", "model.task.target=0.1", "fit.max_epochs=5"))
    assert record.status == "done" and record.samples == NUM_TRAIN


@pytest.mark.slow
def test_training_learns_to_classify_sentences(tmp_path: Path) -> None:
    """Sentences of the dev set, with a learning rate that decays linearly.

    So wide a network learned with each of ten seeds; one of 16 numbers a token did not with one of them.
    """
    write_sentences(tmp_path / "more", num_train=512)
    longer = f"datamodule.raw={tmp_path / 'more'}", "fit.max_epochs=3", "model.task.schedule.total=null", "hp.lr=5e-3"
    job = job_of(tmp_path, *longer, "model.task.sizes.dim=32", "model.task.sizes.hidden_dim=64")
    fit(job)
    assert job.task.metrics["acc"] > 0.9
    rates = [row["lr"] for row in history(job) if "lr" in row]
    assert rates == pytest.approx([5e-3 * (1 - step / 192) for step in range(1, 192, 2)])


# The optimiser.


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_biases_and_norms_have_no_weight_decay(decay: float, tmp_path: Path) -> None:
    """With zero gradients only weights with decay shrink."""
    task = task_of(job_of(tmp_path, f"model.task.optimizer.weight_decay={decay}", "hp.lr=0.1"))
    optimizer = task.configure_optimizers()
    before = {name: parameter.detach().clone() for name, parameter in task.network.named_parameters()}
    for parameter in task.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in task.network.named_parameters():
        decays = not (name.endswith("bias") or "norm" in name.lower())
        torch.testing.assert_close(parameter.detach(), before[name] * (1 - 0.1 * decay * decays), msg=name)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(before)


def test_learning_rates_decay_from_the_head_to_the_embeddings(tmp_path: Path) -> None:
    """With gradients of 1 Adam's first step equals the learning rate."""
    task = task_of(job_of(tmp_path, "model.task.layer_decay=0.5", "hp.lr=0.25"))
    optimizer = task.configure_optimizers()
    before = {name: parameter.detach().clone() for name, parameter in task.network.named_parameters()}
    for parameter in task.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    layers = task.network.sizes.n_layers
    shares = {"embeddings": 0.5**layers} | {f"layer.{i}.": 0.5 ** (layers - 1 - i) for i in range(layers)}
    for name, parameter in task.network.named_parameters():
        share = next((share for part, share in shares.items() if part in name), 1.0)
        step = torch.full_like(parameter, -0.25 * share)
        torch.testing.assert_close(parameter.detach() - before[name], step, rtol=1e-4, atol=1e-6, msg=name)
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(before)


def test_r_drop_is_the_loss_of_the_paper(tmp_path: Path) -> None:
    """The mean of both cross entropies, plus alpha times the mean of both KL divergences of torch."""
    task = task_of(job_of(tmp_path, "model.task.r_drop=3")).train()
    batch = task.example_batch(6)
    with torch.no_grad():
        task.network.classifier.weight.mul_(100)  # so that the two outputs differ much
    torch.manual_seed(1)
    losses = task.loss(batch)
    torch.manual_seed(1)
    first, second = task.network(batch), task.network(batch)
    logs = [logits.log_softmax(1) for logits in (first, second)]
    apart = sum(F.kl_div(p, q, reduction="batchmean", log_target=True) for p, q in (logs, logs[::-1])) / 2
    entropy = (F.cross_entropy(first, batch.labels) + F.cross_entropy(second, batch.labels)) / 2
    assert isinstance(apart, Tensor) and apart.item() > 0.01
    torch.testing.assert_close(losses["disagreement"], apart)
    torch.testing.assert_close(losses["loss"], entropy + 3 * apart)
    usual = task_of(job_of(tmp_path / "usual"))
    usual.count_work(batch)
    assert task.cost().flops_training == 2 * usual.cost().flops_training


# Costs.


@pytest.mark.parametrize("padding", ["packed", "max_length"])
def test_costs_average_over_all_batches(padding: str, tmp_path: Path) -> None:
    """Not only of the latest one."""
    job = job_of(tmp_path, "fit.eval_every_n_epochs=null", "fit.final_evaluation=false", padding=padding)
    fit(job)
    data: Any = job.datamodule
    lengths = data.loader("train").tokens.lengths if padding == "packed" else torch.full((NUM_TRAIN,), 16)
    assert task_of(job).worked.tolist() == [NUM_TRAIN, int(lengths.sum()), int((lengths**2).sum())]


# Weights.


def test_training_starts_from_a_folder_that_checkpoints_do_not_need(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    distilbert().save_pretrained(folder)
    job = job_of(tmp_path, "model.task.sizes=null", f"model.task.weights={folder}", "hp.lr=0")
    fit(job)
    theirs = distilbert().state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in task_of(job).network.state_dict().items())
    assert task_of(job).is_trained
    (folder / "config.json").unlink()
    saved = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=False)
    again = instantiate(saved["model_config"]["task"])
    again.load_state_dict(saved["state_dict"])
    assert again.network.sizes == task_of(job).network.sizes


def error_of(config: DictConfig) -> str:
    """Runs the config; returns the error message, which its record holds as well."""
    with pytest.raises(UserError) as raised:
        run(config)
    line, record = str(raised.value), read_record(Path(config.output_dir))
    assert "\n" not in line
    assert record.status == "failed" and record.error is not None and record.error.message == line
    return line


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["model.task.sizes.vocab_size=41"], "has 40 word pieces, the weights are for 41; give the vocabulary that "),
        (["datamodule.max_length=17"], "datamodule.max_length=17 is beyond the network's 16 positions; give at most"),
        (["+model.task.sizes.width=3"], "model.task.sizes has no width; it has vocab_size, max_position_embeddings, "),
        (["model.task.sizes.dim=15"], "DistilBERT needs sizes of 1 or more, and a dim that divides by n_heads; got "),
    ],
)
def test_inconsistent_sizes_are_errors(overrides: list[str], words: str, tmp_path: Path) -> None:
    assert words in error_of(tiny_distilbert(tmp_path, *overrides))


def test_data_without_sentences_is_an_error(tmp_path: Path) -> None:
    mine = [override for override in tiny_overrides(tmp_path) if not override.startswith("datamodule.")]
    line = error_of(composed("train", *mine, "datamodule=criteo_resident", "datamodule.pool_batches=1"))
    assert line == "DistilBERT needs sentences; give datamodule=sentences, sst2 or token_synthetic"


def test_sizes_other_than_the_weights_are_an_error(tmp_path: Path) -> None:
    distilbert().save_pretrained(tmp_path / "theirs")
    line = error_of(tiny_distilbert(tmp_path, f"model.task.weights={tmp_path / 'theirs'}"))
    assert line.startswith("model.task.sizes are not those of ") and line.endswith("leave the key away")


# Several ranks.


@pytest.mark.slow
def test_two_ranks_evaluate_every_sentence_once(tmp_path: Path) -> None:
    """With the weights of one checkpoint, on 11 and 10 sentences; the learning rate is 0."""
    one = run(tiny_distilbert(tmp_path))
    command = [
        "train.py", "trainer=1x2",
        *tiny_overrides(tmp_path), f"ckpt_path={tmp_path / 'run' / 'checkpoints' / 'last.ckpt'}", "fit.max_epochs=2",
        "model.task.schedule.total=4", "accept_changes=true", f"output_dir={tmp_path / 'two'}",
    ]  # fmt: skip
    ended = warm.run(*command)
    assert ended.returncode == 0, ended.stderr
    two = read_record(tmp_path / "two")
    assert (one.ranks, two.ranks, two.samples) == (1, 2, 2 * NUM_TRAIN)  # of both legs
    for name in ("acc", "dev_loss"):
        assert two.history[-1][name] == pytest.approx(one.history[-1][name], rel=1e-5)


@pytest.mark.slow
def test_an_evaluation_before_training_changes_only_the_history(tmp_path: Path) -> None:
    """The same last weights, no checkpoint of initial weights, and no stop before the first step."""
    stopping = "fit.stop_at_target=true", "model.task.target=0.1"
    records = {}
    for name in ("false", "true"):
        first = f"fit.evaluate_first={name}", f"output_dir={tmp_path / name}"
        records[name] = run(tiny_distilbert(tmp_path, *stopping, *first))
    assert [row["step"] for row in records["true"].history if "acc" in row] == [0, 4]
    assert [row["step"] for row in records["false"].history if "acc" in row] == [4]
    states = [torch.load(tmp_path / name / "checkpoints" / "last.ckpt", weights_only=False) for name in records]
    assert_same_bits(states[1]["state_dict"], states[0]["state_dict"])
    assert torch.load(tmp_path / "true" / "checkpoints" / "best.ckpt", weights_only=False)["global_step"] == 4
