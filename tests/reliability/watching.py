"""Reads a training process's memory, threads and descriptors.

Imports nothing that changes how Python collects garbage, as `tests.support.patched_start` does.
"""

import json
import time
from pathlib import Path
from typing import Any

import psutil
import pytorch_lightning as pl

READINGS = 200


class Watching(pl.Callback):
    """Reads the process's memory, threads and descriptors at even distances of epochs or seconds.

    Args:
        file: of the readings, as JSON lines.
        epochs: of the whole run; None for a run of `seconds`.
    """

    def __init__(self, file: str, epochs: int | None = None, seconds: float | None = None) -> None:
        self.file, self.process = Path(file), psutil.Process()
        self.every = (epochs or seconds or 1) / READINGS
        self.by_epochs = epochs is not None
        self.begun, self.next, self.rows = time.monotonic(), self.every, 0

    def on_validation_end(self, *_: Any) -> None:
        self.rows += 1

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        at = trainer.current_epoch if self.by_epochs else time.monotonic() - self.begun
        if at < self.next:
            return
        self.next = at + self.every
        reading = {"at": at, "step": trainer.global_step, "rows": self.rows, "memory": anonymous_memory(),
                 "threads": self.process.num_threads(), "descriptors": self.process.num_fds()}  # fmt: skip
        with self.file.open("a") as file:
            file.write(json.dumps(reading) + "\n")


def anonymous_memory() -> int:
    """Returns the bytes of this process in memory that are of no file."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024
