"""Prepares a data set once, with progress: `python prepare.py datamodule=zinc250k`."""

import hydra
from omegaconf import DictConfig

from src.cli import door, guarded
from src.system.lean import loading


@hydra.main(version_base="1.3", config_path="conf", config_name="prepare")
def main(config: DictConfig) -> None:
    with loading():
        from src.prepare import prepare
    guarded(prepare, config)


if __name__ == "__main__":
    door(main)
