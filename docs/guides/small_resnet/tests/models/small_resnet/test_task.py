"""The small ResNet: the contract of all models, and a whole run."""

from pathlib import Path

from omegaconf import DictConfig

from src.run import train
from tests.support.composing import composed
from tests.support.task_contract import TaskContract

SMALL = (
    "model=small_resnet", "datamodule.num_classes=6", "datamodule.image_size=16", "datamodule.steps_per_epoch=8",
    "datamodule.pool_batches=8", "datamodule.val_batches=2", "model.task.network.widths=[8,16]", "hardware=cpu",
    "logger=none", "~callbacks.progress", "pictures=false", "hp.batch_size=8", "hp.lr=0.05", "fit.max_epochs=1",
    "fit.checkpoint_every_n_epochs=1", "measure.window=2", "measure.warmup_steps=2",
)  # fmt: skip


def small(home: Path, *overrides: str) -> DictConfig:
    """Returns the config of a run that takes a second and writes to `home`."""
    folders = f"data_root={home / 'data'}", f"output_root={home / 'outputs'}", f"output_dir={home / 'run'}"
    return composed("train", *SMALL, *folders, *overrides)


class TestSmallResNet(TaskContract):
    def config(self, home: Path, *overrides: str) -> DictConfig:
        return small(home, *overrides)


def test_a_run_ends_with_a_record(tmp_path: Path) -> None:
    record = train(small(tmp_path))
    assert record.status == "done" and record.final_metric is not None
    assert (record.unit, record.final_metric.name, record.samples) == ("images", "top1", 64)
