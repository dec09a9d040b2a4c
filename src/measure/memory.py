"""Peak memory of a device."""

import resource

import psutil
import torch

GIB = 2**30


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
