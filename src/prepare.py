"""Preparing a data set: what training would do at its start, done once and ahead."""

import sys

from omegaconf import DictConfig

from src.config.hydra_files import run_files, save_run
from src.config.instantiate import instantiate
from src.config.schema import PrepareConfig, typed
from src.config.values import checked
from src.datamodules.base import DataModule


def prepare(config: DictConfig) -> None:
    """Prepares the configured data set and prints where it is. Raises UserError for what the user can mend."""
    hydra_files = run_files(config)
    section = typed(checked(config, PrepareConfig)).datamodule
    datamodule: DataModule = instantiate(section, "datamodule")
    try:
        datamodule.prepare_data()
    except KeyboardInterrupt:
        print("run the same command to go on: what is finished is kept", file=sys.stderr)
        raise
    save_run(hydra_files)
    name, folder = section["name"], section.get("data_dir")
    print(f"{name} is ready in {folder}" if folder else f"{name} has no files: there is nothing to prepare")
