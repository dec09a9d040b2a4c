"""Pooling of node features over each molecule."""

from typing import Literal, get_args

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor, nn

from src.errors import UserError

Pooling = Literal["max", "mean", "sum"]


def check_pooling(kind: str) -> None:
    """Raises UserError for an unknown pooling."""
    if kind not in get_args(Pooling):
        raise UserError(f"pooling={kind} must be one of {', '.join(get_args(Pooling))}, or null for none")


class Pool(nn.Module):
    """Pools node features over each molecule, see `pool`. Raises UserError for an unknown kind."""

    def __init__(self, kind: Pooling) -> None:
        super().__init__()
        check_pooling(kind)
        self.kind: Pooling = kind

    def forward(
        self, features: Float[Tensor, "nodes features"], graph_ptr: Int[Tensor, " graphs_and_1"]
    ) -> Float[Tensor, "graphs features"]:
        return pool(features, graph_ptr, self.kind)


def pool(
    features: Float[Tensor, "nodes features"], graph_ptr: Int[Tensor, " graphs_and_1"], kind: Pooling
) -> Float[Tensor, "graphs features"]:
    """Returns each column's maximum, mean or sum over nodes graph_ptr[g] .. graph_ptr[g + 1] - 1; 0 if there are none.

    The gradient of a maximum goes to the first node that has it. Nodes from graph_ptr[-1] on (padding) are ignored.
    Does not synchronise with the device. Raises UserError for an unknown kind.
    """
    check_pooling(kind)
    graphs = graph_ptr.shape[0] - 1
    nodes = torch.arange(features.shape[0], device=features.device)
    graph_of = torch.searchsorted(graph_ptr.long(), nodes, right=True) - 1  # `graphs` for padded nodes
    sizes = graph_ptr.diff()[:, None]
    if kind == "max":
        return _maximum(features, graph_of, nodes, graphs).where(sizes > 0, 0)
    # A GPU adds in no fixed order. In float64 sums of float16 are exact, and those of float32 nearly always after
    # rounding, so that equal runs stay equal (docs/notes/2026-11-25-qm9-targets.md).
    wide = features.double()
    total = wide.new_zeros(graphs + 1, features.shape[1]).index_add(0, graph_of, wide)[:graphs]
    return (total / sizes.clamp_min(1) if kind == "mean" else total).to(features.dtype)


def _maximum(
    features: Float[Tensor, "nodes features"],
    graph_of: Int64[Tensor, " nodes"],
    nodes: Int64[Tensor, " nodes"],
    graphs: int,
) -> Float[Tensor, "graphs features"]:
    """Returns the maxima, each read from the first node that has it, so that the gradient goes to one node."""
    values, rows = features.detach(), graph_of[:, None].expand(features.shape)
    best = values.new_full((graphs + 1, features.shape[1]), -torch.inf).scatter_reduce(0, rows, values, "amax")
    holders = (values == best[graph_of]) | values.isnan()  # a NaN equals nothing but must reach the result
    candidates = nodes[:, None].where(holders, nodes.shape[0])
    first = candidates.new_full(best.shape, nodes.shape[0]).scatter_reduce(0, rows, candidates, "amin")[:graphs]
    return features.gather(0, first.clamp_max(nodes.shape[0] - 1))
