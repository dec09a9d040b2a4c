"""Preparing a data set: what training would do at its start, done once and ahead."""

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from src.datamodules.base import DataModule
from src.run import check_built


def prepare(config: DictConfig) -> None:
    """Prepares the configured data set and prints where it is. Raises UserError for what the user can mend."""
    OmegaConf.resolve(config)
    check_built(config)
    datamodule: DataModule = instantiate(config.datamodule)
    datamodule.prepare_data()
    print(f"{config.datamodule.name} is ready in {config.datamodule.data_dir}")
