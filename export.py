"""Writes a trained network for other libraries: `python export.py ckpt_path=RUN/checkpoints/best.ckpt --to onnx`."""

import sys

import hydra
from omegaconf import DictConfig

from src.cli import run_entry_point, run_job
from src.config.dashes import add_model_keys, as_keys
from src.config.schema import ExportConfig
from src.config.versions import BASE
from src.system.loading import loading


@hydra.main(**BASE, config_path="conf", config_name="export")
def main(config: DictConfig) -> None:
    run_job(export, config, ExportConfig)


def export(config: DictConfig) -> None:
    """Imports what it needs, torch among it, once the config's values have been checked."""
    with loading():
        from src.export.run import export
    export(config)


if __name__ == "__main__":
    sys.argv[1:] = as_keys(sys.argv[1:], ["to"])
    run_entry_point(main, add_model_keys)
