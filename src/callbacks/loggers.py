"""What loggers get of a whole run at its end: its config, every figure of its record, its pictures, `result.json`."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from pytorch_lightning.loggers import Logger, WandbLogger

from src.errors import UserError

NOT_FIGURES = ("schema_version", "config", "environment", "history", "case", "kind", "unit", "error")


def check_loggers(config: DictConfig) -> None:
    """Raises UserError for a key of W&B among the config's values."""
    for name, logger in (config.logger or {}).items():
        if "api_key" in logger and logger._target_.endswith("WandbLogger"):
            raise UserError(
                f"logger.{name}.api_key is no setting; give the key by the environment variable WANDB_API_KEY, "
                "or run `wandb login` once"
            )


def log_record(loggers: Sequence[Logger], record: Mapping[str, Any], files: Mapping[str, Path]) -> None:
    """Gives the record of an ended run, as plain values, to each W&B logger that has begun its run.

    Args:
        files: the run's files by what they show, among them 'record'; the PNGs become pictures.
    """
    for logger in loggers:
        if isinstance(logger, WandbLogger) and logger._experiment is not None:
            _log_to_wandb(logger.experiment, record, files)


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
