"""Trains and measures one case, or a sweep of them: `python train.py model=moflow trainer=1x1 +fix_hp=max_bs`."""

import hydra
from omegaconf import DictConfig

from src.cli import run_entry_point, run_job
from src.config.schema import TrainConfig
from src.config.searched import as_searched
from src.config.versions import BASE


@hydra.main(**BASE, config_path="conf", config_name="train")
def main(config: DictConfig) -> None:
    from src.train import train_here_or_on_ranks  # torch is not loaded for --help, --cfg job or completion

    run_job(train_here_or_on_ranks, config, TrainConfig)


if __name__ == "__main__":
    run_entry_point(main, as_searched)
