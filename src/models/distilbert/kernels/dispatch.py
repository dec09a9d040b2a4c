"""Chooses between the fused kernels and plain torch by device, dtype and shape; the log says why."""

from types import ModuleType

from torch import Tensor

from src.gpu.triton_helpers import DTYPES, can_take, package, working_dtype


def kernels() -> ModuleType | None:
    """Returns the package `fused`, or None if Triton is not installed."""
    return package("src.models.distilbert.kernels.fused")


def fused_for(weight: Tensor) -> ModuleType | None:
    """Returns the Triton kernels, or None if they do not support this table or weight in autocast's dtype."""
    fused = kernels() if can_take(weight) and working_dtype(weight) in DTYPES else None
    return fused if fused and fused.rows.supported(weight.shape[1]) else None


def fused_layer_for(weight: Tensor, num_heads: int) -> ModuleType | None:
    """Does the same for a whole transformer layer with a projection `weight` [dim, dim]."""
    fused = fused_for(weight)
    return fused if fused and fused.layer.supported(len(weight), num_heads) else None
