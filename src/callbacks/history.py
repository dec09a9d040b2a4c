"""Logs losses once per window and metrics once per evaluation, without waiting for the device inside a step."""

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import nan
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import Logger
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor

from src.callbacks.loggers import KINDS, LOGGED, Continued
from src.callbacks.measuring import Measuring
from src.callbacks.window import Window
from src.config.ranges import Count
from src.report.wandb_run import AXES
from src.training.task import Task

WHERE = ("step", "epoch", "time_s", "samples", "seconds")  # of a row, beside its figures
WHOLE = ("step", "epoch", "samples")
NEEDED = ("step", "time_s")
COUNTED = {"samples": int, "seconds": float, "time_s": float}  # of a run that goes on


class History(Measuring):
    """Every `every_n_steps` steps, reads the clock's finished events and logs the losses that have arrived.

    The newest losses are copied to the host asynchronously and logged at a later window, once the copy has arrived,
    since the host may be many steps ahead of the device. Rows are logged in the order of their steps.

    Of several ranks a row has the sum of their rates and samples, and the mean of a step's losses over its samples.

    A run that goes on from a checkpoint has the rows up to its step and gives them to loggers that begin anew. Samples,
    seconds and times of its own rows count on.
    """

    def __init__(self, every_n_steps: Count) -> None:
        self.every_n_steps = every_n_steps
        self.rows: list[dict[str, Any]] = []
        self.latest: dict[str, float] = {}  # for the progress bar
        self._windows: deque[Window] = deque()
        self._read_steps = 0
        self._step = 0  # of the newest row of losses
        self._before: dict[str, Any] = {}  # what the run that this one continues had logged
        self._ids: dict[str, str] = {}  # of its runs of W&B and others
        self._begin_s: float | None = None  # of the clock, at the first step

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: Task, checkpoint: dict[str, Any]) -> None:
        if pl_module.device.type == "cuda":
            torch.cuda.synchronize()  # the weights are copied next, which waits as long
        self._log_arrived(trainer)
        where = self._where(trainer, pl_module)
        logged = {name: where[name] for name in ("samples", "seconds", "time_s")} | self._ids
        logged |= {logger.kind: logger.version for logger in trainer.loggers if isinstance(logger, Continued)}
        checkpoint[LOGGED] = {**logged, "rows": packed(self.rows)}

    def on_load_checkpoint(self, trainer: pl.Trainer, pl_module: Task, checkpoint: dict[str, Any]) -> None:
        logged = dict(checkpoint.get(LOGGED) or {})
        self.rows = unpacked(logged.pop("rows", {}))
        self._before = {name: kind(logged[name]) for name, kind in COUNTED.items() if name in logged}
        self._ids = {kind: logged[kind] for kind in KINDS if isinstance(logged.get(kind), str)}

    def on_train_start(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self._begin_s, self._step = pl_module.clock.wall_s(), trainer.global_step

    def on_fit_start(self, trainer: pl.Trainer, pl_module: Task) -> None:
        for logger in trainer.loggers if self.rows else ():
            if not getattr(logger, "goes_on", False):
                for row in self.rows:
                    log_row(logger, row)
                logger.save()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Task, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step % self.every_n_steps or trainer.global_step == self._step:
            return
        self._step = trainer.global_step
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
        where, metrics = self._where(trainer, pl_module), dict(pl_module.metrics)
        newest = self.rows[-1] if self.rows else {}
        if newest.get("step") == where["step"] and metrics == {k: v for k, v in newest.items() if k not in WHERE}:
            return  # a run whose training was done evaluates its last weights once more
        self._log(trainer, where, metrics)

    def on_test_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self.on_validation_end(trainer, pl_module)

    def _where(self, trainer: pl.Trainer, task: Task) -> dict[str, Any]:
        now_s = task.clock.wall_s()
        # After training the epochs begun, which a run that ended within one has alike when it is resumed.
        is_training = trainer.state.fn == TrainerFn.FITTING
        return {
            "step": trainer.global_step,
            "epoch": trainer.current_epoch if is_training else trainer.fit_loop.epoch_progress.current.ready,
            "time_s": self._before.get("time_s", 0.0) + now_s,
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
            log_row(logger, self.rows[-1])

    def figures(self, task: Task) -> dict[str, Any]:
        rows = [window.row() for window in self._windows if window.copy.arrived()]  # of a run that failed
        last = [where | figures for where, figures in rows]
        return {"history": thinned(sorted(self.rows + last, key=lambda row: row["time_s"]))}


def log_row(logger: Logger, row: dict[str, Any]) -> None:
    """Gives a logger the figures of a row, and its axes."""
    names = [name for name in row if name not in WHERE or name in AXES]
    logger.log_metrics({name: row[name] for name in names}, step=row["step"])


def packed(rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """Returns rows of numbers as columns, 8 bytes a number: a checkpoint holds those of a long run. NaN: not there."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: torch.tensor([row.get(name, nan) for row in rows], dtype=torch.float64) for name in names}


def unpacked(columns: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Returns the rows of `packed`. Raises ValueError where they are not such rows."""
    if any(column.ndim != 1 or column.isinf().any() for column in columns.values()):
        raise ValueError("its history has other rows than of numbers")
    if columns and any(name not in columns or columns[name].isnan().any() for name in NEEDED):
        raise ValueError("its history does not say where in the run its rows are")
    values = zip(*(column.tolist() for column in columns.values()), strict=True)
    rows = [{name: value for name, value in zip(columns, row, strict=True) if value == value} for row in values]
    return [row | {name: int(row[name]) for name in WHOLE if name in row} for row in rows]


def thinned(rows: list[dict[str, Any]], most: int = 60) -> list[dict[str, Any]]:
    """Returns about `most` window rows at most, evenly spaced, and all evaluation rows: a record stays a few kB."""
    keep = max(1, -(-len(rows) // most))
    return [row for i, row in enumerate(rows) if i % keep == 0 or "loss" not in row or i == len(rows) - 1]
