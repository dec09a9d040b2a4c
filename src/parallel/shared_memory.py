"""Memory of GPUs of one machine that all ranks read and write (torch.distributed._symmetric_memory)."""

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import distributed

T = TypeVar("T")
log = logging.getLogger(__name__)


def shared_memory(numbers: int, dtype: torch.dtype, device: torch.device) -> Any:
    """A handle on so many numbers of each rank. All ranks have to ask for it at the same time."""
    from torch.distributed import _symmetric_memory as symmetric

    assert distributed.group.WORLD is not None
    return symmetric.rendezvous(symmetric.empty(numbers, dtype=dtype, device=device), distributed.group.WORLD)


def on_every_rank(make: Callable[[], T], device: torch.device, instead: str, reason: str | None = None) -> T | None:
    """What `make` returns, if it does so on every rank; otherwise None everywhere, and the log says `instead`.

    Args:
        reason: why this rank does not even try.
    """
    made = None
    if reason is None:
        try:
            made = make()
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
    able = torch.tensor(int(made is not None), device=device)
    distributed.all_reduce(able, distributed.ReduceOp.MIN)
    if able:
        return made
    log.warning("%s: %s", instead, reason or "another rank cannot")
    return None
