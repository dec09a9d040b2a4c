"""Peak memory of each rank's device; the record has the worst rank."""

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
        peaks = {name: [v for v in gather(value) if v is not None] for name, value in self._peak.items()}
        worst = {name: min if name == "free_gib" else max for name in peaks}
        return {"mem": {name: worst[name](values) if values else None for name, values in peaks.items()}}


def peak_memory(device: torch.device) -> dict[str, float | None]:
    """Returns peak reserved and allocated memory of this process, and total and free memory of the device, in GiB.

    `free_gib` is that at the peak; memory of other processes and of libraries other than torch is not free.
    """
    if device.type == "cuda":
        peak, (free, total) = torch.cuda.max_memory_reserved(device), torch.cuda.mem_get_info(device)
        return {
            "peak_reserved_gib": peak / GIB,
            "peak_allocated_gib": torch.cuda.max_memory_allocated(device) / GIB,
            "total_gib": total / GIB,
            "free_gib": (free - (peak - torch.cuda.memory_reserved(device))) / GIB,
        }
    peak, memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, psutil.virtual_memory()  # maxrss: KiB
    return {
        "peak_reserved_gib": peak / GIB,
        "peak_allocated_gib": None,
        "total_gib": memory.total / GIB,
        "free_gib": (memory.available - (peak - psutil.Process().memory_info().rss)) / GIB,
    }
