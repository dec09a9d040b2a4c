"""A real run of DLRM that takes a second: synthetic clicks on the device and a network of small sizes."""

from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from src import schema
from src.cli import CONF

CARDINALITIES = [50, 3, 1200, 7]
SIZES = (
    "model.task.network.embedding_dim=8", "model.task.network.bottom=[16,8]", "model.task.network.top=[32,16]",
    "model.task.schedule.warmup_steps=20", "model.task.schedule.decay_start_step=40",
    "model.task.schedule.decay_steps=40",
)  # fmt: skip
TABLES = f"model.task.tables={[[rows, 1] for rows in CARDINALITIES]}".replace(" ", "")


def tiny_dlrm(home: Path, *overrides: str) -> DictConfig:
    """A run of 8 steps of 64 clicks an epoch that writes to `home`/run."""
    schema.register()
    mine = [
        "model=dlrm", "datamodule=criteo_resident", "precision=fp32", "hardware=cpu", "logger=none",
        "~callbacks.progress", "datamodule.steps_per_epoch=8", "datamodule.pool_batches=8", "datamodule.test_batches=2",
        f"datamodule.cardinalities={CARDINALITIES}".replace(" ", ""), TABLES, *SIZES,
        "hp.batch_size=64", "hp.lr=2", "fit.max_epochs=1", "measure.window=2", "measure.warmup_steps=2",
        f"data_root={home / 'data'}", f"output_root={home / 'outputs'}", f"output_dir={home / 'run'}",
    ]  # fmt: skip
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("train", [*mine, *overrides])
