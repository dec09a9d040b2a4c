"""Transposition with padding, for kernels that read edges contiguously."""

from jaxtyping import Float
from torch import Tensor

from src.gpu.triton_helpers import launch
from src.models.se3_transformer.kernels.fused import transpose_triton as kernels

TILE = 64


def edges_last(tensor: Float[Tensor, "edges columns"], length: int) -> Float[Tensor, "columns length"]:
    """Returns the transpose as a contiguous tensor, with zeros after the last edge."""
    tensor = tensor.contiguous()
    edges, columns = tensor.shape
    out = tensor.new_empty(columns, length)
    launch(
        kernels.transpose, (-(-length // TILE), -(-columns // TILE)), tensor, out, edges, columns, length,
        TILE=TILE, num_warps=4,
    )  # fmt: skip
    return out
