"""What linear layers of several models share. Hopper's TF32 products want the summed index last in both factors."""

import torch
from jaxtyping import Float
from torch import Tensor

from src.gpu import transpose_triton as kernels
from src.gpu.triton_helpers import launch
from src.gpu.tuned_products import mm

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


def input_gradient(
    grad: Float[Tensor, "rows outputs"],
    weight: Float[Tensor, "outputs inputs"],
    add_to: Float[Tensor, "rows inputs"] | None = None,
    out: Float[Tensor, "rows inputs"] | None = None,
) -> Float[Tensor, "rows inputs"]:
    """Returns the gradient of a linear layer's input; added in place to `add_to`, or written to `out`, if given."""
    if weight.dtype == torch.float32 and weight.is_cuda:
        weight = weight.t().contiguous().t()
    return mm(grad, weight, out=out if add_to is None else add_to, adds=add_to is not None)
