"""How long a device waits for other ranks: the part of communication that its own work does not hide.

A stretch is timed where it happens. On a GPU two tiny kernels read the chip's own clock into a sum that stays there, so
nobody waits for the time and a CUDA graph can hold it.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Int64
from torch import Tensor

from src.gpu.triton_helpers import launch, package


class Waiting:
    """Sums up the stretches of the current stream, or of the host where there is no GPU."""

    def __init__(self, device: torch.device) -> None:
        self._on_device = device.type == "cuda"
        self._total = torch.zeros((), dtype=torch.int64, device=device)  # nanoseconds

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Counts what the stream does inside, which should be nothing but waiting."""
        self._add_time(-1)
        yield
        self._add_time(1)

    def snapshot(self) -> Int64[Tensor, ""]:
        """Nanoseconds up to where the current stream stands, still on the device."""
        return self._total.clone()

    def seconds(self) -> float:
        """All stretches since this object was made. Waits for the device."""
        return self._total.item() / 1e9

    def _add_time(self, sign: int) -> None:
        if not self._on_device:
            self._total += sign * time.perf_counter_ns()
        elif kernels := package("src.gpu.clock_triton"):
            launch(kernels.add_time, (1,), self._total, SIGN=sign, num_warps=1)
