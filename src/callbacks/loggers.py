"""What loggers get of a whole run at its end: its config, the figures of its record, its pictures, `result.json`."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, read_write
from PIL import Image
from pytorch_lightning.loggers import Logger, TensorBoardLogger, WandbLogger

from src.errors import UserError
from src.report.compare.quantities import figures
from src.report.record import Record

NOT_FIGURES = ("schema_version", "config", "environment", "history", "case", "kind", "unit", "error")


def settle_loggers(config: DictConfig) -> None:
    """Completes the keys of W&B's loggers that are null, as the environment or the run's place says.

    offline: unless WANDB_MODE is set to something else. project: WANDB_PROJECT, or reprise. save_dir: WANDB_DIR, or the
    run's folder. group: the sweep's folder, or the model. Raises UserError for a key of W&B's among the values.
    """
    for name, logger in (config.logger or {}).items():
        if not logger._target_.endswith("WandbLogger"):
            continue
        if "api_key" in logger:
            raise UserError(
                f"logger.{name}.api_key is no setting; give the key by the environment variable WANDB_API_KEY, "
                "or run `wandb login` once"
            )
        folder = Path(config.output_dir)
        in_sweep = (folder / "job.json").exists()
        usual = {
            "offline": os.environ.get("WANDB_MODE", "offline") == "offline",
            "project": os.environ.get("WANDB_PROJECT", "reprise"),
            "save_dir": os.environ.get("WANDB_DIR", str(folder)),
            "group": folder.absolute().parent.name if in_sweep else config.model.name,
        }
        with read_write(config):
            logger.update({key: value for key, value in usual.items() if logger.get(key) is None})


def log_record(loggers: Sequence[Logger], record: Record, files: Mapping[str, Path]) -> None:
    """Gives the record of an ended run to each W&B and TensorBoard logger that has begun its run.

    Args:
        files: the run's files by what they show, among them 'record'; the PNGs become pictures.
    """
    pictures = {name: path for name, path in files.items() if path.suffix == ".png"}
    for logger in loggers:
        try:
            if isinstance(logger, WandbLogger) and logger._experiment is not None:
                _log_to_wandb(logger.experiment, record.to_dict(), files)
            elif isinstance(logger, TensorBoardLogger) and logger._experiment is not None:
                _log_to_tensorboard(logger, record, pictures)
        except Exception as error:  # the run is done, and its record is written
            name = "W&B" if isinstance(logger, WandbLogger) else "TensorBoard"
            print(f"note: {name} has not got all of the record ({error})", flush=True)


def _log_to_tensorboard(logger: TensorBoardLogger, record: Record, pictures: Mapping[str, Path]) -> None:
    """Writes the figures that the HParams page compares runs by, once: it shows the first metrics of a run."""
    known = figures(record)
    if record.final_metric:
        known[record.final_metric.name] = known.pop("metric")
    step = max((row.get("step") or 0 for row in record.history), default=0)
    metrics = {f"final/{name}": value for name, value in known.items() if value is not None}
    logger.log_hyperparams({**logger.hparams, "status": record.status}, metrics, step)
    for name, path in pictures.items():
        with Image.open(path) as picture:
            logger.experiment.add_image(name, np.asarray(picture.convert("RGB")), step, dataformats="HWC")
    logger.finalize(record.status)


def _log_to_wandb(run: Any, record: Mapping[str, Any], files: Mapping[str, Path]) -> None:
    import wandb

    run.config.update({key: record[key] for key in ("config", "case", "environment")}, allow_val_change=True)
    pictures = {name: wandb.Image(str(path)) for name, path in files.items() if path.suffix == ".png"}
    if pictures:
        run.log(pictures)
    run.summary.update(dict(flat({key: value for key, value in record.items() if key not in NOT_FIGURES})))
    artifact = wandb.Artifact(f"record-{run.id}", type="record")
    artifact.add_file(str(files["record"]), name="result.json")
    run.log_artifact(artifact)


def flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the values of plain data that are not None, by their keys joined with dots."""
    if isinstance(value, Mapping | list):
        for name, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from flat(item, f"{key}.{name}" if key else str(name))
    elif value is not None:
        yield key, value
