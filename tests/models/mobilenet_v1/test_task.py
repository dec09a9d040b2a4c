"""MobileNetV1 as a task: the contract of all models, its losses and its evaluation."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig
from torch.nn import functional as F

from src.batches.images import ImageBatch
from src.callbacks.history import History
from src.cli import CONF
from src.config.complete import complete
from src.errors import UserError
from src.measure.clock import Clock
from src.models.mobilenet_v1.augment import pasted
from src.models.mobilenet_v1.cost import layers
from src.models.mobilenet_v1.network import ConvNormReLU
from src.models.mobilenet_v1.task import MobileNetV1Task
from src.report.record import read_record
from src.run import Job, build, fit, quieten
from src.training.image_classification import judged
from src.training.schedule import Schedule
from src.training.task import Task
from tests.support import ROOT
from tests.support.composing import composed
from tests.support.task_contract import TaskContract
from tests.support.tiny_mobilenet import CLASSES, tiny_mobilenet, tiny_overrides, write_folders

PLAIN = "model.task.augment.flip=false", "model.task.augment.jitter=0", "model.task.augment.lighting=0"


class TestMobileNetV1(TaskContract):
    learning_steps = 60  # every one sees other colours and other halves mirrored

    def config(self, home: Path, *overrides: str) -> DictConfig:
        return tiny_mobilenet(home, *overrides)

    def wasted_flops(self, task: Task) -> tuple[float, float]:
        """Of a depthwise convolution's weight gradient torch counts every pair of channels; there is one of each."""
        assert isinstance(task, MobileNetV1Task)
        modules = [module for module in task.network.modules() if isinstance(module, ConvNormReLU)]
        sizes = zip(modules, layers(task.network, task.image_size), strict=True)
        return 0.0, float(sum(2 * layer.macs * (module.conv.groups - 1) for module, layer in sizes))


def job_of(home: Path, *overrides: str, **options: Any) -> Job:
    """A run that is ready to fit."""
    quieten()
    return build(complete(tiny_mobilenet(home, *overrides, **options)), Clock())


def task_of(job: Job) -> MobileNetV1Task:
    assert isinstance(job.task, MobileNetV1Task)
    return job.task


def history(job: Job) -> list[dict[str, Any]]:
    return next(c.rows for c in job.trainer.callbacks if isinstance(c, History))  # type: ignore[attr-defined]


# Losses.


def test_smoothed_labels_count_for_every_class(tmp_path: Path) -> None:
    task = task_of(job_of(tmp_path, *PLAIN, "model.task.label_smoothing=0.3"))
    batch = task.example_batch(4)
    with torch.no_grad():
        loss, chances = task.loss(batch)["loss"], task.logits(batch).log_softmax(1)
    wanted = 0.7 * F.one_hot(batch.labels, 6) + 0.3 / 6
    torch.testing.assert_close(loss, -(wanted * chances).sum(1).mean())


def test_a_mixed_batch_is_judged_by_both_labels(tmp_path: Path) -> None:
    """The share is found by drawing it again; images and targets are mixed by it, each with its mirror image."""
    task = task_of(job_of(tmp_path, *PLAIN, "model.task.mixup=0.7"))
    batch = task.example_batch(4)
    images = task.augment(batch.pixels)
    torch.manual_seed(3)
    share = task._share_of_own(images)
    assert 0.01 < share < 0.99
    torch.manual_seed(3)
    with torch.no_grad():
        loss = task.loss(batch)["loss"]
        chances = task.network(share * images + (1 - share) * images.flip(0)).log_softmax(1)
    labels = F.one_hot(batch.labels, 6)
    torch.testing.assert_close(loss, -((share * labels + (1 - share) * labels.flip(0)) * chances).sum(1).mean())


def test_each_image_with_a_pasted_rectangle_is_judged_by_its_shares(tmp_path: Path) -> None:
    task = task_of(job_of(tmp_path, *PLAIN, "model.task.cutmix=0.8"))
    batch = task.example_batch(8)
    torch.manual_seed(3)
    images, share = pasted(task.augment(batch.pixels), torch.tensor(0.8))
    torch.manual_seed(3)
    with torch.no_grad():
        loss, chances = task.loss(batch)["loss"], task.network(images).log_softmax(1)
    labels, share = F.one_hot(batch.labels, 6), share[:, None]
    assert ((share > 0) & (share < 1)).any()
    torch.testing.assert_close(loss, -((share * labels + (1 - share) * labels.flip(0)) * chances).sum(1).mean())
    with torch.no_grad():
        plain = F.cross_entropy(task.network(task.augment(batch.pixels)), batch.labels)
        assert task.loss(batch)["loss"] != plain
        task.mixing.fill_(0)  # as in the last epochs
        torch.testing.assert_close(task.loss(batch)["loss"], plain)
    with pytest.raises(UserError, match="mixup and cutmix exclude each other"):
        job_of(tmp_path, "model.task.cutmix=0.8", "model.task.mixup=0.2")


def test_the_share_follows_the_beta_distribution(tmp_path: Path) -> None:
    """Beta(a, a) has the mean 1/2 and the variance 1 / (4 (2 a + 1))."""
    task = task_of(job_of(tmp_path, "model.task.mixup=0.2"))
    torch.manual_seed(0)
    shares = torch.stack([task._share_of_own(torch.zeros(1)) for _ in range(4000)])
    assert shares.mean().item() == pytest.approx(0.5, abs=0.03)
    assert shares.var().item() == pytest.approx(1 / (4 * 1.4), abs=0.01)


def test_mixing_ends_before_the_last_epochs(tmp_path: Path) -> None:
    job = job_of(tmp_path, "model.task.mixup=0.2", "model.task.mixup_off_epochs=2", "fit.max_epochs=4")
    task, seen = task_of(job), []
    step = task.training_step

    def watched(batch: Any, batch_idx: int) -> None:
        seen.append(float(task.mixing))
        step(batch, batch_idx)

    task.training_step = watched  # type: ignore[method-assign]
    fit(job)
    assert seen == 16 * [1.0] + 16 * [0.0]
    assert task._share_of_own(torch.zeros(1)) == 1


# The recipes.


@pytest.mark.parametrize("name", sorted(file.stem for file in (CONF / "experiment").glob("mobilenet_*.yaml")))
def test_every_experiment_is_made(name: str, tmp_path: Path) -> None:
    config = composed("train", f"experiment={name}", "hardware=cpu", f"output_dir={tmp_path}", "precision=fp32")
    job = build(complete(config), Clock())
    task = task_of(job)
    images = task.augment(task.example_batch(1).pixels)
    assert isinstance(task.schedule, Schedule) and task.schedule(0, 1000) <= 1
    assert images.shape[2] == task.image_size == job.config.datamodule.image_size
    assert task.network.num_classes == job.config.datamodule.num_classes


def test_biases_and_norms_can_be_left_out_of_the_decay(tmp_path: Path) -> None:
    task = task_of(job_of(tmp_path, "model.task.decay_all=false"))
    decayed, others = task.configure_optimizers().param_groups
    assert (decayed["weight_decay"], others["weight_decay"]) == (1e-4, 0.0)
    kinds = {id(p): name.rsplit(".", 2)[-2:] for name, p in task.named_parameters()}
    assert {tuple(kinds[id(p)]) for p in decayed["params"]} == {("conv", "weight"), ("classifier", "weight")}
    rest = {("norm", "weight"), ("norm", "bias"), ("classifier", "bias")}
    assert {tuple(kinds[id(p)]) for p in others["params"]} == rest
    (everything,) = task_of(job_of(tmp_path / "all")).configure_optimizers().param_groups
    assert everything["weight_decay"] == 1e-4 and len(everything["params"]) == len(kinds)


def test_depthwise_convolutions_can_be_left_out_of_the_decay(tmp_path: Path) -> None:
    task = task_of(job_of(tmp_path, "model.task.decay_depthwise=false"))
    decayed, others = task.configure_optimizers().param_groups
    names = {id(p): name for name, p in task.named_parameters()}
    left = {names[id(p)].removeprefix("network.") for p in others["params"]}
    kinds = {name.rsplit(".", 3)[-3:-1] == ["depthwise", "conv"] for name in left}
    assert (len(left), kinds, others["weight_decay"]) == (13, {True}, 0.0)
    assert len(decayed["params"]) == len(names) - 13


def test_the_rate_falls_at_the_configured_epochs(tmp_path: Path) -> None:
    job = job_of(tmp_path, "+model.task.schedule.at=[1,3]", "fit.max_epochs=4", "fit.final_evaluation=false")
    fit(job)
    rates = [row["lr"] for row in history(job) if "lr" in row]
    assert rates == pytest.approx(4 * [0.05] + 8 * [0.005] + 4 * [0.0005])


# Evaluation.


def test_judged_counts_first_and_first_five_guesses() -> None:
    logits = torch.tensor([[9.0, 8, 7, 6, 5, 4, 3], [9.0, 8, 7, 6, 5, 4, 3], [9.0, 8, 7, 6, 5, 4, 3]])
    labels = torch.tensor([0, 4, 5])
    top1, top5, loss, images = judged(logits, labels).tolist()
    assert (top1, top5, images) == (1, 2, 3)
    assert loss == pytest.approx(F.cross_entropy(logits.double(), labels, reduction="sum").item(), rel=1e-6)


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_a_network_that_knows_nothing_is_never_right(value: float) -> None:
    assert judged(torch.full((4, 10), value), torch.arange(4))[:2].tolist() == [0, 0]


def test_an_evaluation_is_exact_over_an_incomplete_batch(tmp_path: Path) -> None:
    """15 images in batches of 4: the figures are those of all of them at once."""
    job = job_of(tmp_path, "datamodule.test_batch_size=4", data=write_folders(tmp_path))
    fit(job)
    top1, top5, loss, images = evaluated(tmp_path / "run", job)
    expected = {"top1": top1 / images, "top5": top5 / images, "val_loss": loss / images}
    assert images == 15 and job.task.metrics == pytest.approx(expected, rel=1e-5)


def test_an_evaluation_sees_images_as_they_are(tmp_path: Path) -> None:
    task = task_of(job_of(tmp_path)).eval()
    batch = task.example_batch(4)
    with torch.no_grad():
        assert torch.equal(task.logits(batch), task.logits(batch))
        assert not torch.equal(task.train().augment(batch.pixels), task.eval().augment(batch.pixels))


def test_two_processes_evaluate_every_image_once(tmp_path: Path) -> None:
    """15 images, 8 and 7 of them: the figures are those of the checkpoint's weights on all of them at once."""
    data = write_folders(tmp_path)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py", "trainer=1x2",
        *tiny_overrides(tmp_path, data), "datamodule.test_batch_size=7",
    ]  # fmt: skip
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    record = read_record(tmp_path / "run")
    assert (record.ranks, record.samples) == (2, 2 * 8 * 2)
    top1, _, loss, images = evaluated(tmp_path / "run", job_of(tmp_path / "one", data=data))
    figures = record.history[-1]
    assert figures["top1"] == pytest.approx(top1 / images)
    assert figures["val_loss"] == pytest.approx(loss / images, rel=1e-4)


def evaluated(folder: Path, job: Job) -> list[float]:
    """What `judged` says of the last weights of a run on all images at once."""
    task = task_of(job).eval()
    task.load_state_dict(torch.load(folder / "checkpoints" / "last.ckpt", weights_only=False)["state_dict"])
    job.datamodule.setup("fit")
    (batch,) = job.datamodule.loader("val", batch_size=15)  # type: ignore[attr-defined]
    with torch.no_grad():
        return judged(task.logits(batch), batch.labels).tolist()


# Classes.


def test_a_checkpoint_knows_the_names_of_its_classes(tmp_path: Path) -> None:
    fit(job_of(tmp_path, data=write_folders(tmp_path)))
    saved = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=False)
    assert saved["model_config"]["task"]["class_names"] == list(CLASSES)


def test_going_on_with_other_classes_is_refused(tmp_path: Path) -> None:
    data = write_folders(tmp_path)
    for split in ("train", "val"):
        (tmp_path / "images" / split / "bee").rename(tmp_path / "images" / split / "elk")
    task = task_of(job_of(tmp_path, f"+model.task.class_names=[{','.join(CLASSES)}]", data=data))
    datamodule = job_of(tmp_path, data=data).datamodule
    with pytest.raises(UserError, match="class cow where the network has bee"):
        task.bind_data(datamodule)


def test_other_data_than_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="MobileNetV1 needs images"):
        job_of(tmp_path).task.bind_data(job_of(tmp_path, data=("datamodule=criteo_resident",)).datamodule)


def test_a_step_changes_with_what_it_is_shown(tmp_path: Path) -> None:
    """The labels reach the loss, and so do the pixels."""
    task = task_of(job_of(tmp_path, *PLAIN))
    batch = task.example_batch(4)
    with torch.no_grad():
        losses = [task.loss(ImageBatch(pixels, labels))["loss"].item() for pixels, labels in (
            batch, (batch.pixels, (batch.labels + 1) % 6), (255 - batch.pixels, batch.labels),
        )]  # fmt: skip
    assert len(set(losses)) == 3
