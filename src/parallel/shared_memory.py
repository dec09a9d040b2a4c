"""Memory of the GPUs of one machine that all ranks read and write.

It is torch.distributed._symmetric_memory, which is private to torch: other versions than TRIED use NCCL, as does
`execution.exchange=nccl`.
"""

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import distributed

T = TypeVar("T")
TRIED = ("2.11.",)  # versions of torch on GPUs
enabled = True  # execution.exchange=auto; set before the ranks begin to train
log = logging.getLogger(__name__)


def refusal() -> str | None:
    """Returns why ranks must not share memory, as far as this rank knows; None where they may try."""
    if not enabled:
        return "execution.exchange=nccl"
    return None if torch.__version__.startswith(TRIED) else f"torch {torch.__version__} has not been tried"


def shared_memory(numbers: int, dtype: torch.dtype, device: torch.device) -> Any:
    """Returns a handle on a block of N elements on each rank. Collective: all ranks must call it together."""
    from torch.distributed import _symmetric_memory as symmetric

    assert distributed.group.WORLD is not None
    return symmetric.rendezvous(symmetric.empty(numbers, dtype=dtype, device=device), distributed.group.WORLD)


def on_every_rank(make: Callable[[], T], device: torch.device, instead: str, reason: str | None = None) -> T | None:
    """Returns what `make` returns, if it succeeds on every rank; otherwise None on all, and logs `instead`.

    Args:
        reason: why this rank does not try; None if it does.
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
