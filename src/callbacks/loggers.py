"""What loggers get of a whole run at its end: its config, the figures of its record, its pictures, `result.json`."""

import os
import re
import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np
from lightning_fabric.loggers.logger import rank_zero_experiment
from PIL import Image
from pytorch_lightning import loggers
from pytorch_lightning.loggers import Logger, TensorBoardLogger
from pytorch_lightning.utilities import rank_zero_only

from src.config.schema import PredictConfig, TrainConfig
from src.config.settings import given_overrides
from src.errors import UserError
from src.report.compare.quantities import figures
from src.report.record import Record
from src.report.wandb_run import begin, described, log_end, summary
from src.system.masking import masked_text

IDENTITY = re.compile(r"[\w-]{1,64}")
# What the loggers whose null keys are settled call W&B's keys.
NAMED: dict[str, dict[str, str]] = {
    "WandbLogger": {}, "TrackioLogger": {}, "MLFlowLogger": {"project": "experiment_name", "name": "run_name"},
}  # fmt: skip
Config = TypeVar("Config", TrainConfig, PredictConfig)
KINDS = ("wandb", "mlflow", "trackio")
LOGGED = "logged"  # a checkpoint's key: what its run's loggers have got so far


class Continued(Logger):
    """A logger whose run a training that goes on from `last.ckpt` continues; `kind` is its key in a checkpoint."""

    kind: str

    @property
    @abstractmethod
    def goes_on(self) -> bool:
        """Whether the logger's run may have rows of before."""

    @abstractmethod
    def go_on(self, identity: str) -> None:
        """Has the run be the one of this id, unless the config names another."""


class WandbLogger(loggers.WandbLogger, Continued):
    """Lightning's, whose rows have the step of training as their own, with charts over samples and seconds.

    A run that goes on from a checkpoint continues its W&B run, after the steps that this has got.
    """

    kind = "wandb"

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


class MLFlowLogger(loggers.MLFlowLogger, Continued):
    """Lightning's, which a training that goes on continues: MLflow takes no setting twice, so the first ones stay."""

    kind = "mlflow"

    def __init__(self, **settings: Any) -> None:
        need("mlflow")
        # MLflow asks for a database instead of its files, which need no set-up.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._goes_on = settings.get("run_id") is not None
        address = settings.pop("tracking_uri", None) or os.environ.get("MLFLOW_TRACKING_URI")
        super().__init__(**settings, tracking_uri=address)

    @property
    def goes_on(self) -> bool:
        return self._goes_on

    def go_on(self, identity: str) -> None:
        with suppress(Exception):  # the run is in another store: this one begins anew
            if self._run_id is None and self._mlflow_client.get_run(identity):
                self._run_id, self._goes_on = identity, True

    @rank_zero_only
    def log_hyperparams(self, params: Any) -> None:
        if not self._goes_on:
            super().log_hyperparams(params)

    def log_end(self, record: Record, files: Mapping[str, Path]) -> None:
        """Gives the run the record's figures as metrics, its files as artifacts, and its end."""
        run, values = self.run_id, numbers(record)
        assert run is not None
        self.log_metrics(values, last_step(record))
        for path in files.values():
            if path.exists():
                self.experiment.log_artifact(run, str(path))
        self.experiment.set_tag(run, "status", record.status)
        self.experiment.set_terminated(run, "FINISHED" if record.status == "done" else "FAILED")


class TrackioLogger(Continued):
    """Trackio's runs, which are kept on this machine: the rows and figures that W&B gets, under the same names."""

    kind = "trackio"

    def __init__(
        self, project: str | None, name: str | None, group: str | None = None, save_dir: str | None = None
    ) -> None:
        super().__init__()
        need("trackio")
        if save_dir is not None:
            os.environ.setdefault("TRACKIO_DIR", save_dir)  # read when trackio is imported
        plain = re.sub(r"[^\w-]+", "-", name or "run")[:50]
        self.run_name = f"{plain}-{uuid4().hex[:6]}"  # of one run only, since runs are continued by their names
        self.project, self.group = project, group
        self._settings: dict[str, Any] = {}
        self._run: Any = None
        self._goes_on = False

    name = property(lambda self: self.project)
    version = property(lambda self: self.run_name)

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        if self._run is None:
            trackio: Any = import_module("trackio")
            resume = "must" if self._goes_on else "never"
            place = {"project": self.project, "name": self.run_name, "group": self.group}
            self._run = trackio.init(**place, config=self._settings, resume=resume, embed=False, auto_log_gpu=False,
                                     auto_log_cpu=False)  # fmt: skip
        return self._run

    @property
    def goes_on(self) -> bool:
        return self._goes_on

    def go_on(self, identity: str) -> None:
        self.run_name, self._goes_on = identity, True

    @rank_zero_only
    def log_hyperparams(self, params: Any) -> None:
        self._settings = dict(params)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.experiment.log(dict(metrics), step=step)

    def log_end(self, record: Record, files: Mapping[str, Path]) -> None:
        """Gives the run the record's figures, and ends it."""
        self.experiment.log({**numbers(record), "status": record.status}, step=last_step(record))
        self.experiment.finish()


def need(package: str) -> None:
    """Raises UserError where a logger's package is not installed."""
    if find_spec(package) is None:
        raise UserError(f"logger={package} needs the package {package}; install it with pip")


def numbers(record: Record) -> dict[str, float]:
    """Returns the figures of a record that are numbers, by the names that they have in W&B's summary."""
    return {name: value for name, value in summary(record).items() if isinstance(value, int | float)}


def last_step(record: Record) -> int:
    return max((row.get("step") or 0 for row in record.history), default=0)


def go_on(every: Sequence[Logger], checkpoint: Mapping[str, Any], path: Path) -> None:
    """Has loggers go on in the run of the checkpoint that a training goes on from.

    Only from `last.ckpt`: W&B takes no step twice, and the run has gone on after an earlier checkpoint. The others
    get the rows of before again, from `History`; TensorBoard leaves out those of older files in the folder.
    """
    logged = checkpoint.get(LOGGED)
    for logger in every:
        if isinstance(logger, Continued) and path.name == "last.ckpt" and isinstance(logged, dict):
            identity = logged.get(logger.kind)
            if isinstance(identity, str) and IDENTITY.fullmatch(identity):  # it becomes part of paths and addresses
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
        target = logger["_target_"].rpartition(".")[2]
        if target not in NAMED:
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
        usual = {NAMED[target].get(key, key): value for key, value in usual.items()}
        # A key that the logger has not got is none of its arguments.
        settled[name] = logger | {key: value for key, value in usual.items() if logger.get(key, "") is None}
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
            elif isinstance(logger, MLFlowLogger | TrackioLogger):
                logger.log_end(record, files)
        except Exception as error:  # the run is done, and its record is written
            name = type(logger).__name__.removesuffix("Logger").replace("Wandb", "W&B")
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
