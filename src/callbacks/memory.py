"""Peak memory of this rank's device; the worst rank goes into the record."""

import resource
from typing import Any

import psutil
import pytorch_lightning as pl
import torch

from src.callbacks.measuring import Measuring
from src.callbacks.throughput import gather
from src.training.task import Task

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
        worst = {name: min if name == "free_gib" else max for name in known}
        return {"mem": {name: worst[name](values) if values else None for name, values in known.items()}}


def peak_memory(device: torch.device) -> dict[str, float | None]:
    """Peak reserved and allocated memory of this process on the device, what the device has, and what it had left.

    In GiB. What is left at the peak is what nobody holds: no other process either, nor a library beside torch.
    """
    if device.type == "cuda":
        peak, (free, total) = torch.cuda.max_memory_reserved(device), torch.cuda.mem_get_info(device)
        return {
            "peak_reserved_gib": peak / GIB,
            "peak_allocated_gib": torch.cuda.max_memory_allocated(device) / GIB,
            "total_gib": total / GIB,
            "free_gib": (free - (peak - torch.cuda.memory_reserved(device))) / GIB,
        }
    peak, memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, psutil.virtual_memory()  # it says KiB
    return {
        "peak_reserved_gib": peak / GIB,
        "peak_allocated_gib": None,
        "total_gib": memory.total / GIB,
        "free_gib": (memory.available - (peak - psutil.Process().memory_info().rss)) / GIB,
    }
