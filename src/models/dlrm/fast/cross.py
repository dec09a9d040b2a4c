"""DCNv2's cross layers as one differentiable function: cuBLAS's products, and the kernels of `cross_triton` between."""

from typing import Any, cast

import torch
from torch import Tensor

from src.gpu import weight_copies
from src.gpu.partial_sums import sum_partials
from src.gpu.products import input_gradient
from src.gpu.triton_helpers import can_take, launch, power_of_2
from src.gpu.tuned_products import mm
from src.models.dlrm.embeddings import Embeddings, GradientSlots
from src.models.dlrm.fast import cross_triton as kernels
from src.models.dlrm.fast.mlp import product
from src.models.dlrm.interaction import cat_features
from src.models.dlrm.network import CrossNet, Dense, Features, Sparse

CROSS = {"BLOCK": 32, "WIDTH": 128, "num_warps": 4}
CROSS_BACKWARD = {"ROWS": 64, "BLOCK": 32, "WIDTH": 128, "num_warps": 4}
SAMPLES = 16


class FastCrossNet(CrossNet):
    """The layers as one function, whose last kernel looks for overflows and writes to the slots, if any."""

    room = 1

    def forward(self, dense: Dense, sparse: Sparse, embeddings: Embeddings) -> Features:
        embeddings.kernel_sets_overflow = can_take(
            "interaction", sparse, dense.dtype == sparse.dtype, dense=dense.dtype, sparse=sparse.dtype
        )
        if not embeddings.kernel_sets_overflow:
            return super().forward(dense, sparse, embeddings)
        has_room = embeddings.room == self.room and sparse.stride(0) == self.width
        parameters = [p for down, up in self.layers() for p in (down.weight, up.weight, up.bias)]
        return cross_net(
            dense, sparse, embeddings.overflow, embeddings.gradient_slots(), *parameters, has_room=has_room
        )


class CrossLayers(torch.autograd.Function):
    """With y_l the layers' low-rank products and b_l their biases: x_l = x0 * s_l, s_0 = 1, s_l+1 = s_l + y_l + b_l.

    So the gradient of y_l is x0 times the sum of those of all x after it, and that of x0 is the sum of s_l times those
    of the products' inputs x_l and of the output. The latter is computed once, at the end, instead of layer by layer.
    """

    @staticmethod
    def forward(
        ctx: Any,
        dense: Tensor,
        sparse: Tensor,
        overflow: Tensor,
        slots: GradientSlots | None,
        has_room: bool,
        *parameters: Tensor,
    ) -> Tensor:
        weights = weight_copies.cast_each(parameters, sparse.dtype)
        ctx.overflow, ctx.slots, ctx.shape = overflow, slots, sparse.shape
        x = x0 = write_into_room(dense, sparse) if has_room else cat_features(dense, sparse)
        (rows, columns), biases = x0.shape, torch.stack(weights[2::3])
        ys = x0.new_empty(len(biases), rows, columns)
        saved = []
        for y, down, up, bias in zip(ys, weights[0::3], weights[1::3], biases, strict=True):
            hidden = mm(x, down.t())
            mm(hidden, up.t(), out=y)  # with the bias in it, it takes a fifth longer
            saved += [x, hidden, down, up]
            x, last = torch.empty_like(x), x
            launch(
                kernels.cross, (-(-columns // CROSS["WIDTH"]), -(-rows // CROSS["BLOCK"])), x0, y, bias, last, x, rows,
                COLUMNS=columns, **CROSS,
            )  # fmt: skip
        ctx.save_for_backward(x0, ys, biases, *saved)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x0, ys, biases, *saved = ctx.saved_tensors
        grad_out, (rows, columns), programs = grads[0].contiguous(), x0.shape, -(-len(x0) // CROSS_BACKWARD["ROWS"])
        grad, grad_y, of_inputs = grad_out, torch.empty_like(x0), torch.empty_like(ys)
        gradients: list[Tensor] = []  # of parameters, last one first
        for layer in range(len(ys) - 1, -1, -1):
            x, hidden, down, up = saved[4 * layer : 4 * layer + 4]
            shares = x0.new_empty(programs, columns, dtype=torch.float32)
            launch(
                kernels.cross_backward, (-(-columns // CROSS_BACKWARD["WIDTH"]), programs), grad, x0, grad_y, shares,
                rows, FIRST=not gradients, COLUMNS=columns, **CROSS_BACKWARD,
            )  # fmt: skip
            of_hidden = input_gradient(grad_y, up)
            gradients += [sum_partials(shares), product(grad_y.t(), hidden), product(of_hidden.t(), x)]
            grad = input_gradient(of_hidden, down, out=of_inputs[layer])
        samples, tables, dim = ctx.shape
        grad_dense = x0.new_empty(samples, dim)
        if ctx.slots is None:
            # Table-major like the ids: the update kernel then finds a gradient without a division.
            origin, offsets = x0.new_empty(tables, samples, dim), None
            grad_sparse = origin.transpose(0, 1)
        else:
            origin, offsets = ctx.slots
            grad_sparse = x0.new_zeros(()).expand(samples, tables, dim)
        launch(
            kernels.split, (-(-samples // SAMPLES) * (tables + 1),), grad_out, of_inputs, ys, biases, grad_dense,
            origin, offsets, ctx.overflow, samples, SPREAD=offsets is not None, LAYERS=len(ys), TABLES=tables, DIM=dim,
            WIDTH=power_of_2(dim), BLOCK=SAMPLES, LARGEST=torch.finfo(x0.dtype).max, num_warps=4,
        )  # fmt: skip
        return grad_dense, grad_sparse, None, None, None, *reversed(gradients)


def write_into_room(dense: Dense, sparse: Sparse) -> Features:
    """Returns `cat_features` as a view of the memory of `sparse`, which has room for `dense`."""
    samples, tables, dim = sparse.shape
    width = (tables + 1) * dim
    features = sparse.as_strided((samples, width), (width, 1), sparse.storage_offset() - dim)
    features[:, :dim] = dense
    return features


def cross_net(
    dense: Dense,
    sparse: Sparse,
    overflow: Tensor,
    slots: GradientSlots | None,
    *parameters: Tensor,
    has_room: bool = False,
) -> Features:
    """See `CrossNet.forward`; `parameters` are each layer's V^T, U and bias. Both inputs have one dtype.

    The backward pass sets `overflow` to 1 if a gradient of the vectors is infinite or NaN and never resets it. With
    `slots` it writes the gradient of `sparse` there and returns zeros. If `has_room`, a vector before those of each
    sample in the memory of `sparse` may be overwritten: the concatenation then copies `dense` only.
    """
    return cast(Tensor, CrossLayers.apply(dense, sparse, overflow, slots, has_room, *parameters))
