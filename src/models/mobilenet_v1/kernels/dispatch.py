"""Chooses between the fused kernels and plain torch by device, dtype and shape; the log says why."""

from types import ModuleType

import torch
from torch import Tensor

from src.gpu.triton_helpers import can_take, package


def kernels() -> ModuleType | None:
    """Returns the package `fused`, or None if Triton is not installed."""
    return package("src.models.mobilenet_v1.kernels.fused")


def fused_for(images: Tensor, parameter: Tensor) -> ModuleType | None:
    """Returns the Triton kernels, or None if they do not support these images and the parameters' dtype."""
    wanted = parameter.dtype == torch.float32 and not images.requires_grad
    return kernels() if wanted and can_take(images) else None
