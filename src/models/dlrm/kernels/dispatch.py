"""Chooses between the fused kernels and plain torch by device, dtype and shape; the log says why."""

from types import ModuleType

from torch import Tensor

from src.gpu.triton_helpers import can_take, package


def kernels() -> ModuleType | None:
    """Returns the package `fused`, or None if Triton is not installed."""
    return package("src.models.dlrm.kernels.fused")


def fused_for(tensor: Tensor) -> ModuleType | None:
    """Returns the Triton kernels, or None if they do not support this tensor's device and dtype."""
    return kernels() if can_take(tensor) else None
