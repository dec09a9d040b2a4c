"""The files in which Hydra keeps a run's config and overrides, without secrets."""

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, ListConfig, OmegaConf

from src.errors import UserError
from src.system.files import check_free, write_text
from src.system.masking import Secrets, find

FOLDER = ".hydra"


def save_masked(config: DictConfig | ListConfig, file: Path, secrets: Secrets | None = None) -> None:
    """Writes a config as yaml with its interpolations, atomically, and without secrets, its own if not told others."""
    write_text(file, OmegaConf.to_yaml(without_secrets(config, secrets)))


def without_secrets(config: DictConfig | ListConfig, secrets: Secrets | None = None) -> Any:
    """Returns a copy of a config that is not resolved: it holds interpolations, and no value of the environment."""
    values = (secrets or find(config)).values
    return OmegaConf.create(Secrets(values=values).masked(OmegaConf.to_container(config, resolve=False)))


def save_run(config: DictConfig) -> None:
    """Writes what Hydra would write to its `output_subdir`, which conf/hydra sets to null; nothing outside of a run.

    Raises UserError where it cannot be written, or where another run is writing.
    """
    if not HydraConfig.initialized() or OmegaConf.is_missing(HydraConfig.get().runtime, "output_dir"):
        return
    hydra: Any = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir) / FOLDER
    os.close(check_free(folder.parent))  # the files in there may be those of a run that was given the same folder
    secrets = find(config)
    save_masked(config, folder / "config.yaml", secrets)
    whole = OmegaConf.create({"hydra": OmegaConf.to_container(hydra, resolve=False)})
    save_masked(whole, folder / "hydra.yaml", secrets)
    save_masked(hydra.overrides.task, folder / "overrides.yaml", secrets)


def remove_unbegun() -> None:
    """Removes the folder of a run that a mistake ended before it began, unless something else is in there."""
    if not HydraConfig.initialized() or OmegaConf.is_missing(HydraConfig.get().runtime, "output_dir"):
        return
    hydra: Any = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    record = folder / "result.json"
    made = {folder / FOLDER, folder / f"{hydra.job.name}.log", record}
    with suppress(OSError, UserError):
        os.close(check_free(folder))
        if not set(folder.iterdir()) <= made or (record.exists() and not is_of_a_mistake(record)):
            return
        shutil.rmtree(folder)
        folder.parent.rmdir()  # of the model, where this was its first run


def is_of_a_mistake(record: Path) -> bool:
    """Returns whether a record is of a run that ended before its first sample, by a mistake."""
    found = json.loads(record.read_text(encoding="utf-8"))
    return not found["samples"] and (found["error"] or {}).get("type") == "UserError"


class GridSweeper(Sweeper):
    """Hydra's own sweeper; its `multirun.yaml` has no secrets. The launcher has its own config, with them.

    Args:
        max_batch_size, params: as Hydra's.
    """

    def __init__(self, max_batch_size: int | None = None, params: dict[str, str] | None = None) -> None:
        # Here, because Hydra imports its plugins anew: a class of before would be another one.
        from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

        self.grid = BasicSweeper(max_batch_size, params)

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.grid.setup(hydra_context=hydra_context, task_function=task_function, config=config)

    def sweep(self, arguments: list[str]) -> Any:
        """Runs the jobs of the grid that the arguments span."""
        assert self.grid.config is not None
        self.grid.config = without_secrets(self.grid.config)
        return self.grid.sweep(arguments)
