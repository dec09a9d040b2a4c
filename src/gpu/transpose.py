"""Transposed copies: Hopper's TF32 products want the summed index last in both factors."""

import torch
from jaxtyping import Float
from torch import Tensor

from src.gpu import transpose_triton as kernels
from src.gpu.triton_helpers import launch

TILE = 64


def transposed(
    x: Float[Tensor, "rows columns"], length: int | None = None, dtype: torch.dtype | None = None
) -> Float[Tensor, "columns length"]:
    """Returns a contiguous copy of x^T, in `dtype` if given, with zeros after the last row up to `length`.

    Elements of a row of x must be adjacent.
    """
    rows, columns = x.shape
    length = rows if length is None else length
    out = x.new_empty(columns, length, dtype=dtype)
    grid = -(-length // TILE), -(-columns // TILE)
    launch(kernels.transpose, grid, x, out, rows, columns, x.stride(0), length, TILE=TILE, num_warps=4)
    return out
