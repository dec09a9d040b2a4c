"""Chooses between the fused kernels and plain torch by device, dtype and shape; the log says why."""

from types import ModuleType

from torch import Tensor

from src.gpu.triton_helpers import can_take, package


def kernels() -> ModuleType | None:
    """The package `fused`, None where Triton is not installed."""
    return package("src.models.dlrm.kernels.fused")


def fused_for(tensor: Tensor) -> ModuleType | None:
    """Triton's kernels, where they can take this tensor at all."""
    return kernels() if can_take(tensor) else None
