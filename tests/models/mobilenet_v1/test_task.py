"""MobileNetV1's task: the contract of all models, its losses and its evaluation."""

from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig
from torch.nn import functional as F

from src.batches.images import ImageBatch
from src.callbacks.history import History
from src.config.complete import complete
from src.config.settings import CONF
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
from tests.support import warm
from tests.support.composing import composed
from tests.support.task_contract import ResumeContract
from tests.support.tiny_mobilenet import CLASSES, tiny_mobilenet, tiny_overrides, write_folders

PLAIN = "model.task.augment.flip=false", "model.task.augment.jitter=0", "model.task.augment.lighting=0"


class TestMobileNetV1(ResumeContract):
    learning_steps = 120  # each has other random colours and flips

    def config(self, home: Path, *overrides: str) -> DictConfig:
        return tiny_mobilenet(home, *overrides)

    def wasted_flops(self, task: Task) -> tuple[float, float]:
        """For a depthwise convolution's weight gradient torch's counter multiplies all pairs of channels."""
        assert isinstance(task, MobileNetV1Task)
        modules = [module for module in task.network.modules() if isinstance(module, ConvNormReLU)]
        sizes = zip(modules, layers(task.network, task.image_size), strict=True)
        return 0.0, float(sum(2 * layer.macs * (module.conv.groups - 1) for module, layer in sizes))


def job_of(home: Path, *overrides: str, **options: Any) -> Job:
    """Returns a run that is ready to fit."""
    quieten()
    return build(complete(tiny_mobilenet(home, *overrides, **options)), Clock())


def task_of(job: Job) -> MobileNetV1Task:
    assert isinstance(job.task, MobileNetV1Task)
    return job.task


def history(job: Job) -> list[dict[str, Any]]:
    return next(c.rows for c in job.trainer.callbacks if isinstance(c, History))  # type: ignore[attr-defined]


# Losses.


def test_label_smoothing_spreads_the_target_over_all_classes(tmp_path: Path) -> None:
    task = task_of(job_of(tmp_path, *PLAIN, "model.task.label_smoothing=0.3"))
    batch = task.example_batch(4)
    with torch.no_grad():
        loss, log_probabilities = task.loss(batch)["loss"], task.logits(batch).log_softmax(1)
    target = 0.7 * F.one_hot(batch.labels, 6) + 0.3 / 6
    torch.testing.assert_close(loss, -(target * log_probabilities).sum(1).mean())


def test_mixup_mixes_images_and_targets(tmp_path: Path) -> None:
    """Each with those of the reversed batch; the same seed gives the share again."""
    task = task_of(job_of(tmp_path, *PLAIN, "model.task.mixup=0.7"))
    batch = task.example_batch(4)
    images = task.augment(batch.pixels)
    torch.manual_seed(3)
    share = task._share_of_own(images)
    assert 0.01 < share < 0.99
    torch.manual_seed(3)
    with torch.no_grad():
        loss = task.loss(batch)["loss"]
        log_probabilities = task.network(share * images + (1 - share) * images.flip(0)).log_softmax(1)
    labels = F.one_hot(batch.labels, 6)
    torch.testing.assert_close(
        loss, -((share * labels + (1 - share) * labels.flip(0)) * log_probabilities).sum(1).mean()
    )


def test_cutmix_mixes_targets_by_area(tmp_path: Path) -> None:
    task = task_of(job_of(tmp_path, *PLAIN, "model.task.cutmix=0.8"))
    batch = task.example_batch(8)
    torch.manual_seed(3)
    images, share = pasted(task.augment(batch.pixels), torch.tensor(0.8))
    torch.manual_seed(3)
    with torch.no_grad():
        loss, log_probabilities = task.loss(batch)["loss"], task.network(images).log_softmax(1)
    labels, share = F.one_hot(batch.labels, 6), share[:, None]
    assert ((share > 0) & (share < 1)).any()
    torch.testing.assert_close(
        loss, -((share * labels + (1 - share) * labels.flip(0)) * log_probabilities).sum(1).mean()
    )
    with torch.no_grad():
        plain = F.cross_entropy(task.network(task.augment(batch.pixels)), batch.labels)
        assert task.loss(batch)["loss"] != plain
        task.mixing.fill_(0)  # as in the last epochs
        torch.testing.assert_close(task.loss(batch)["loss"], plain)
    with pytest.raises(UserError, match="mixup and cutmix exclude each other"):
        job_of(tmp_path, "model.task.cutmix=0.8", "model.task.mixup=0.2")


@pytest.mark.slow
def test_mixups_share_follows_the_beta_distribution(tmp_path: Path) -> None:
    """Beta(a, a) has the mean 1/2 and the variance 1 / (4 (2 a + 1))."""
    task = task_of(job_of(tmp_path, "model.task.mixup=0.2"))
    torch.manual_seed(0)
    shares = torch.stack([task._share_of_own(torch.zeros(1)) for _ in range(4000)])
    assert shares.mean().item() == pytest.approx(0.5, abs=0.03)
    assert shares.var().item() == pytest.approx(1 / (4 * 1.4), abs=0.01)


@pytest.mark.slow
def test_mixing_ends_before_the_last_epochs(tmp_path: Path) -> None:
    job = job_of(tmp_path, "model.task.mixup=0.2", "model.task.mixup_off_epochs=2", "fit.max_epochs=4")
    task, seen = task_of(job), []
    step = task.training_step

    def recording_step(batch: Any, batch_idx: int) -> None:
        seen.append(float(task.mixing))
        step(batch, batch_idx)

    task.training_step = recording_step  # type: ignore[method-assign]
    fit(job)
    assert seen == 16 * [1.0] + 16 * [0.0]
    assert task._share_of_own(torch.zeros(1)) == 1


# The recipes.


@pytest.mark.parametrize("name", sorted(file.stem for file in (CONF / "experiment").glob("mobilenet_*.yaml")))
def test_every_experiment_can_be_built(name: str, tmp_path: Path) -> None:
    config = composed("train", f"experiment={name}", "hardware=cpu", f"output_dir={tmp_path}", "precision=fp32")
    job = build(complete(config), Clock())
    task = task_of(job)
    images = task.augment(task.example_batch(1).pixels)
    assert isinstance(task.schedule, Schedule) and task.schedule(0, 1000) <= 1
    assert images.shape[2] == task.image_size == job.config.datamodule["image_size"]
    assert task.network.num_classes == job.config.datamodule["num_classes"]


def test_weight_decay_can_exclude_biases_and_norms(tmp_path: Path) -> None:
    task = task_of(job_of(tmp_path, "model.task.decay_all=false"))
    decayed, others = task.configure_optimizers().param_groups
    assert (decayed["weight_decay"], others["weight_decay"]) == (1e-4, 0.0)
    kinds = {id(p): name.rsplit(".", 2)[-2:] for name, p in task.named_parameters()}
    assert {tuple(kinds[id(p)]) for p in decayed["params"]} == {("conv", "weight"), ("classifier", "weight")}
    rest = {("norm", "weight"), ("norm", "bias"), ("classifier", "bias")}
    assert {tuple(kinds[id(p)]) for p in others["params"]} == rest
    (everything,) = task_of(job_of(tmp_path / "all")).configure_optimizers().param_groups
    assert everything["weight_decay"] == 1e-4 and len(everything["params"]) == len(kinds)


def test_weight_decay_can_exclude_depthwise_convolutions(tmp_path: Path) -> None:
    task = task_of(job_of(tmp_path, "model.task.decay_depthwise=false"))
    decayed, others = task.configure_optimizers().param_groups
    names = {id(p): name for name, p in task.named_parameters()}
    left = {names[id(p)].removeprefix("network.") for p in others["params"]}
    kinds = {name.rsplit(".", 3)[-3:-1] == ["depthwise", "conv"] for name in left}
    assert (len(left), kinds, others["weight_decay"]) == (13, {True}, 0.0)
    assert len(decayed["params"]) == len(names) - 13


@pytest.mark.slow
def test_the_learning_rate_drops_at_the_configured_epochs(tmp_path: Path) -> None:
    job = job_of(tmp_path, "+model.task.schedule.at=[1,3]", "fit.max_epochs=4", "fit.final_evaluation=false")
    fit(job)
    rates = [row["lr"] for row in history(job) if "lr" in row]
    assert rates == pytest.approx(4 * [0.05] + 8 * [0.005] + 4 * [0.0005])


# Evaluation.


def test_judged_counts_top_1_and_top_5() -> None:
    logits = torch.tensor([[9.0, 8, 7, 6, 5, 4, 3], [9.0, 8, 7, 6, 5, 4, 3], [9.0, 8, 7, 6, 5, 4, 3]])
    labels = torch.tensor([0, 4, 5])
    top1, top5, loss, images = judged(logits, labels).tolist()
    assert (top1, top5, images) == (1, 2, 3)
    assert loss == pytest.approx(F.cross_entropy(logits.double(), labels, reduction="sum").item(), rel=1e-6)


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_equal_or_nan_logits_count_as_wrong(value: float) -> None:
    assert judged(torch.full((4, 10), value), torch.arange(4))[:2].tolist() == [0, 0]


def test_an_evaluation_is_exact_over_an_incomplete_batch(tmp_path: Path) -> None:
    """15 images in batches of 4 give the figures of one batch."""
    job = job_of(tmp_path, "datamodule.test_batch_size=4", data=write_folders(tmp_path))
    fit(job)
    top1, top5, loss, images = evaluated(tmp_path / "run", job)
    expected = {"top1": top1 / images, "top5": top5 / images, "val_loss": loss / images}
    assert images == 15 and {key: job.task.metrics[key] for key in expected} == pytest.approx(expected, rel=1e-5)
    assert set(job.task.metrics) == {*expected, "balanced_acc", "macro_f1"}
    # five of each class
    assert job.task.metrics["balanced_acc"] == pytest.approx(top1 / images)


def test_an_evaluation_does_not_augment(tmp_path: Path) -> None:
    task = task_of(job_of(tmp_path)).eval()
    batch = task.example_batch(4)
    with torch.no_grad():
        assert torch.equal(task.logits(batch), task.logits(batch))
        assert not torch.equal(task.train().augment(batch.pixels), task.eval().augment(batch.pixels))


@pytest.mark.slow
def test_two_ranks_evaluate_every_image_once(tmp_path: Path) -> None:
    """8 and 7 of 15 images; the figures equal those of the checkpoint's weights on one batch."""
    data = write_folders(tmp_path)
    command = [
        "train.py", "trainer=1x2",
        *tiny_overrides(tmp_path, data), "datamodule.test_batch_size=7",
    ]  # fmt: skip
    ended = warm.run(*command)
    assert ended.returncode == 0, ended.stderr
    record = read_record(tmp_path / "run")
    assert (record.ranks, record.samples) == (2, 2 * 8 * 2)
    top1, _, loss, images = evaluated(tmp_path / "run", job_of(tmp_path / "one", data=data))
    figures = record.history[-1]
    assert figures["top1"] == pytest.approx(top1 / images)
    assert figures["val_loss"] == pytest.approx(loss / images, rel=1e-4)
    assert figures["balanced_acc"] == pytest.approx(top1 / images)
    assert "for comparison: 0.3333 by always naming" in ended.stdout


def evaluated(folder: Path, job: Job) -> list[float]:
    """Returns `judged` of a run's last weights on all images in one batch."""
    task = task_of(job).eval()
    task.load_state_dict(torch.load(folder / "checkpoints" / "last.ckpt", weights_only=False)["state_dict"])
    job.datamodule.setup("fit")
    (batch,) = job.datamodule.loader("val", batch_size=15)  # type: ignore[attr-defined]
    with torch.no_grad():
        return judged(task.logits(batch), batch.labels).tolist()


# Classes.


def test_a_checkpoint_has_the_class_names(tmp_path: Path) -> None:
    fit(job_of(tmp_path, data=write_folders(tmp_path)))
    saved = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=False)
    assert saved["model_config"]["task"]["class_names"] == list(CLASSES)


def test_resuming_with_other_classes_is_an_error(tmp_path: Path) -> None:
    data = write_folders(tmp_path)
    for split in ("train", "val"):
        (tmp_path / "images" / split / "bee").rename(tmp_path / "images" / split / "elk")
    task = task_of(job_of(tmp_path, f"+model.task.class_names=[{','.join(CLASSES)}]", data=data))
    datamodule = job_of(tmp_path, data=data).datamodule
    with pytest.raises(UserError, match="class cow where the network has bee"):
        task.bind_data(datamodule)


def test_data_without_images_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="MobileNetV1 needs images"):
        job_of(tmp_path).task.bind_data(job_of(tmp_path, data=("datamodule=criteo_resident",)).datamodule)


def test_the_loss_depends_on_pixels_and_labels(tmp_path: Path) -> None:
    task = task_of(job_of(tmp_path, *PLAIN))
    batch = task.example_batch(4)
    with torch.no_grad():
        losses = [task.loss(ImageBatch(pixels, labels))["loss"].item() for pixels, labels in (
            batch, (batch.pixels, (batch.labels + 1) % 6), (255 - batch.pixels, batch.labels),
        )]  # fmt: skip
    assert len(set(losses)) == 3
