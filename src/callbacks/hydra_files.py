"""Writes Hydra's files of a run once its first step is done."""

from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from src.config.hydra_files import save_run


class HydraFiles(pl.Callback):
    """Writes the `run_files` after the first step: a mistake seen before it leaves those of an earlier run alone."""

    def __init__(self, files: dict[Path, str]) -> None:
        self.files = files

    def on_train_batch_end(self, *_: Any) -> None:
        save_run(self.files)
        self.on_train_batch_end = None  # type: ignore[assignment,method-assign]  # costs nothing from here on
