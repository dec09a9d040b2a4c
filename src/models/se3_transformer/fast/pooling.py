"""Pooling by the maximum as one kernel for each of forward and backward."""

from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from src.gpu.second_gradients import gradients_by
from src.gpu.triton_helpers import can_take, launch, power_of_2
from src.models.se3_transformer.fast import pooling_triton as kernels
from src.models.se3_transformer.pooling import Pool, pool

NODES = 32  # of a tile: most molecules of QM9 are one tile
MAX_WIDTH = 128  # columns of a tile


class FastPool(Pool):
    """Computes maxima in kernels; means and sums in plain torch."""

    def forward(
        self, features: Float[Tensor, "nodes features"], graph_ptr: Int[Tensor, " graphs_and_1"]
    ) -> Float[Tensor, "graphs features"]:
        if self.kind != "max" or not can_take("pooling", features):
            return super().forward(features, graph_ptr)
        return maximum(features, graph_ptr)


class Maximum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, graph_ptr: Tensor) -> Tensor:
        graphs, columns = len(graph_ptr) - 1, features.shape[1]
        out = features.new_empty(graphs, columns)
        holders = graph_ptr.new_empty(graphs, columns, dtype=torch.int64)
        launch(kernels.maxima, (graphs, tiles(columns)), 
            features, graph_ptr, out, holders, columns, WIDTH=width(columns), BN=NODES, num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(features, graph_ptr, holders)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None]:
        features, graph_ptr, holders = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True
            (gradient,) = gradients_by(partial(pool, graph_ptr=graph_ptr, kind="max"), (features,), grads[0])
            return gradient, None
        out, (nodes, columns) = torch.empty_like(features), features.shape
        launch(kernels.maxima_backward, (len(graph_ptr), tiles(columns)), 
            grads[0].contiguous(), graph_ptr, holders, out, nodes, columns, WIDTH=width(columns), BN=NODES, num_warps=4,
        )  # fmt: skip
        return out, None


def width(columns: int) -> int:
    return min(MAX_WIDTH, power_of_2(columns))


def tiles(columns: int) -> int:
    return -(-columns // width(columns))


def maximum(
    features: Float[Tensor, "nodes features"], graph_ptr: Int[Tensor, " graphs_and_1"]
) -> Float[Tensor, "graphs features"]:
    """Computes `pool` by the maximum."""
    return Maximum.apply(features.contiguous(), graph_ptr.contiguous())  # type: ignore[return-value]
