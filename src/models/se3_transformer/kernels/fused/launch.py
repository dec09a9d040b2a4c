"""Starting a Triton kernel, and the order of a matrix in memory."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from src.models.se3_transformer.kernels.fused import transpose_triton as kernels

TILE = 64


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Runs `grid` programs of the kernel."""
    kernel[grid](*arguments, **constants)


def precision(dtype: torch.dtype) -> str:
    """How a product of float32 numbers is computed."""
    return "tf32" if dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest" else "ieee"


def thorough(dtype: torch.dtype) -> str:
    """The same where a product is small and must not cost accuracy: two more make up for TF32's short mantissa."""
    return {"tf32": "tf32x3"}.get(precision(dtype), "ieee")


def edges_last(tensor: Float[Tensor, "edges columns"], length: int) -> Float[Tensor, "columns length"]:
    """The transpose in memory of its own, with zeros behind the last edge."""
    tensor = tensor.contiguous()
    edges, columns = tensor.shape
    out = tensor.new_empty(columns, length)
    launch(
        kernels.transpose, (-(-length // TILE), -(-columns // TILE)), tensor, out, edges, columns, length,
        TILE=TILE, num_warps=4,
    )  # fmt: skip
    return out
