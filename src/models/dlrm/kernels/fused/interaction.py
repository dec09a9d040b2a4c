"""The kernels of `interaction_triton` as a differentiable function."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from src.gpu.triton_helpers import launch, power_of_2, precision
from src.models.dlrm.embeddings import Targets
from src.models.dlrm.interaction import padded
from src.models.dlrm.kernels.fused import interaction_triton as kernels

MAX_NUMBERS = 64 * 256  # of a sample's vectors: what the registers of one program hold
WARPS = 1  # and one sample a program: faster on an H200 than 2 or 4 of either


def supported(num_tables: int, dim: int) -> bool:
    rows, width = sizes(num_tables, dim)
    return rows * width <= MAX_NUMBERS


def sizes(num_tables: int, dim: int) -> tuple[int, int]:
    return max(16, power_of_2(num_tables + 1)), max(16, power_of_2(dim))


def constants(sparse: Tensor, features: int) -> dict[str, Any]:
    _, tables, dim = sparse.shape
    rows, width = sizes(tables, dim)
    # Triton's interpreter multiplies bfloat16 wrongly.
    upcast = sparse.dtype == torch.bfloat16 and not sparse.is_cuda
    return {"TABLES": tables, "DIM": dim, "FEATURES": features, "ROWS": rows, "WIDTH": width,
            "PRECISION": precision(sparse.dtype), "UPCAST": upcast}  # fmt: skip


class Dot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dense: Tensor, sparse: Tensor, overflow: Tensor, targets: Targets | None) -> Tensor:
        dense, sparse = dense.contiguous(), sparse.contiguous()
        ctx.save_for_backward(dense, sparse)
        ctx.overflow, ctx.targets = overflow, targets
        samples, tables, dim = sparse.shape
        features = padded(dim + tables * (tables + 1) // 2)
        out = sparse.new_empty(samples, features)
        launch(kernels.dot, (samples,), dense, sparse, out, **constants(sparse, features), num_warps=WARPS)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        dense, sparse = ctx.saved_tensors
        grad = grads[0].contiguous()
        samples, tables, dim = sparse.shape
        grad_dense = torch.empty_like(dense)
        if ctx.targets is None:
            # Table by table, as the ids are: so the tables' update finds a gradient without dividing.
            origin, offsets = sparse.new_empty(tables, samples, dim), None
            grad_sparse = origin.transpose(0, 1)
        else:
            origin, offsets = ctx.targets
            grad_sparse = sparse.new_zeros(()).expand(sparse.shape)
        launch(
            kernels.dot_backward, (samples,), dense, sparse, grad, grad_dense, origin, offsets, ctx.overflow, samples,
            SPREAD=offsets is not None, **constants(sparse, grad.shape[1]), LARGEST=torch.finfo(sparse.dtype).max,
            num_warps=WARPS,
        )  # fmt: skip
        return grad_dense, grad_sparse, None, None


def dot_features(
    dense: Float[Tensor, "batch dim"],
    sparse: Float[Tensor, "batch tables dim"],
    overflow: Float[Tensor, ""],
    targets: Targets | None = None,
) -> Float[Tensor, "batch features"]:
    """See `src.models.dlrm.interaction.dot_features`; both inputs have one dtype.

    The backward pass sets `overflow` to 1 where a gradient is infinite or NaN, and leaves it alone otherwise. With
    `targets` it writes the gradient of `sparse` there, and hands back zeros.
    """
    return Dot.apply(dense, sparse, overflow, targets)  # type: ignore[return-value]
