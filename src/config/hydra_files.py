"""The files in which Hydra keeps a run's config and overrides, without secrets."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, ListConfig, OmegaConf

from src.config.secrets import find
from src.errors import UserError
from src.system.files import check_free, check_regular, write_text
from src.system.masking import Secrets

FOLDER = ".hydra"


def save_masked(config: DictConfig | ListConfig, file: Path) -> None:
    """Writes a config as yaml with its interpolations, atomically, and without secrets."""
    write_text(file, masked_yaml(config, find(config)))


def masked_yaml(config: DictConfig | ListConfig, secrets: Secrets) -> str:
    """Returns a config as yaml with its interpolations, and without these secrets."""
    return OmegaConf.to_yaml(without_secrets(config, secrets))


def without_secrets(config: DictConfig | ListConfig, secrets: Secrets | None = None) -> Any:
    """Returns a copy of a config that is not resolved: it holds interpolations, and no value of the environment."""
    values = (secrets or find(config)).values
    return OmegaConf.create(Secrets(values=values).masked(OmegaConf.to_container(config, resolve=False)))


def run_files(config: DictConfig) -> dict[Path, str]:
    """Returns what Hydra would write to its `output_subdir`, which conf/hydra sets to null; nothing outside of a run.

    Of the config as it was composed: completing it puts values, also secret ones, where it has interpolations.
    """
    if not HydraConfig.initialized() or OmegaConf.is_missing(HydraConfig.get().runtime, "output_dir"):
        return {}
    hydra: Any = HydraConfig.get()
    folder, secrets = Path(hydra.runtime.output_dir) / FOLDER, find(config)
    whole = OmegaConf.create({"hydra": OmegaConf.to_container(hydra, resolve=False)})
    parts = {"config.yaml": config, "hydra.yaml": whole, "overrides.yaml": hydra.overrides.task}
    return {folder / name: masked_yaml(part, secrets) for name, part in parts.items()}


def save_run(files: dict[Path, str]) -> None:
    """Writes the `run_files`, each atomically. Raises UserError where one cannot be written.

    To be called when no mistake can end the run any more: one leaves the files of an earlier run in its folder alone.
    """
    for path, text in files.items():
        write_text(path, text)


def remove_unbegun() -> None:
    """Removes what a run left that a mistake ended before it began, and its folder where that is empty then.

    A folder with Hydra's files is of a run that began, this or an earlier one; one of a sweep's job keeps its record.
    """
    if not HydraConfig.initialized() or OmegaConf.is_missing(HydraConfig.get().runtime, "output_dir"):
        return
    hydra: Any = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    record, log = folder / "result.json", folder / f"{hydra.job.name}.log"
    if folder.absolute() == Path.cwd():  # export.py's has no folder of its own
        return
    with suppress(OSError, UserError):
        os.close(check_free(folder))
        if (folder / FOLDER).exists() or (folder / "job.json").exists():
            return
        if record.exists() and is_of_a_mistake(record):
            record.unlink()
        if log.exists() and not log.stat().st_size:
            log.unlink()
        folder.rmdir()
        folder.parent.rmdir()  # of the model, where this was its first run


def is_of_a_mistake(record: Path) -> bool:
    """Returns whether a record is of a run that ended before its first sample, by a mistake; False for what is none."""
    try:
        check_regular(record)
        content = json.loads(record.read_text(encoding="utf-8"))
        return not content["samples"] and (content["error"] or {}).get("type") == "UserError"
    except (ValueError, KeyError, TypeError, OSError, UserError):
        return False
