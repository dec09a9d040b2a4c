"""Runs a trained model and measures it: `python predict.py ckpt_path=RUN/checkpoints/best.ckpt num_samples=1000`."""

import hydra
from omegaconf import DictConfig

from src.cli import run_entry_point, run_job
from src.config.schema import PredictConfig
from src.config.trained import name_model
from src.config.versions import BASE
from src.system.loading import loading


@hydra.main(**BASE, config_path="conf", config_name="predict")
def main(config: DictConfig) -> None:
    run_job(predict, config, PredictConfig)


def predict(config: DictConfig) -> None:
    """Imports what it needs, torch among it, once the config's values have been checked."""
    with loading():
        from src import predict
    predict.predict(config)


if __name__ == "__main__":
    run_entry_point(main, name_model)
