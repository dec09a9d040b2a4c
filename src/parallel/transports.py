"""How what all ranks average travels: through torch.distributed's group of all of them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed


class Transport:
    """Memory for the messages of a step, which `number` counts, and their way."""

    def empty(self, number: int, numbers: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A message to be filled."""
        return torch.empty(numbers, dtype=dtype, device=device)

    def average(self, number: int, message: Tensor, last: bool = False) -> Callable[[], None]:
        """Begins to put the mean over all ranks in the message's place; returns what waits for it.

        The last ones of a step are `last`: nothing is left to be computed beside them. They are whole after `finish`.
        """
        return average(message).wait

    def finish(self) -> None:
        """After all waiting of a step."""


def average(message: Tensor) -> Any:
    """Begins to average over all ranks, in place; returns what to wait for."""
    if distributed.get_backend() == "nccl":
        return distributed.all_reduce(message, distributed.ReduceOp.AVG, async_op=True)
    message.div_(distributed.get_world_size())  # gloo knows sums only
    return distributed.all_reduce(message, async_op=True)
