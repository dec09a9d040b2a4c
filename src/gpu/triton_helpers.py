"""What the Triton kernels of all models share: where they can run, how they start, how they multiply."""

import logging
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger(__name__)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@cache
def note(line: str) -> None:
    """Says it once."""
    log.warning(line)


@cache
def package(name: str) -> ModuleType | None:
    """The kernels of a model, a package by that name; None where Triton is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        note(f"fused kernels are not available ({error}); plain torch computes the same, more slowly")
        return None


def can_take(tensor: Tensor) -> bool:
    """Whether Triton's kernels run where this tensor is and hold its numbers; the log says what a GPU lacks."""
    if not tensor.is_cuda or tensor.dtype not in DTYPES:
        return False
    if torch.cuda.get_device_capability(tensor.device) < (8, 0):
        note("this GPU is older than the fused kernels need (compute capability 8.0); plain torch computes the same")
        return False
    return True


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Runs `grid` programs of the kernel."""
    kernel[grid](*arguments, **constants)


def precision(dtype: torch.dtype) -> str:
    """How a product of float32 numbers is computed."""
    return "tf32" if dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest" else "ieee"


def thorough(dtype: torch.dtype) -> str:
    """The same where a product is small and must not cost accuracy: two more make up for TF32's short mantissa."""
    return {"tf32": "tf32x3"}.get(precision(dtype), "ieee")


def reads_registers(tensor: Tensor) -> bool:
    """Whether the device's products read registers while the program goes on: Hopper's do."""
    return tensor.is_cuda and torch.cuda.get_device_capability(tensor.device)[0] == 9


def power_of_2(count: int) -> int:
    """The smallest power of 2 that is not below `count`: what Triton's blocks are made of."""
    return 1 << (count - 1).bit_length()


def working_dtype(tensor: Tensor) -> torch.dtype:
    """What products are computed in here: autocast's dtype, or the tensor's own."""
    kind = tensor.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tensor.dtype
