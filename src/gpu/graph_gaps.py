"""Resets the hardware queues of a process on its GPU, which shortens the launch gaps between small kernels."""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

GIB = 2**30  # a context takes half of that
TRIED = 13  # major CUDA version of the drivers that this was tried with
enabled = True  # execution.graph_gaps=auto


@contextmanager
def queues_renewed() -> Iterator[None]:
    """Has `renew_queues` work beside the block, which captures a graph: a capture runs nothing, and takes as long.

    After the block where the second context might take memory that the capture needs, as much as a step did before.
    """
    thread = threading.Thread(target=renew_queues, args=(torch.cuda.current_device(),), name="queues", daemon=True)
    has_room = torch.cuda.mem_get_info()[0] > torch.cuda.max_memory_allocated() + GIB
    if has_room:
        thread.start()
    try:
        yield
    finally:
        if not has_room:
            thread.start()
        thread.join()


def renew_queues(device: int) -> bool:
    """Makes a second context on a GPU and gives it back, in 0.2 s; returns whether the driver did.

    A process whose streams have lately been used for the first time runs the kernels of a graph, one after another,
    with gaps that are longer by 0.1 to 0.3 microseconds; once another context has come and gone, without them. On an
    H200 a step of MoFlow's, 3,400 kernels, takes 15.6 instead of 16.6 ms (docs/notes/2026-11-22-launch-gaps.md).
    Nothing in the driver's documentation says so. No setting of the GPU changes, and no memory, stream or graph of this
    process; where the memory for a second context is missing at that moment, nothing happens.
    """
    driver = tried_driver() if enabled and torch.cuda.is_available() else None
    if driver is None:
        return False
    context = ctypes.c_void_p()
    if driver.cuCtxCreate_v2(ctypes.byref(context), 0, device) != 0:
        return False
    popped = ctypes.c_void_p()  # what was this thread's current one is again
    return driver.cuCtxPopCurrent_v2(ctypes.byref(popped)) == 0 and driver.cuCtxDestroy_v2(context) == 0


def tried_driver() -> Any:
    """Returns NVIDIA's driver library; None where there is none, or one of another CUDA version than TRIED."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    return driver if driver.cuDriverGetVersion(ctypes.byref(version)) == 0 and version.value // 1000 == TRIED else None
