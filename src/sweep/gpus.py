"""Lists the visible GPUs through NVML, without a CUDA context on any of them, and locks them among sweeps."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pynvml

from src.system.files import try_lock


@contextmanager
def nvml() -> Iterator[bool]:
    """Initialises NVML for the block; yields False where there is no driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield False
        return
    try:
        yield True
    finally:
        pynvml.nvmlShutdown()


def visible_gpus() -> list[str]:
    """Returns the entries of `CUDA_VISIBLE_DEVICES`, or the numbers of all GPUs if it is not set; empty without one."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip() and name.strip() != "-1"]
    with nvml() as is_available:
        return [str(number) for number in range(pynvml.nvmlDeviceGetCount())] if is_available else []


def nvml_handle(gpu: str) -> object:
    """Returns NVML's handle of a GPU given by number or UUID. Raises NVMLError for an unknown one."""
    return pynvml.nvmlDeviceGetHandleByIndex(int(gpu)) if gpu.isdigit() else pynvml.nvmlDeviceGetHandleByUUID(gpu)


@cache
def gpu_uuid(gpu: str) -> str:
    """Returns the UUID of a GPU, or `gpu` itself where the driver does not know it."""
    with nvml() as is_available:
        try:
            return str(pynvml.nvmlDeviceGetUUID(nvml_handle(gpu))) if is_available else gpu
        except pynvml.NVMLError:
            return gpu


def gpu_name(gpu: str) -> str | None:
    """Returns the product name of a GPU, such as 'NVIDIA H200'; None where the driver does not know it."""
    with nvml() as is_available:
        try:
            return str(pynvml.nvmlDeviceGetName(nvml_handle(gpu))) if is_available else None
        except pynvml.NVMLError:
            return None


class GpuQueue:
    """One sweep's requests for GPUs that it shares with other sweeps, by file locks.

    A waiting job reserves GPUs, so that later jobs cannot take them. Otherwise a job that needs two GPUs would wait
    until no job on one GPU is left.
    """

    def __init__(self) -> None:
        self.reserved: dict[str, int] = {}  # GPU -> lock: the next one to take this GPU is this sweep

    def acquire(self, gpus: Sequence[str], wanted: int) -> tuple[list[str], list[int]] | None:
        """Returns `wanted` of the GPUs with the file descriptors of their locks; None while they are not available.

        A lock is released when the last process with its open file ends; a job's processes inherit it.
        """
        folder = Path(tempfile.gettempdir()) / f"reprise-gpus-{os.getuid()}"
        folder.mkdir(exist_ok=True)
        for gpu in gpus:
            if gpu not in self.reserved and (lock := try_lock(folder / f"{gpu_uuid(gpu)}.next.lock")) is not None:
                self.reserved[gpu] = lock
        reserved = [gpu for gpu in gpus if gpu in self.reserved]
        if len(reserved) < wanted:
            self.cancel()  # two sweeps that each reserve a part of what both want would wait for ever
            return None
        held: dict[str, int] = {}
        for gpu in reserved:
            if len(held) < wanted and (lock := try_lock(folder / f"{gpu_uuid(gpu)}.lock")) is not None:
                held[gpu] = lock
        if len(held) == wanted:
            self.cancel()
            return [*held], [*held.values()]
        for lock in held.values():
            os.close(lock)
        return None

    def cancel(self) -> None:
        """Gives up all reservations."""
        for lock in self.reserved.values():
            os.close(lock)
        self.reserved.clear()
