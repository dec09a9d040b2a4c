"""Writes the events of MLPerf's logging, lines of `:::MLLOG {json}`, for tools that read these."""

import json
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from src.callbacks.measuring import Measuring
from src.datamodules.base import SplitDataModule
from src.errors import UserError
from src.system.files import open_to_append
from src.training.task import Task

NAMESPACE = ""
EVENTS = {"start": "INTERVAL_START", "stop": "INTERVAL_END"}


class MLLog(Measuring):
    """Appends the run's events to `path` on the first rank: MLPerf's keys, times in ms since 1970, epochs from 1.

    `eval_accuracy` is the task's final metric, whatever it is called. The status of `run_stop` is `success` where the
    run ended normally and, if the metric has a target, an evaluation reached it; else `aborted`.

    Args:
        path: the file. A run that is resumed appends to it, with a `run_start` of its own.
        benchmark: the name of the model.
        seed: of the run.
    """

    def __init__(self, path: str, benchmark: str, seed: int | None) -> None:
        self.path, self.benchmark, self.seed = Path(path), benchmark, seed
        self._running = self._failed = self._reached = False
        self._logged: float | None = None  # the newest value of the final metric that is in the file
        self._epoch = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: Task) -> None:
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        self._running = trainer.is_global_zero
        self._write("submission_benchmark", self.benchmark)
        self._write("seed", self.seed)
        self._write("global_batch_size", data.batch_size * trainer.world_size * data.accumulate)
        if isinstance(data, SplitDataModule):
            split = data.splits["train"]
            self._write("train_samples", split if isinstance(split, int) else len(split))
        self._write("run_start")

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self._epoch = trainer.current_epoch + 1
        self._write("epoch_start", epoch_num=self._epoch)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self._write("epoch_stop", epoch_num=self._epoch)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self._write("eval_start", epoch_num=self._epoch)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self._write("eval_stop", epoch_num=self._epoch)
        self._write_metric(pl_module)

    def on_test_start(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self.on_validation_start(trainer, pl_module)

    def on_test_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self.on_validation_end(trainer, pl_module)

    def on_exception(self, trainer: pl.Trainer, pl_module: Task, exception: BaseException) -> None:
        self._failed = True

    def figures(self, task: Task) -> dict[str, Any]:
        """Ends the log after the final evaluation; the record gets nothing."""
        if self._running:
            if task.metrics.get(task.final_metric.name) != self._logged:  # of an evaluation of the task's own
                self._write_metric(task)
            done = not self._failed and (self._reached or task.final_metric.target is None)
            self._write("run_stop", status="success" if done else "aborted")
            self._running = False
        return {}

    def _write_metric(self, task: Task) -> None:
        metric = task.final_metric
        value = task.metrics.get(metric.name)
        if value is not None and self._running:
            self._logged, self._reached = value, self._reached or bool(metric.reached(value))
            self._write("eval_accuracy", value, epoch_num=self._epoch, metric=metric.name)

    def _write(self, key: str, value: Any = None, **metadata: Any) -> None:
        """Appends an event. Raises UserError where the file cannot be written."""
        if not self._running:
            return
        event = {
            "namespace": NAMESPACE, "time_ms": int(time.time() * 1e3), "key": key, "value": value,
            "event_type": EVENTS.get(key.rpartition("_")[2], "POINT_IN_TIME"), "metadata": metadata,
        }  # fmt: skip
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(open_to_append(self.path), "a", encoding="utf-8") as file:
                file.write(f":::MLLOG {json.dumps(event)}\n")
        except OSError as error:
            raise UserError(f"cannot write {self.path} ({error.strerror}): choose another output folder") from error
