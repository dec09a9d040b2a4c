"""Autograd functions of the kernels in `two_degrees_triton`; see `dense`."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from src.gpu.triton_helpers import float32_precision, launch, power_of_2, reads_registers
from src.models.se3_transformer.basis import Pair, num_frequencies
from src.models.se3_transformer.fast import two_degrees_triton as kernels
from src.models.se3_transformer.fast.dense import PAIRS, DenseEdges, DensePlan

EDGES = {"messages": 64, "hidden": 64, "terms": 64}  # of a tile
CHANNELS = 16  # of a tile, or 32 for outputs of more
ATTENTION_COLUMNS = 4096  # of a tile of edges, keys or values


@cache
@torch.inference_mode(False)
def on(values: tuple[int, ...], device: torch.device) -> Int[Tensor, " _"]:
    """Returns integers on a device; cached, because a CUDA graph cannot capture the copy."""
    return torch.tensor(values or (0,), dtype=torch.int32, device=device)


def terms(
    features: dict[int, Float[Tensor, "nodes components channels"]], weights: Sequence[Tensor], plan: DensePlan
) -> list[Tensor | None]:
    """Returns each pair's T, [frequencies, nodes, components in, channels out, mid], None where there is no pair.

    `weights` are the groups' `RadialGroup.weight`.
    """
    by_pair: dict[Pair, Tensor] = {}
    rows_of = {degree: source.flatten(0, 1) for degree, source in features.items()}
    for group, weight in zip(plan.groups, weights, strict=True):
        begin = 0
        for pair in group.pairs():
            rows = num_frequencies(pair) * group.size(pair)
            matrix = weight[begin : begin + rows].view(num_frequencies(pair), group.inputs.channels(pair[0]), -1)
            begin += rows
            source = features[pair[0]]
            product = rows_of[pair[0]] @ matrix.to(source.dtype)
            by_pair[pair] = product.view(len(matrix), *source.shape[:2], group.outputs.channels(pair[1]), -1)
    return [by_pair.get(pair) for pair in PAIRS]


def tile(plan: DensePlan) -> int:
    return CHANNELS if max(plan.channels(0), plan.channels(1)) <= CHANNELS else 2 * CHANNELS


class Messages(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, edges: DenseEdges, plan: DensePlan, *tables: Tensor | None) -> Tensor:
        t = [hidden if table is None else table.contiguous() for table in tables]
        ctx.save_for_backward(hidden, *t)
        ctx.edges, ctx.plan, ctx.present = edges, plan, [table is not None for table in tables]
        out = hidden.new_empty(len(edges.src), plan.stride)
        order, ptr = edges.by_source
        size, jobs0 = tile(plan), -(-plan.channels(0) // tile(plan))
        jobs = jobs0 + -(-plan.channels(1) // size)
        split = splits(edges, EDGES["messages"])
        columns = [on(columns, hidden.device) for columns in plan.columns]
        launch(
            kernels.messages, (max(1, edges.nodes * split), jobs), hidden, edges.rel_pos, order, ptr, *t, *columns,
            out, edges.nodes, len(out), split, plan.stride, *plan.factors, **plan.constants, JOBS0=jobs0, 
            BE=EDGES["messages"], BO=size, MID=hidden.shape[2], PRECISION=float32_precision(hidden.dtype),
            num_warps=warps(size),
        )  # fmt: skip
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, *t = ctx.saved_tensors
        edges, plan, grad = ctx.edges, ctx.plan, grads[0].contiguous()
        order, ptr = edges.by_source
        count, size, split = len(edges.src), tile(plan), splits(edges, EDGES["hidden"])
        columns = [on(columns, hidden.device) for columns in plan.columns]
        shared = {"MID": hidden.shape[2], "PRECISION": float32_precision(hidden.dtype)}
        grad_hidden = torch.empty_like(hidden)
        launch(
            kernels.messages_backward_hidden, (max(1, edges.nodes * split), len(hidden)), edges.rel_pos, order, ptr, *t,
            *columns, grad, grad_hidden, edges.nodes, count, split, plan.stride, *plan.factors, **plan.constants, 
            BE=EDGES["hidden"], BO=CHANNELS, SETTLE=reads_registers(hidden), **shared, num_warps=4,
        )  # fmt: skip
        grad_tables: list[Tensor | None] = []
        begin = 0
        for pair, table, present in zip(PAIRS, t, ctx.present, strict=True):
            factors = plan.factors[begin : begin + num_frequencies(pair)]
            begin += len(factors)
            if not present:
                grad_tables.append(None)
                continue
            grad_t, outputs = torch.empty_like(table), plan.channels(pair[1])
            launch(
                kernels.messages_backward_terms, (max(1, edges.nodes), -(-outputs // size), 2 * pair[0] + 1), hidden,
                edges.rel_pos, order, ptr, columns[pair[1]], grad, grad_t, edges.nodes, count, plan.stride,
                *[*factors, 0.0, 0.0][:3], FROM=pair[0], TO=pair[1], GROUP=plan.group_of[pair], OUT=outputs,
                BE=EDGES["terms"], BO=size, **shared, num_warps=warps(size),
            )  # fmt: skip
            grad_tables.append(grad_t)
        return grad_hidden, None, None, *grad_tables


def warps(size: int) -> int:
    return 4 if size == CHANNELS else 8


def splits(edges: DenseEdges, size: int) -> int:
    """Returns the programs for each source, so that one of average degree has a tile in each."""
    return max(1, -(-len(edges.src) // (max(edges.nodes, 1) * size)))


class SumIncoming(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, messages: Tensor, edges: DenseEdges) -> Tensor:
        ctx.edges = edges
        order, ptr = edges.by_destination
        width, padded = messages.shape[1], power_of_2(messages.shape[1])
        out = messages.new_empty(edges.nodes, width)
        launch(
            kernels.sum_incoming, (max(1, edges.nodes),), messages, order, ptr, out, width, WIDTH=width, PADDED=padded,
            BE=max(1, min(64, ATTENTION_COLUMNS // padded)), num_warps=4,
        )  # fmt: skip
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0][ctx.edges.dst], None


class Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, messages: Tensor, query: Tensor, edges: DenseEdges, plan: DensePlan) -> Tensor:
        query = query.to(messages.dtype).contiguous()
        tables = [on(features, messages.device) for features in plan.features]
        value, key = plan.outputs
        order, ptr = edges.by_destination
        out = messages.new_empty(edges.nodes, value.num_features)
        log_sum = messages.new_empty(edges.nodes, plan.heads, dtype=torch.float32)
        launch(
            kernels.attend, (max(1, edges.nodes),), messages, query, order, ptr, *tables, out, log_sum, plan.stride,
            key.num_features, value.num_features, key.num_features**-0.5, **attention_constants(plan), num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(messages, query, out, log_sum)
        ctx.edges, ctx.plan, ctx.tables = edges, plan, tables
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        messages, query, out, log_sum = ctx.saved_tensors
        edges, plan = ctx.edges, ctx.plan
        value, key = plan.outputs
        grad_messages, grad_query = torch.empty_like(messages), torch.empty_like(query)
        order, ptr = edges.by_destination
        launch(
            kernels.attend_backward, (max(1, edges.nodes),), messages, query, order, ptr, *ctx.tables, out, log_sum,
            grads[0].to(messages.dtype).contiguous(), grad_messages, grad_query, plan.stride, key.num_features,
            value.num_features, key.num_features**-0.5, **attention_constants(plan), num_warps=4,
        )  # fmt: skip
        return grad_messages, grad_query, None, None


def attention_constants(plan: DensePlan) -> dict[str, int]:
    value, key = (plan.width(fiber) for fiber in plan.outputs)
    size = max(1, min(64, ATTENTION_COLUMNS // (plan.heads * max(value, key))))
    return {"HEADS": plan.heads, "VALUE": value, "KEY": key, "BE": size}


def messages(
    hidden: Float[Tensor, "groups edges mid"],
    edges: DenseEdges,
    plan: DensePlan,
    features: dict[int, Float[Tensor, "nodes components channels"]],
    weights: Sequence[Tensor],
) -> Float[Tensor, "edges columns"]:
    """Returns the messages of all edges in the plan's columns."""
    tables = terms({degree: x.to(hidden.dtype) for degree, x in features.items()}, weights, plan)
    return Messages.apply(hidden.contiguous(), edges, plan, *tables)  # type: ignore[return-value]


def attend(
    of_edges: Float[Tensor, "edges columns"], query: Float[Tensor, "nodes keys"], edges: DenseEdges, plan: DensePlan
) -> Float[Tensor, "nodes values"]:
    """Computes attention over incoming edges, whose messages are values and keys."""
    return Attend.apply(of_edges, query, edges, plan)  # type: ignore[return-value]


def sum_incoming(of_edges: Float[Tensor, "edges columns"], edges: DenseEdges) -> Float[Tensor, "nodes columns"]:
    return SumIncoming.apply(of_edges, edges)  # type: ignore[return-value]
