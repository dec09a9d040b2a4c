"""Prepares a data set once, with progress: `python prepare.py datamodule=zinc250k`."""

import hydra
from omegaconf import DictConfig

from src.cli import run_entry_point, run_job
from src.config.schema import PrepareConfig
from src.config.versions import BASE
from src.system.loading import loading


@hydra.main(**BASE, config_path="conf", config_name="prepare")
def main(config: DictConfig) -> None:
    run_job(prepare, config, PrepareConfig)


def prepare(config: DictConfig) -> None:
    """Imports what it needs, torch among it, once the config's values have been checked."""
    with loading():
        from src import prepare
    prepare.prepare(config)


if __name__ == "__main__":
    run_entry_point(main)
