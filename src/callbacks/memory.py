"""Peak memory of this rank's device; the worst rank goes into the record."""

import resource
from typing import Any

import psutil
import pytorch_lightning as pl
import torch

from src.callbacks.measuring import Measuring
from src.callbacks.throughput import gather
from src.models.task import Task

GIB = 2**30


class Memory(Measuring):
    """On a GPU what torch's allocator held and used at the peak; on a CPU the peak resident set of the process."""

    def __init__(self) -> None:
        self._peak: dict[str, float | None] = {}

    def on_fit_start(self, trainer: pl.Trainer, pl_module: Task) -> None:
        if pl_module.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(pl_module.device)

    # Read at these ends, because Lightning moves the module to the CPU before it calls any later hook.
    def on_train_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self._peak = peak_memory(pl_module.device)

    def on_test_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self._peak = peak_memory(pl_module.device)

    def on_exception(self, trainer: pl.Trainer, pl_module: Task, exception: BaseException) -> None:
        self._peak = peak_memory(pl_module.device)

    def figures(self, task: Task) -> dict[str, Any]:
        if not self._peak:
            return {}
        known = {name: [v for v in gather(value) if v is not None] for name, value in self._peak.items()}
        return {"mem": {name: max(values) if values else None for name, values in known.items()}}


def peak_memory(device: torch.device) -> dict[str, float | None]:
    """Peak reserved and allocated memory of this process on the device, and what the device has, in GiB."""
    if device.type == "cuda":
        return {
            "peak_reserved_gib": torch.cuda.max_memory_reserved(device) / GIB,
            "peak_allocated_gib": torch.cuda.max_memory_allocated(device) / GIB,
            "total_gib": torch.cuda.get_device_properties(device).total_memory / GIB,
        }
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB  # the kernel counts in KiB
    return {"peak_reserved_gib": resident, "peak_allocated_gib": None, "total_gib": psutil.virtual_memory().total / GIB}
