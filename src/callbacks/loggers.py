"""What loggers get of a whole run at its end: its config, the figures of its record, its pictures, `result.json`."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from lightning_fabric.loggers.logger import rank_zero_experiment
from PIL import Image
from pytorch_lightning import loggers
from pytorch_lightning.loggers import Logger, TensorBoardLogger
from pytorch_lightning.utilities import rank_zero_only

from src.config.schema import PredictConfig, TrainConfig
from src.config.settings import given_overrides
from src.report.compare.quantities import figures
from src.report.record import Record
from src.report.wandb_run import begin, described, log_end
from src.system.masking import masked_text

IDENTITY = re.compile(r"[\w-]{1,64}")
Config = TypeVar("Config", TrainConfig, PredictConfig)
LOGGED = "logged"  # a checkpoint's key: what its run's loggers have got so far


class WandbLogger(loggers.WandbLogger):
    """Lightning's, whose rows have the step of training as their own, with charts over samples and seconds.

    A run that goes on from a checkpoint continues its W&B run, after the steps that this has got.
    """

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        if self._experiment is None:
            settings = {
                key: value for key, value in self._wandb_init.items() if key != "anonymous"
            }  # W&B has it no more
            self._experiment = begin(mode="offline" if self._offline else None, **settings)
        return self._experiment

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.experiment.log(dict(metrics), step=step)

    @property
    def goes_on(self) -> bool:
        """Whether the W&B run may have rows of before: it has an id of the config's, or of the checkpoint's."""
        return self._id is not None

    def go_on(self, identity: str) -> None:
        """Has the run be the one of this id, unless the config names another."""
        if self._id is None:
            self._id = self._wandb_init["id"] = identity


def go_on(every: Sequence[Logger], checkpoint: Mapping[str, Any], path: Path) -> None:
    """Has W&B loggers go on in the run of the checkpoint that a training goes on from.

    Only from `last.ckpt`: W&B takes no step twice, and the run has gone on after an earlier checkpoint. The others
    get the rows of before again, from `History`; TensorBoard leaves out those of older files in the folder.
    """
    logged = checkpoint.get(LOGGED)
    identity = logged.get("wandb") if isinstance(logged, dict) else None
    if not (isinstance(identity, str) and IDENTITY.fullmatch(identity)):  # it becomes part of paths and addresses
        identity = None
    for logger in every:
        if isinstance(logger, WandbLogger) and identity is not None and path.name == "last.ckpt":
            logger.go_on(identity)
        elif isinstance(logger, TensorBoardLogger):
            logger._kwargs["purge_step"] = 0


def settle_loggers(config: Config) -> Config:
    """Returns the config with the null keys of W&B's loggers as the environment, the command or the run's place says.

    offline: unless WANDB_MODE is set to something else. project: WANDB_PROJECT, or reprise. save_dir: WANDB_DIR, or the
    run's folder. name, group, job_type and tags: see `described`.
    """
    settled = dict[str, Any]()
    for name, logger in (config.logger or {}).items():
        settled[name] = logger
        if not logger["_target_"].endswith("WandbLogger"):
            continue
        folder = Path(config.output_dir)
        kind, trainer = ("train", config.trainer.name) if isinstance(config, TrainConfig) else ("predict", "1x1")
        tags = [config.precision.name, trainer, config.hardware.name]
        usual = {
            "offline": os.environ.get("WANDB_MODE", "offline") == "offline",
            "project": os.environ.get("WANDB_PROJECT", "reprise"),
            "save_dir": os.environ.get("WANDB_DIR", str(folder)),
            **described(kind, config.model["name"], tags, [*map(masked_text, given_overrides())], folder),
        }
        settled[name] = logger | {key: value for key, value in usual.items() if logger.get(key) is None}
    return replace(config, logger=settled)


def log_record(every: Sequence[Logger], record: Record, files: Mapping[str, Path]) -> None:
    """Gives the record of an ended run to each W&B and TensorBoard logger that has begun its run.

    Args:
        files: the run's files by what they show, among them 'record'; the PNGs become pictures.
    """
    pictures = {name: path for name, path in files.items() if path.suffix == ".png"}
    for logger in every:
        try:
            if isinstance(logger, WandbLogger) and logger._experiment is not None:
                log_end(logger.experiment, record, files)
            elif isinstance(logger, TensorBoardLogger) and logger._experiment is not None:
                _log_to_tensorboard(logger, record, pictures)
        except Exception as error:  # the run is done, and its record is written
            name = "W&B" if isinstance(logger, WandbLogger) else "TensorBoard"
            print(f"note: {name} has not got all of the record ({error})", flush=True)


def end_wandb(status: str) -> None:
    """Ends the W&B run under way, else the next run of this process would go on writing into it; failed if not done."""
    if "wandb" in sys.modules:
        sys.modules["wandb"].finish(exit_code=int(status != "done"))


def _log_to_tensorboard(logger: TensorBoardLogger, record: Record, pictures: Mapping[str, Path]) -> None:
    """Writes the figures that the HParams page compares runs by, once: it shows the first metrics of a run."""
    values = figures(record)
    if record.final_metric:
        values[record.final_metric.name] = values.pop("metric")
    step = max((row.get("step") or 0 for row in record.history), default=0)
    metrics = {f"final/{name}": value for name, value in values.items() if value is not None}
    settings: Any = logger.hparams
    logger.log_hyperparams({**settings, "status": record.status}, metrics, step)
    for name, path in pictures.items():
        with Image.open(path) as picture:
            logger.experiment.add_image(name, np.asarray(picture.convert("RGB")), step, dataformats="HWC")
    logger.finalize(record.status)
