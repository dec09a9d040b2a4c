"""Transports average the pieces of gradient buckets over all ranks. This one uses torch.distributed (NCCL or gloo)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed


class Transport:
    """Provides the memory of a step's pieces and averages them. `number` counts the pieces of a step."""

    def empty(self, number: int, elements: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Returns the memory of pieces that lie end to end, from piece `number` on, uninitialised."""
        return torch.empty(elements, dtype=dtype, device=device)

    def average(self, number: int, piece: Tensor, last: bool = False) -> Callable[[], None]:
        """Starts to average a piece over all ranks, in place; returns a function that waits for it.

        `last`: no computation is left to overlap with. Such a piece is complete after `finish`.
        """
        return average(piece).wait

    def finish(self) -> None:
        """Ends a step, after every piece has been waited for."""


def average(piece: Tensor) -> Any:
    """Starts to average over all ranks, in place; returns the work handle."""
    if distributed.get_backend() == "nccl":
        return distributed.all_reduce(piece, distributed.ReduceOp.AVG, async_op=True)
    piece.div_(distributed.get_world_size())  # gloo knows sums only
    return distributed.all_reduce(piece, async_op=True)
