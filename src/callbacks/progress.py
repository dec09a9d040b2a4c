"""The progress bar, with the newest losses and rate of `History`."""

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import TQDMProgressBar

from src.callbacks.history import History
from src.training.task import Task


class Progress(TQDMProgressBar):
    """Lightning's tqdm bar; shows values that `History` has read, so that it does not wait for the device."""

    def __init__(self) -> None:
        super().__init__(refresh_rate=10)  # steps

    def get_metrics(self, trainer: pl.Trainer, pl_module: Task) -> dict[str, Any]:
        latest = next((c.latest for c in trainer.callbacks if isinstance(c, History)), {})  # type: ignore[attr-defined]
        shown = ("loss", pl_module.final_metric.name, f"{pl_module.unit}_per_s")
        known = {name: latest[name] for name in shown if name in latest}
        return {name: f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" for name, value in known.items()}
