"""Chooses between the fused kernels and plain torch by device, dtype and shape; the log says why."""

from types import ModuleType

from torch import Tensor

from src.gpu.triton_helpers import DTYPES, can_take, package, working_dtype


def kernels() -> ModuleType | None:
    """The package `fused`, None where Triton is not installed."""
    return package("src.models.distilbert.kernels.fused")


def fused_for(weight: Tensor) -> ModuleType | None:
    """Triton's kernels, where they can take this table of vectors or weight of a layer, in autocast's dtype."""
    found = kernels() if can_take(weight) and working_dtype(weight) in DTYPES else None
    return found if found and found.rows.supported(weight.shape[1]) else None


def fused_layer_for(weight: Tensor, num_heads: int) -> ModuleType | None:
    """The same for a whole transformer layer, `weight` [dim, dim] being one of its own."""
    found = fused_for(weight)
    return found if found and found.layer.supported(len(weight), num_heads) else None
