"""The dot interaction as a differentiable function of the kernels in `interaction_triton`."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from src.gpu.triton_helpers import can_take, launch, power_of_2, precision
from src.models.dlrm.embeddings import Embeddings, GradientSlots
from src.models.dlrm.fast import interaction_triton as kernels
from src.models.dlrm.interaction import padded
from src.models.dlrm.network import Dense, Dot, Features, Sparse

MAX_ELEMENTS = 64 * 256  # of a sample's vectors: as many as the registers of one program hold
WARPS = 1  # and one sample a program: on an H200 faster than 2 or 4 of either


def supported(num_tables: int, dim: int) -> bool:
    """Returns whether a sample's vectors fit into one program's registers."""
    rows, width = sizes(num_tables, dim)
    return rows * width <= MAX_ELEMENTS


def sizes(num_tables: int, dim: int) -> tuple[int, int]:
    """Returns the kernel's ROWS and WIDTH: vectors and their elements, rounded up to powers of two."""
    return max(16, power_of_2(num_tables + 1)), max(16, power_of_2(dim))


def constants(sparse: Tensor, features: int) -> dict[str, Any]:
    _, tables, dim = sparse.shape
    rows, width = sizes(tables, dim)
    # Triton's interpreter multiplies bfloat16 incorrectly.
    upcast = sparse.dtype == torch.bfloat16 and not sparse.is_cuda
    return {"TABLES": tables, "DIM": dim, "FEATURES": features, "ROWS": rows, "WIDTH": width,
            "PRECISION": precision(sparse.dtype), "UPCAST": upcast}  # fmt: skip


class FastDot(Dot):
    """The products as one function, whose backward kernel looks for overflows and writes to the slots, if any."""

    def forward(self, dense: Dense, sparse: Sparse, embeddings: Embeddings) -> Features:
        _, tables, dim = sparse.shape
        is_supported = dense.dtype == sparse.dtype and supported(tables, dim)
        if not can_take("interaction", sparse, is_supported, tables=tables, dim=dim, dense=dense.dtype):
            embeddings.kernel_sets_overflow = False
            return super().forward(dense, sparse, embeddings)
        embeddings.kernel_sets_overflow = True
        return dot_features(dense, sparse, embeddings.overflow, embeddings.gradient_slots())


class DotFeatures(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dense: Tensor, sparse: Tensor, overflow: Tensor, slots: GradientSlots | None) -> Tensor:
        dense, sparse = dense.contiguous(), sparse.contiguous()
        ctx.save_for_backward(dense, sparse)
        ctx.overflow, ctx.slots = overflow, slots
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
        if ctx.slots is None:
            # Table-major like the ids: the update kernel then finds a gradient without a division.
            origin, offsets = sparse.new_empty(tables, samples, dim), None
            grad_sparse = origin.transpose(0, 1)
        else:
            origin, offsets = ctx.slots
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
    slots: GradientSlots | None = None,
) -> Float[Tensor, "batch features"]:
    """See `src.models.dlrm.interaction.dot_features`; both inputs have one dtype.

    The backward pass sets `overflow` to 1 if a gradient is infinite or NaN and never resets it. With `slots` it writes
    the gradient of `sparse` there and returns zeros.
    """
    return DotFeatures.apply(dense, sparse, overflow, slots)  # type: ignore[return-value]
