"""Configs of DLRM runs that take a second: synthetic clicks, on the device or on disk, and a small network."""

from pathlib import Path

from omegaconf import DictConfig

from tests.support.composing import composed

CARDINALITIES = [50, 3, 1200, 7]
SIZES = (
    "model.task.network.embedding_dim=8", "model.task.network.bottom=[16,8]", "model.task.network.top=[32,16]",
)  # fmt: skip
SCHEDULE = (
    "model.task.schedule.warmup_steps=20", "model.task.schedule.decay_start_step=40",
    "model.task.schedule.decay_steps=40",
)  # fmt: skip
TABLES = f"model.task.tables={[[rows, 1] for rows in CARDINALITIES]}".replace(" ", "")
OWN_CARDINALITIES = f"cardinalities={CARDINALITIES}".replace(" ", "")
ON_DEVICE = (
    "datamodule=criteo_resident", "datamodule.steps_per_epoch=8", "datamodule.pool_batches=8",
    "datamodule.test_batches=2", f"datamodule.{OWN_CARDINALITIES}",
)  # fmt: skip
ON_DISK = (
    "datamodule=criteo_synthetic", "datamodule.generate.train_rows=512", "datamodule.generate.test_rows=100",
    f"datamodule.generate.{OWN_CARDINALITIES}",
)  # fmt: skip


def tiny_overrides(home: Path, data: tuple[str, ...] = ON_DEVICE, model: str = "dlrm") -> list[str]:
    """Returns the overrides of a run with 8 steps of 64 clicks an epoch, which writes to `home`/run."""
    return [
        f"model={model}", *data, "precision=fp32", "hardware=cpu", "logger=none", "~callbacks.progress", TABLES, *SIZES,
        *(SCHEDULE if model == "dlrm" else ()), "hp.batch_size=64", "hp.lr=2", "fit.max_epochs=1", "measure.window=2",
        "measure.warmup_steps=2", "pictures=false", f"data_root={home / 'data'}", f"output_root={home / 'outputs'}",
        f"output_dir={home / 'run'}",
    ]  # fmt: skip


def tiny_dlrm(home: Path, *overrides: str, data: tuple[str, ...] = ON_DEVICE, model: str = "dlrm") -> DictConfig:
    """Composes the config of `tiny_overrides`, then `overrides`."""
    return composed("train", *tiny_overrides(home, data, model), *overrides)


def tiny_prediction(home: Path, *overrides: str, data: tuple[str, ...] = ON_DISK) -> list[str]:
    """Returns the overrides of a prediction in batches of 16 that writes to `home`/predicted."""
    mine = [
        "model=dlrm", *data, "precision=fp32", "hardware=cpu", "batch_size=16", f"data_root={home / 'data'}",
        f"output_root={home / 'outputs'}", f"output_dir={home / 'predicted'}",
    ]  # fmt: skip
    return [*mine, *overrides]
