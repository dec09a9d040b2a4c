"""The progress of training and evaluation, with the newest losses and rate of `History`."""

import sys
import time
from collections.abc import Sequence
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Timer, TQDMProgressBar
from pytorch_lightning.callbacks.progress.tqdm_progress import convert_inf

from src.callbacks.history import History
from src.config.ranges import NotNegative
from src.system.progress import EVERY_S
from src.training.task import Task


class Progress(TQDMProgressBar):
    """Lightning's tqdm bars on a terminal; elsewhere one plain line every `every_s` seconds.

    Shows values that `History` has read, so that it does not wait for the device.
    """

    def __init__(self, every_s: NotNegative = EVERY_S) -> None:
        super().__init__(refresh_rate=10)  # steps
        self.every_s = every_s
        self._is_bar = sys.stdout.isatty()  # where tqdm writes
        self._next_line_s = 0.0
        self._is_first_rank = True
        self._begun_s, self._begun_step = 0.0, 0  # of the training under way, which may go on from a checkpoint
        self._is_training = False

    @property
    def is_enabled(self) -> bool:
        return self._is_bar and super().is_enabled

    def disable(self) -> None:  # by Lightning, on ranks other than the first
        super().disable()
        self._is_first_rank = False

    def get_metrics(self, trainer: pl.Trainer, pl_module: Task) -> dict[str, Any]:
        left = self._left(trainer)
        return self._figures(trainer, pl_module) | ({} if left is None else {"left": left})

    def _figures(self, trainer: pl.Trainer, pl_module: Task) -> dict[str, str]:
        latest = next((c.latest for c in trainer.callbacks if isinstance(c, History)), {})  # type: ignore[attr-defined]
        shown = ("loss", pl_module.final_metric.name, f"{pl_module.unit}_per_s")
        values = {name: latest[name] for name in shown if name in latest}
        return {name: f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" for name, value in values.items()}

    def on_train_start(self, trainer: pl.Trainer, pl_module: Task) -> None:
        super().on_train_start(trainer, pl_module)
        self._begun_s, self._begun_step, self._is_training = time.monotonic(), trainer.global_step, True
        # Lightning does so at the begin of an epoch, which a training that goes on within one does not come by.
        bar = self.train_progress_bar
        bar.total = convert_inf(self.total_train_batches)
        bar.initial = bar.n = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        bar.set_description(f"Epoch {trainer.current_epoch}")

    def on_train_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        super().on_train_end(trainer, pl_module)
        self._is_training = False

    def _left(self, trainer: pl.Trainer) -> str | None:
        """Returns the time until the end of training, at the rate since it began or went on, evaluations included.

        None where no end is known.
        """
        if not self._is_training:
            return None
        timers = [timer for timer in trainer.callbacks if isinstance(timer, Timer)]  # type: ignore[attr-defined]
        limits = [left for timer in timers if (left := timer.time_remaining()) is not None]
        steps = trainer.estimated_stepping_batches - trainer.global_step
        seconds = time_left(time.monotonic() - self._begun_s, trainer.global_step - self._begun_step, steps, limits)
        return None if seconds is None else in_words(seconds)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Task, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        if self._is_due() and (values := self._figures(trainer, pl_module)):
            where = f"{of('epoch', trainer.current_epoch + 1, trainer.max_epochs)}, "
            where += of("step", batch_idx + 1, trainer.num_training_batches)
            left = self._left(trainer)
            parts = [f"{name} {value}" for name, value in values.items()] + ([f"{left} left"] if left else [])
            self._print(where, *parts)

    def on_validation_batch_end(
        self, trainer: pl.Trainer, pl_module: Task, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        super().on_validation_batch_end(trainer, pl_module, outputs, batch, batch_idx, dataloader_idx)
        if self._is_due():
            self._print(of("evaluation: batch", batch_idx + 1, self.total_val_batches_current_dataloader))

    def on_test_batch_end(
        self, trainer: pl.Trainer, pl_module: Task, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        super().on_test_batch_end(trainer, pl_module, outputs, batch, batch_idx, dataloader_idx)
        if self._is_due():
            self._print(of("evaluation: batch", batch_idx + 1, self.total_test_batches_current_dataloader))

    def _is_due(self) -> bool:
        return not self._is_bar and self._is_first_rank and time.monotonic() >= self._next_line_s

    def _print(self, *parts: str) -> None:
        self._next_line_s = time.monotonic() + self.every_s
        print(*parts, sep=", ", flush=True)


def time_left(elapsed_s: float, done: float, left: float, limits_s: Sequence[float]) -> float | None:
    """Returns the seconds until `left` steps are done or a limit is reached, the `done` ones having taken `elapsed_s`.

    None without a limit where the number of steps is infinite, or none is done yet.
    """
    by_steps = [elapsed_s * left / done] if done and left < float("inf") else []
    return max(0.0, min([*by_steps, *limits_s])) if by_steps or limits_s else None


def in_words(seconds: float) -> str:
    """Returns a rough time: '40 s', '12 min', '3.5 h'."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def of(name: str, count: int, total: float | None) -> str:
    """Returns 'epoch 2 of 10', or 'epoch 2' where no total is known."""
    has_total = total is not None and 0 < total < float("inf")
    return f"{name} {count:,} of {total:,}" if has_total else f"{name} {count:,}"
