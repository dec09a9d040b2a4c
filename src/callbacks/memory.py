"""Peak memory of each rank's device; the record has the worst rank."""

from typing import Any

import pytorch_lightning as pl
import torch

from src.callbacks.measuring import Measuring
from src.measure.memory import peak_memory
from src.measure.over_ranks import worst_memory
from src.training.task import Task


class Memory(Measuring):
    """On a GPU, reports the peak of torch's reserved and allocated memory; on a CPU, the peak resident set."""

    def __init__(self) -> None:
        self._peak: dict[str, float | None] = {}

    def on_fit_start(self, trainer: pl.Trainer, pl_module: Task) -> None:
        if pl_module.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(pl_module.device)

    # Read here, because Lightning moves the module to the CPU before it calls any later hook.
    def on_train_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self._peak = peak_memory(pl_module.device)

    def on_test_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self._peak = peak_memory(pl_module.device)

    def on_exception(self, trainer: pl.Trainer, pl_module: Task, exception: BaseException) -> None:
        self._peak = peak_memory(pl_module.device)

    def figures(self, task: Task) -> dict[str, Any]:
        if not self._peak:
            return {}
        return {"mem": worst_memory(self._peak)}
