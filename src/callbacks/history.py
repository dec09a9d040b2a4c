"""Logs losses once per window and metrics once per evaluation, without waiting for the device inside a step."""

from collections import deque
from contextlib import suppress
from typing import Any

import pytorch_lightning as pl
import torch

from src.callbacks.loggers import LOGGED, WandbLogger
from src.callbacks.measuring import Measuring
from src.callbacks.window import Window
from src.config.ranges import Count
from src.report.wandb_run import AXES
from src.training.task import Task


class History(Measuring):
    """Every `every_n_steps` steps, reads the clock's finished events and logs the losses that have arrived.

    The newest losses are copied to the host asynchronously and logged at a later window, once the copy has arrived,
    since the host may be many steps ahead of the device. Rows are logged in the order of their steps.

    Of several ranks a row has the sum of their rates and samples, and the mean of a step's losses over its samples.

    Samples and seconds of a row count from the first step of the training, also in a run that goes on with it.
    """

    def __init__(self, every_n_steps: Count) -> None:
        self.every_n_steps = every_n_steps
        self.rows: list[dict[str, Any]] = []
        self.latest: dict[str, float] = {}  # for the progress bar
        self._windows: deque[Window] = deque()
        self._calls = self._read_steps = 0
        self._before: dict[str, Any] = {}  # what the run that this one continues had logged
        self._begin_s: float | None = None  # of the clock, at the first step

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: Task, checkpoint: dict[str, Any]) -> None:
        where = self._where(trainer, pl_module)
        run = next((each.version for each in trainer.loggers if isinstance(each, WandbLogger)), None)
        logged = {"samples": where["samples"], "seconds": where["seconds"], "wandb": run or self._before.get("wandb")}
        checkpoint[LOGGED] = logged

    def on_load_checkpoint(self, trainer: pl.Trainer, pl_module: Task, checkpoint: dict[str, Any]) -> None:
        self._before = checkpoint.get(LOGGED) or {}

    def on_train_start(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self._begin_s = pl_module.clock.wall_s()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Task, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._calls += 1
        if self._calls % self.every_n_steps:
            return
        pl_module.clock.read()
        self._log_arrived(trainer)
        window = Window.of_one if trainer.world_size == 1 else Window.of_all
        self._windows.append(window(pl_module, self._where(trainer, pl_module), self._rate(pl_module)))

    def on_train_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        if pl_module.device.type == "cuda":
            torch.cuda.synchronize()
        self._log_arrived(trainer)

    def on_exception(self, trainer: pl.Trainer, pl_module: Task, exception: BaseException) -> None:
        with suppress(Exception):  # of a device that is broken
            self._log_arrived(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self._log_arrived(trainer)  # all have: the metrics were read from the device after them
        self._log(trainer, self._where(trainer, pl_module), dict(pl_module.metrics))

    def on_test_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self.on_validation_end(trainer, pl_module)

    def _where(self, trainer: pl.Trainer, task: Task) -> dict[str, Any]:
        now_s = task.clock.wall_s()
        return {
            "step": trainer.global_step,
            "epoch": trainer.current_epoch,
            "time_s": now_s,
            "samples": self._before.get("samples", 0) + task.samples_trained,
            "seconds": self._before.get("seconds", 0.0) + (0.0 if self._begin_s is None else now_s - self._begin_s),
        }

    def _log_arrived(self, trainer: pl.Trainer) -> None:
        while self._windows and self._windows[0].copy.arrived():
            self._log(trainer, *self._windows.popleft().row())

    def _rate(self, task: Task) -> float | None:
        """Returns this rank's samples per second in the steps that the clock has read since the last call, if any."""
        steps = task.clock.steps
        new, self._read_steps = slice(self._read_steps, None), len(steps)
        seconds = sum(steps.iteration_s[new])
        return sum(steps.samples[new]) / seconds if seconds > 0 else None

    def _log(self, trainer: pl.Trainer, where: dict[str, Any], figures: dict[str, float]) -> None:
        self.rows.append({**where, **figures})
        self.latest.update(figures)
        for logger in trainer.loggers:
            logger.log_metrics({**figures, **{name: where[name] for name in AXES}}, step=where["step"])

    def figures(self, task: Task) -> dict[str, Any]:
        rows = [window.row() for window in self._windows if window.copy.arrived()]  # of a run that failed
        last = [where | figures for where, figures in rows]
        return {"history": thinned(sorted(self.rows + last, key=lambda row: row["time_s"]))}


def thinned(rows: list[dict[str, Any]], most: int = 60) -> list[dict[str, Any]]:
    """Returns about `most` window rows at most, evenly spaced, and all evaluation rows: a record stays a few kB."""
    keep = max(1, -(-len(rows) // most))
    return [row for i, row in enumerate(rows) if i % keep == 0 or "loss" not in row or i == len(rows) - 1]
