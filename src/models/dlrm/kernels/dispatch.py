"""Chooses between the fused kernels and plain torch by device, dtype and shape; the log says why."""

from functools import cache
from types import ModuleType

from torch import Tensor

from src.models.kernels import can_take, note


@cache
def kernels() -> ModuleType | None:
    """The package `fused`, None where Triton is not installed."""
    try:
        from src.models.dlrm.kernels import fused
    except ImportError as error:
        note(f"fused kernels are not available ({error}); plain torch computes the same, more slowly")
        return None
    return fused


def fused_for(tensor: Tensor) -> ModuleType | None:
    """Triton's kernels, where they can take this tensor at all."""
    return kernels() if can_take(tensor) else None
