"""Chooses the fused kernels or plain torch for each call, by device, dtype and shape; the log says why."""

from types import ModuleType

import torch
from jaxtyping import Float
from torch import Tensor, nn

from src.batches.molecular_graphs import Graph
from src.gpu.triton_helpers import can_take, note, package, working_dtype
from src.models.se3_transformer.fiber import Fiber
from src.models.se3_transformer.frames import EdgeLayout
from src.models.se3_transformer.kernels import reference
from src.models.se3_transformer.plan import Plan


def kernels() -> ModuleType | None:
    """Returns the package `fused`; None if Triton is not installed."""
    return package("src.models.se3_transformer.kernels.fused")


def fused_for(tensor: Tensor) -> ModuleType | None:
    """Returns the package `fused` if its kernels support the tensor's device and dtype, else None."""
    return kernels() if can_take(tensor) else None


def contract(
    hidden: Float[Tensor, "edges mid"], columns: Float[Tensor, "edges inputs"], mixed: Float[Tensor, " _"], plan: Plan
) -> Float[Tensor, "edges outputs"]:
    """Computes `reference.contract`. `mixed` is float32 or wider; the result has the dtype of `columns`."""
    if fused := fused_for(columns):
        if fused.contraction.supported(plan, hidden.shape[1]):
            return fused.contraction.contract(hidden, columns, mixed, plan)
        note(f"the fused contraction does not support {plan.group}; plain torch computes the same, more slowly")
    dtype = columns.dtype
    return reference.contract(hidden.to(dtype), columns, mixed.to(dtype), plan)


def gather_to_edges(
    features: Float[Tensor, "nodes features"], wigner: Float[Tensor, "edges packed"], graph: Graph, layout: EdgeLayout
) -> Float[Tensor, "edges columns"]:
    """Returns the source nodes' features in the edge frames."""
    if layout.fiber.degrees == (0,):  # scalars do not rotate
        return features[graph.src]
    if (fused := fused_for(features)) and fused.edges.supported(layout):
        return fused.edges.gather_to_edges(features, wigner, graph, layout)
    return layout.to_edge(features[graph.src], wigner)


def sum_from_edges(
    columns: Float[Tensor, "edges columns"], wigner: Float[Tensor, "edges packed"], graph: Graph, layout: EdgeLayout
) -> Float[Tensor, "nodes features"]:
    """Rotates features from the edge frames into the common frame and sums them over incoming edges."""
    if (fused := fused_for(columns)) and fused.edges.supported(layout):
        return fused.edges.sum_from_edges(columns, wigner, graph, layout)
    return sum_incoming(layout.from_edge(columns, wigner), graph)


def sum_incoming(messages: Float[Tensor, "edges features"], graph: Graph) -> Float[Tensor, "nodes features"]:
    """Sums messages over incoming edges, without padded edges."""
    is_real = torch.arange(len(graph.dst), device=graph.dst.device) < graph.dst_ptr[-1]
    sums = messages.new_zeros(len(graph.positions), messages.shape[1])
    return sums.index_add(0, graph.dst, torch.where(is_real[:, None], messages, 0))


def attend(
    messages: Float[Tensor, "edges columns"],
    query: Float[Tensor, "nodes keys"],
    wigner: Float[Tensor, "edges packed"],
    graph: Graph,
    value: EdgeLayout,
    key: EdgeLayout,
    num_heads: int,
) -> Float[Tensor, "nodes values"]:
    """Computes attention with messages in the edge frames: the value's columns, then the key's."""
    if (fused := fused_for(messages)) and fused.edges.attention_supported(value, key, num_heads):
        return fused.edges.attend(messages, query, wigner, graph, value, key, num_heads)
    values, keys = messages.split([value.num_features, key.num_features], 1)
    values, keys = value.from_edge(values, wigner), key.from_edge(keys, wigner)
    return reference.attend(values, keys, query, graph, num_heads, value.fiber, key.fiber)


def norm(
    features: Float[Tensor, "nodes features"],
    weight: Float[Tensor, " channels"],
    bias: Float[Tensor, " channels"],
    fiber: Fiber,
    smallest: float,
    eps: float,
) -> Float[Tensor, "nodes features"]:
    """Computes `reference.norm`."""
    if (fused := fused_for(features)) and fused.norm.supported(fiber):
        return fused.norm.norm(features, weight, bias, fiber, smallest, eps)
    return reference.norm(features, weight, bias, fiber, smallest, eps)


def linear(
    inputs: tuple[Float[Tensor, "nodes _"], ...], weights: Float[Tensor, "degrees outer inner"], fiber_out: Fiber
) -> Float[Tensor, "nodes features"]:
    """Computes `reference.linear` in the working dtype."""
    dtype = working_dtype(inputs[0])
    inputs = tuple(x.to(dtype) for x in inputs)
    if (fused := fused_for(inputs[0])) and fiber_out.degrees == tuple(range(len(fiber_out))):
        widths = tuple(x.shape[1] // len(fiber_out) ** 2 for x in inputs)
        if fused.linear.supported(widths, weights.shape[1]):
            return fused.linear.linear(inputs, weights)
    return reference.linear(inputs, weights.to(dtype), fiber_out)


def radial_hidden(inputs: Float[Tensor, "edges scalars"], network: nn.Sequential) -> Float[Tensor, "edges mid"]:
    """Computes the hidden layers of a radial network: Linear, optional LayerNorm and ReLU, twice."""
    if (fused := fused_for(inputs)) and fused.radial.supported(network):
        return fused.radial.hidden(inputs, network)
    return network(inputs)
