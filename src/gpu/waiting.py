"""Measures how long a device waits for other ranks: exposed communication.

On a GPU two small kernels read the chip's clock into a sum that stays on the device, so that the host does not wait and
a CUDA graph can capture it.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Int64
from torch import Tensor

from src.gpu.triton_helpers import launch, package


class Waiting:
    """Sums the waits of the current stream, or of the host without a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._on_device = device.type == "cuda"
        self._total = torch.zeros((), dtype=torch.int64, device=device)  # nanoseconds

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Counts the time that the stream spends inside, which should be only waiting."""
        self._add_time(-1)
        yield
        self._add_time(1)

    def snapshot(self) -> Int64[Tensor, ""]:
        """Returns nanoseconds up to the current point of the stream, on the device."""
        return self._total.clone()

    def seconds(self) -> float:
        """Returns the sum of all waits. Waits for the device."""
        return self._total.item() / 1e9

    def _add_time(self, sign: int) -> None:
        if not self._on_device:
            self._total += sign * time.perf_counter_ns()
        elif kernels := package("src.gpu.clock_triton"):
            launch(kernels.add_time, (1,), self._total, SIGN=sign, num_warps=1)
