"""Writes the events of MLPerf's logging, lines of `:::MLLOG {json}`, for tools that read these.

MLCommons' checker reads them: `python -m mlperf_logging.compliance_checker --usage training --ruleset 5.0.0`.
"""

import json
import time
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl
import torch

from src.callbacks.measuring import Measuring
from src.datamodules.base import SplitDataModule
from src.errors import UserError
from src.system.files import open_to_append
from src.training.schedule import Schedule, WarmupPolynomial
from src.training.task import Task

NAMESPACE = ""
EVENTS = {"start": "INTERVAL_START", "stop": "INTERVAL_END"}


class MLLog(Measuring):
    """Appends the run's events to `path` on the first rank: MLPerf's keys, times in ms since 1970, epochs from 1.

    `eval_accuracy` is the task's final metric, whatever it is called. The `epoch_num` of an evaluation is the number of
    epochs trained, with fractions. The status of `run_stop` is `success` where the run ended normally and, if the
    metric has a target, an evaluation reached it; else `aborted`.

    Args:
        path: the file. A run that is resumed appends to it, with a `run_start` of its own.
        benchmark: the name of the model.
        seed: of the run.
        division: MLPerf's; `closed` has the checker compare target, data and optimiser with MLPerf's own.
        org, platform, status: of the submission; platform None: the devices.
        caches_cleared: whether whoever started the run had cleared the system's caches.
    """

    def __init__(
        self,
        path: str,
        benchmark: str,
        seed: int | None,
        division: Literal["open", "closed"] = "open",
        org: str = "reprise",
        platform: str | None = None,
        status: Literal["onprem", "cloud", "preview", "research"] = "research",
        caches_cleared: bool = False,
    ) -> None:
        self.path, self.seed, self.caches_cleared = Path(path), seed, caches_cleared
        self.submission = {
            "benchmark": benchmark, "division": division, "org": org, "platform": platform, "status": status,
        }  # fmt: skip
        self._running = self._failed = self._reached = False
        self._logged: float | None = None  # the newest value of the final metric that is in the file
        self._epoch = 0
        self._trained: dict[str, float] = {"epoch_num": 0}  # when the newest evaluation began

    def on_train_start(self, trainer: pl.Trainer, pl_module: Task) -> None:
        data: SplitDataModule = trainer.datamodule  # type: ignore[attr-defined]
        self._running = trainer.is_global_zero
        self._write("init_start", seconds_ago=pl_module.clock.wall_s())
        self._write("cache_clear", self.caches_cleared)
        for key, value in self.submission.items():
            self._write(f"submission_{key}", devices(trainer) if key == "platform" and value is None else value)
        self._write("seed", self.seed)
        self._write("global_batch_size", data.batch_size * trainer.world_size * data.accumulate)
        self._write("gradient_accumulation_steps", data.accumulate)
        for key, split in (("train_samples", "train"), ("eval_samples", data.val_split)):
            samples = data.splits.get(split, 0)
            self._write(key, samples if isinstance(samples, int) else len(samples))
        for key, value in (optimizer_events(trainer.optimizers[0]) | schedule_events(pl_module.schedule)).items():
            self._write(key, value)
        self._write("init_stop")
        self._write("run_start")

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self._epoch = trainer.current_epoch + 1
        self._write("epoch_start", epoch_num=self._epoch)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self._write("epoch_stop", epoch_num=self._epoch)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: Task) -> None:
        steps = trainer.num_training_batches  # an item of the training loader is an optimiser step
        if steps > 0:
            self._trained = {
                "epoch_num": round(trainer.global_step / steps, 6), "samples_count": pl_module.samples_trained,
            }  # fmt: skip
        self._write("eval_start", **self._trained)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self._write("eval_stop", **self._trained)
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
            self._write("eval_accuracy", value, **self._trained, metric=metric.name)

    def _write(self, key: str, value: Any = None, seconds_ago: float = 0.0, **metadata: Any) -> None:
        """Appends an event. Raises UserError where the file cannot be written."""
        if not self._running:
            return
        event = {
            "namespace": NAMESPACE, "time_ms": int((time.time() - seconds_ago) * 1e3), "key": key, "value": value,
            "event_type": EVENTS.get(key.rpartition("_")[2], "POINT_IN_TIME"), "metadata": metadata,
        }  # fmt: skip
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(open_to_append(self.path), "a", encoding="utf-8") as file:
                file.write(f":::MLLOG {json.dumps(event)}\n")
        except OSError as error:
            raise UserError(f"cannot write {self.path} ({error.strerror}): choose another output folder") from error


def devices(trainer: pl.Trainer) -> str:
    """Returns the number and the name of the run's devices, as '8x NVIDIA H200'."""
    device = trainer.strategy.root_device
    return f"{trainer.world_size}x {torch.cuda.get_device_name(device) if device.type == 'cuda' else 'CPU'}"


def optimizer_events(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Returns the settings of an optimiser under the names of mlperf_logging.mllog.constants."""
    name, group = type(optimizer).__name__.lower(), optimizer.param_groups[0]
    named = {
        "opt_base_learning_rate": float(group.get("initial_lr", group["lr"])),
        "opt_weight_decay": group.get("weight_decay"),
        f"opt_{name}_momentum": group.get("momentum"),
        f"opt_{name}_beta_1": group.get("betas", (None, None))[0],
        f"opt_{name}_beta_2": group.get("betas", (None, None))[1],
        f"opt_{name}_epsilon": group.get("eps"),
        f"opt_{name}_learning_rate_decay": group.get("lr_decay"),
        f"opt_{name}_initial_accumulator_value": group.get("initial_accumulator_value"),
    }
    return {"opt_name": name} | {key: value for key, value in named.items() if value is not None}


def schedule_events(schedule: Schedule | None) -> dict[str, Any]:
    """Returns when the learning rate rises and falls; zeros where it is constant."""
    if schedule is None or isinstance(schedule, WarmupPolynomial):
        names = ("warmup_steps", "decay_start_step", "decay_steps")
        return {f"opt_learning_rate_{name}": getattr(schedule, name, 0) for name in names}
    return {f"opt_learning_rate_warmup_{schedule.interval}s": getattr(schedule, "warmup", 0)}
