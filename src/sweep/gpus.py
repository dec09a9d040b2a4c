"""Which GPUs there are to share out, without making a context on any of them, and who of several sweeps has which."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pynvml

from src.system.files import try_lock


@contextmanager
def driver() -> Iterator[bool]:
    """Whether NVML can be asked inside."""
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
    """What `CUDA_VISIBLE_DEVICES` may name: the numbers, or whatever the variable says already. Empty without a GPU."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip() and name.strip() != "-1"]
    with driver() as there:
        return [str(number) for number in range(pynvml.nvmlDeviceGetCount())] if there else []


def handle(gpu: str) -> object:
    """NVML's, by number or by UUID. Raises NVMLError for one that is not there."""
    return pynvml.nvmlDeviceGetHandleByIndex(int(gpu)) if gpu.isdigit() else pynvml.nvmlDeviceGetHandleByUUID(gpu)


@cache
def identity(gpu: str) -> str:
    """The UUID of a GPU; its name here where the driver does not know it."""
    with driver() as there:
        try:
            return str(pynvml.nvmlDeviceGetUUID(handle(gpu))) if there else gpu
        except pynvml.NVMLError:
            return gpu


def model_name(gpu: str) -> str | None:
    with driver() as there:
        try:
            return str(pynvml.nvmlDeviceGetName(handle(gpu))) if there else None
        except pynvml.NVMLError:
            return None


class Line:
    """A sweep's place in the line for GPUs that it shares with other sweeps.

    Who waits for several comes before those who come later and want fewer, or a job on two GPUs would wait for as long
    as there are jobs on one.
    """

    def __init__(self) -> None:
        self.next: dict[str, int] = {}  # GPUs that nobody else may take now, with the lock that says so

    def hold(self, gpus: Sequence[str], wanted: int) -> tuple[list[str], list[int]] | None:
        """So many of the GPUs, with the locks that keep them from others; None if they are not free, or not our turn.

        A lock is let go when the last process ends that has its open file, as a job's own.
        """
        folder = Path(tempfile.gettempdir()) / f"reprise-gpus-{os.getuid()}"
        folder.mkdir(exist_ok=True)
        for gpu in gpus:
            if gpu not in self.next and (lock := try_lock(folder / f"{identity(gpu)}.next.lock")) is not None:
                self.next[gpu] = lock
        ours = [gpu for gpu in gpus if gpu in self.next]
        if len(ours) < wanted:
            self.leave()  # to those who were before: two that keep a part of what both want would wait for ever
            return None
        held: dict[str, int] = {}
        for gpu in ours:
            if len(held) < wanted and (lock := try_lock(folder / f"{identity(gpu)}.lock")) is not None:
                held[gpu] = lock
        if len(held) == wanted:
            self.leave()
            return [*held], [*held.values()]
        for lock in held.values():
            os.close(lock)
        return None

    def leave(self) -> None:
        """Wants no GPU any more."""
        for lock in self.next.values():
            os.close(lock)
        self.next.clear()
