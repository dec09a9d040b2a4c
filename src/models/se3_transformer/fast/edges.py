"""Autograd functions of the kernels in `edges_triton`."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from src.batches.molecular_graphs import Graph
from src.gpu.triton_helpers import launch, power_of_2, thorough
from src.models.se3_transformer.fast import edges_triton as kernels
from src.models.se3_transformer.fast.frames import EdgeLayout, rotation_table

EDGES_PER_PROGRAM = 4
# Attention's warps wait for loads: a multiprocessor holds 16 of 128 registers, 12 of the 150 that the compiler takes.
HALF_REGISTERS = 128  # not of float32, whose shared memory allows no more warps
MAX_SIZE = 32  # rows of one warp's tile: degrees up to 4


def supported(layout: EdgeLayout) -> bool:
    """Returns whether the features are one rectangle that fits one warp's tile."""
    return layout.channels is not None and layout.channels <= 128 and (layout.fiber.max_degree + 1) ** 2 <= MAX_SIZE


def tile(layout: EdgeLayout) -> dict[str, int]:
    """Returns the shapes of the rectangle and of its tile."""
    channels, components = layout.channels, (layout.fiber.max_degree + 1) ** 2
    assert channels is not None
    return {
        "COMPONENTS": components,
        "ROWS": layout.num_features // channels,
        "CHANNELS": channels,
        "SIZE": max(16, power_of_2(components)),
        "WIDTH": max(16, power_of_2(channels)),
    }


def _gather(features: Tensor, wigner: Tensor, nodes: Tensor, num_real: Tensor, layout: EdgeLayout) -> Tensor:
    shape, edges = tile(layout), len(nodes)
    out = features.new_empty(edges, layout.num_features)
    launch(kernels.gather_to_edges, (-(-edges // EDGES_PER_PROGRAM),), 
        features, wigner, nodes, rotation_table(layout, shape["SIZE"], features.device), num_real, out, edges,
        PACKED=wigner.shape[1], BE=EDGES_PER_PROGRAM, PRECISION=thorough(features.dtype), **shape, num_warps=1,
    )  # fmt: skip
    return out


def _sum(
    columns: Tensor, wigner: Tensor, pointers: Tensor, order: Tensor | None, layout: EdgeLayout,
    added: Tensor | None = None,
) -> Tensor:  # fmt: skip
    shape = tile(layout)
    out = columns.new_empty(len(pointers) - 1, layout.fiber.num_features)
    launch(kernels.sum_from_edges, (len(out),), 
        columns, wigner, pointers, pointers if order is None else order,
        rotation_table(layout, shape["SIZE"], columns.device), out if added is None else added, out,
        ADD=added is not None, ORDERED=order is not None, PACKED=wigner.shape[1], PRECISION=thorough(columns.dtype),
        **shape, num_warps=1,
    )  # fmt: skip
    return out


class GatherToEdges(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, wigner: Tensor, graph: Graph, layout: EdgeLayout) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(wigner)
        ctx.graph, ctx.layout = graph, layout
        ctx.set_materialize_grads(False)
        return _gather(features.contiguous(), wigner, graph.src, graph.dst_ptr[-1:], layout), features

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None, None, None]:
        (wigner,) = ctx.saved_tensors
        graph, (upper, other) = ctx.graph, grads
        if upper is None:
            return other, None, None, None
        added = None if other is None else other.contiguous()
        return _sum(upper.contiguous(), wigner, graph.src_ptr, graph.src_order, ctx.layout, added), None, None, None


class SumFromEdges(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, columns: Tensor, wigner: Tensor, graph: Graph, layout: EdgeLayout) -> Tensor:
        ctx.save_for_backward(wigner)
        ctx.graph, ctx.layout = graph, layout
        return _sum(columns.contiguous(), wigner, graph.dst_ptr, None, layout)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (wigner,) = ctx.saved_tensors
        graph = ctx.graph
        return _gather(grads[0].contiguous(), wigner, graph.dst, graph.dst_ptr[-1:], ctx.layout), None, None, None


class Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, messages: Tensor, query: Tensor, wigner: Tensor, graph: Graph, value: EdgeLayout, key: EdgeLayout,
        num_heads: int,
    ) -> Tensor:  # fmt: skip
        messages, query = messages.contiguous(), query.to(messages.dtype).contiguous()
        shapes = _attention_shapes(value, key, num_heads, wigner)
        tables = [rotation_table(layout, shapes["SIZE"], messages.device) for layout in (value, key)]
        out = messages.new_empty(len(query), value.fiber.num_features)
        log_sum = messages.new_empty(len(query), shapes["CHANNELS"], dtype=torch.float32)
        scale = key.fiber.num_features**-0.5
        launch(kernels.attend, (len(query),), 
            messages, query, wigner, graph.dst_ptr, *tables, out, log_sum, scale,
            PRECISION=thorough(messages.dtype), **shapes, num_warps=1, maxnreg=registers(messages.dtype),
        )  # fmt: skip
        ctx.save_for_backward(messages, query, wigner, graph.dst_ptr, *tables, out, log_sum)
        ctx.shapes, ctx.scale = shapes, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        messages, query, *rest = ctx.saved_tensors
        grad = grads[0].to(messages.dtype).contiguous()
        grad_messages, grad_query = torch.empty_like(messages), torch.empty_like(query)
        launch(kernels.attend_backward, (len(query),), 
            messages, query, *rest, grad, grad_messages, grad_query, ctx.scale, len(messages),
            PRECISION=thorough(messages.dtype), **ctx.shapes, num_warps=1, maxnreg=registers(messages.dtype),
        )  # fmt: skip
        return grad_messages, grad_query, None, None, None, None, None


def registers(dtype: torch.dtype) -> int | None:
    """Returns the most registers of a thread of the attention kernels; None leaves them to the compiler."""
    return None if dtype == torch.float32 else HALF_REGISTERS


def attention_supported(value: EdgeLayout, key: EdgeLayout, num_heads: int) -> bool:
    """Returns whether `attend` supports the layouts: equal channels, and a power of two of them for each head."""
    if not (supported(value) and supported(key)) or value.channels != key.channels:
        return False
    assert value.channels is not None
    per_head = value.channels // num_heads
    return value.channels % num_heads == 0 and per_head & (per_head - 1) == 0


def _attention_shapes(value: EdgeLayout, key: EdgeLayout, num_heads: int, wigner: Tensor) -> dict[str, int]:
    values, keys = tile(value), tile(key)
    return {
        "PACKED": wigner.shape[1],
        "VALUE_COMPONENTS": values["COMPONENTS"],
        "VALUE_ROWS": values["ROWS"],
        "KEY_COMPONENTS": keys["COMPONENTS"],
        "KEY_ROWS": keys["ROWS"],
        "CHANNELS": values["CHANNELS"],
        "PER_HEAD": values["CHANNELS"] // num_heads,
        "SIZE": max(values["SIZE"], keys["SIZE"]),
        "WIDTH": values["WIDTH"],
    }


def gather_to_edges(
    features: Float[Tensor, "nodes features"], wigner: Float[Tensor, "edges packed"], graph: Graph, layout: EdgeLayout
) -> tuple[Float[Tensor, "edges columns"], Float[Tensor, "nodes features"]]:
    """Returns the source nodes' features in the edge frames, zero for padded edges, and `features`.

    The kernel adds the gradient of the latter's uses.
    """
    return GatherToEdges.apply(features, wigner, graph, layout)  # type: ignore[return-value]


def sum_from_edges(
    columns: Float[Tensor, "edges columns"], wigner: Float[Tensor, "edges packed"], graph: Graph, layout: EdgeLayout
) -> Float[Tensor, "nodes features"]:
    """Rotates features from the edge frames into the common frame and sums them over incoming edges."""
    return SumFromEdges.apply(columns, wigner, graph, layout)  # type: ignore[return-value]


def attend(
    messages: Float[Tensor, "edges columns"],
    query: Float[Tensor, "nodes keys"],
    wigner: Float[Tensor, "edges packed"],
    graph: Graph,
    value: EdgeLayout,
    key: EdgeLayout,
    num_heads: int,
) -> Float[Tensor, "nodes values"]:
    """Computes attention over incoming edges; `messages` are the value's and the key's columns in the edge frames."""
    return Attend.apply(messages, query, wigner, graph, value, key, num_heads)  # type: ignore[return-value]
