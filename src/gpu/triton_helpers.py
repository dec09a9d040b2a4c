"""Helpers of all models' Triton kernels: where they run, how they are launched, how they multiply."""

import logging
import os
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor

log = logging.getLogger(__name__)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
devices = {"cuda"}  # whose tensors the kernels take: tests add the CPU, where Triton's interpreter runs them


ASSEMBLER = "TRITON_PTXAS_PATH"  # of the environment: which ptxas Triton calls


def take_newer_assembler() -> None:
    """Has Triton assemble for Hopper GPUs by the ptxas that it brings for newer ones: its other one makes mistakes.

    benchmarks/wgmma_descriptors.py says which. What the ptxas in Triton 3.7 makes needs a driver of CUDA 13.
    """
    spec = find_spec("triton")
    if spec is None or spec.origin is None:
        return
    newer = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / "ptxas-blackwell"
    is_of_cuda_12 = tuple(map(int, version("triton").split(".")[:2])) < (3, 7)
    if newer.exists() and (is_of_cuda_12 or (torch.version.cuda or "0").split(".")[0] >= "13"):
        os.environ.setdefault(ASSEMBLER, str(newer))


take_newer_assembler()


@cache
def note(line: str) -> None:
    """Logs a line once."""
    log.warning(line)


@cache
def package(name: str) -> ModuleType | None:
    """Returns the package of a model's kernels; None where Triton is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        note(f"fast kernels are not available ({error}); plain torch computes the same, more slowly")
        return None


def can_take(name: str, tensor: Tensor, supported: bool = True, **shapes: object) -> bool:
    """Returns whether the Triton kernels of a fast module support the tensor's device and dtype, and its shapes.

    The log says once what they do not support on a GPU. On other devices plain torch is expected.

    Args:
        name: of the fast module in `execution.kernels`.
        supported: whether its kernels support the shapes, or what else they depend on.
        shapes: these, by name, for the log.
    """
    if tensor.device.type not in devices:
        return False
    if tensor.is_cuda and torch.cuda.get_device_capability(tensor.device) < (8, 0):
        note("this GPU is older than the fast kernels need (compute capability 8.0); plain torch computes the same")
        return False
    if tensor.dtype not in DTYPES:
        return lacks(name, tensor, tensor.dtype)
    return supported or lacks(name, tensor, ", ".join(f"{key}={value}" for key, value in shapes.items()))


def can_take_all(name: str, tensor: Tensor, conditions: Mapping[str, tuple[object, bool]]) -> bool:
    """Returns `can_take` of values that are supported or not, by name; the log says the latter."""
    return can_take(name, tensor, all(ok for _, ok in conditions.values()),
                    **{key: value for key, (value, ok) in conditions.items() if not ok})  # fmt: skip


def lacks(name: str, tensor: Tensor, what: object) -> Literal[False]:
    """Returns False, and logs once what the fast module does not support, if the tensor is on a GPU."""
    if tensor.device.type in devices and not torch.compiler.is_compiling():
        note(f"execution.kernels: {name} does not support {what}; plain torch computes the same, more slowly")
    return False


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Runs `grid` programs of the kernel."""
    kernel[grid](*arguments, **constants)


def precision(dtype: torch.dtype) -> str:
    """Returns Triton's name for the precision of a product of this dtype."""
    return "tf32" if dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest" else "ieee"


def thorough(dtype: torch.dtype) -> str:
    """Returns the precision for small products that must be accurate: three TF32 products instead of one."""
    return {"tf32": "tf32x3"}.get(precision(dtype), "ieee")


def float32_precision(dtype: torch.dtype) -> str:
    """Returns TF32 where torch allows it, and three TF32 products in float32's place where it does not.

    These differ from float32 by 2^-22 of a product, run on tensor cores (82 T multiply-adds/s on an H200, its CUDA
    cores 33) and compile in seconds, where unrolled float32 products take minutes.
    """
    return {"tf32": "tf32", "ieee": "tf32x3"}[precision(dtype)] if dtype == torch.float32 else "ieee"


def reads_registers(tensor: Tensor) -> bool:
    """Returns whether the device's products read registers asynchronously, as on Hopper."""
    return tensor.is_cuda and torch.cuda.get_device_capability(tensor.device)[0] == 9


def power_of_2(count: int) -> int:
    """Returns the smallest power of 2 that is at least `count`: Triton's block sizes are powers of 2."""
    return 1 << (count - 1).bit_length()


def working_dtype(tensor: Tensor) -> torch.dtype:
    """Returns the dtype of products: autocast's, or the tensor's own."""
    kind = tensor.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tensor.dtype
