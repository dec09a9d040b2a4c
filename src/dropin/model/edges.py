"""What all layers of a forward pass share: sorted edges with their geometry, and features by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from src.dropin.graphs import check, topology_of
from src.errors import UserError
from src.models.se3_transformer.conv import Geometry, angular_basis
from src.models.se3_transformer.fiber import Fiber
from src.models.se3_transformer.signs import Y_0, Triple, symbol_signs

ByName = Mapping[str, Tensor]  # {str(degree): [rows, channels, 2 degree + 1]}


@dataclass(frozen=True)
class Edges:
    """Edges sorted by destination. `order`: their numbers in the caller's graph. `features`: of degrees >= 1."""

    geometry: Geometry
    features: dict[int, Tensor]
    order: Int64[Tensor, " edges"]


def edges_of(
    graph: Any,
    edge_feats: ByName,
    max_degree: int,
    dtype: torch.dtype,
    negated: frozenset[Triple],
    basis: ByName | None = None,
    full_gradient: bool = False,
) -> Edges:
    """Returns the edges of a graph with edata `rel_pos`, and `edge_feats` whose degree 0 ends with the radial input.

    Args:
        negated: Wigner 3j symbols with another sign than e3nn's (`signs.negated_symbols`).
        basis: of `get_basis`, which then gives the directions instead of `rel_pos`.
        full_gradient: whether directions have gradients; lengths have them in `edge_feats`.
    """
    batch, order = topology_of(graph)
    scalars = edge_feats["0"]
    check_device(graph, scalars)
    if len(scalars) != len(order):
        raise UserError(f"the edge features are of {len(scalars)} edges, the graph has {len(order)}")
    radial_inputs = scalars.flatten(1)[order].to(dtype)
    features = {int(degree): x[order].to(dtype) for degree, x in edge_feats.items() if degree != "0"}
    if basis is not None:
        nowhere = radial_inputs.new_zeros(1, 3).expand(len(order), 3)
        geometry = Geometry(batch, nowhere, radial_inputs, max_degree)
        geometry.computed[angular_basis] = tables_of(basis, max_degree, order, dtype, negated)
        return Edges(geometry, features, order)
    rel_pos = relative_positions(graph)
    rel_pos = (rel_pos if full_gradient else rel_pos.detach())[order].to(dtype)
    null = None
    if not (rel_pos.is_cuda and torch.cuda.is_current_stream_capturing()):  # which cannot wait for the number of them
        null = (rel_pos == 0).all(1).nonzero()[:, 0]
        if not len(null):
            batch, null = batch._replace(distinct=True), None
    geometry = Geometry(batch, rel_pos, radial_inputs, max_degree, null)
    if rel_pos.requires_grad:
        geometry.once(angular_basis)  # here, because a checkpoint must save the same tensors when it recomputes
    return Edges(geometry, features, order)


def relative_positions(graph: Any) -> Tensor:
    """Returns the graph's edata `rel_pos`. Raises UserError if there is none of three components for each edge."""
    check(graph)
    if "rel_pos" not in graph.edata:
        raise UserError("the graph has no edata['rel_pos']: set it to positions[dst] - positions[src]")
    rel_pos = graph.edata["rel_pos"]
    if rel_pos.shape != (graph.num_edges(), 3):
        shape = list(rel_pos.shape)
        raise UserError(f"edata['rel_pos'] is {shape}; expected [{graph.num_edges()}, 3], a row for each edge")
    return rel_pos


def check_device(graph: Any, features: Tensor) -> None:
    check(graph)
    src, _ = graph.edges()
    if src.device != features.device:
        raise UserError(f"the graph is on {src.device} and its features on {features.device}; use graph.to(device)")


def tables_of(
    basis: ByName, max_degree: int, order: Tensor, dtype: torch.dtype, negated: frozenset[Triple]
) -> dict[tuple[int, int], Tensor]:
    """Returns the tables of `get_basis` by pair of degrees and sorted, with e3nn's signs and without padding."""
    tables = {}
    for d_out in range(max_degree + 1):
        for d_in in range(max_degree + 1):
            table = basis.get(f"{d_in},{d_out}")
            if table is None and d_in == d_out == 0:  # NVIDIA's fused tables go without this constant
                table = order.new_full((len(order), 1, 1, 1), Y_0, dtype=dtype)
            if table is None:
                raise UserError(f"the basis has no table '{d_in},{d_out}'; give that of get_basis(.., {max_degree})")
            signs = torch.tensor(symbol_signs((d_in, d_out), negated), dtype=dtype, device=table.device)
            tables[d_in, d_out] = table[order][..., : 2 * d_out + 1].to(dtype) * signs[:, None]
    return tables


def flat(features: ByName, fiber: Fiber, dtype: torch.dtype, rows: int | None = None) -> Tensor:
    """Returns features by name as one flat tensor. Raises UserError if they are not of this fiber, or of other rows."""
    by_degree = {int(degree): feature for degree, feature in features.items()}
    fiber.check(by_degree, "the features")
    counts = {len(feature) for feature in by_degree.values()}
    if len(counts) > 1 or (rows is not None and counts != {rows}):
        expected = "" if rows is None else f"; the graph has {rows} nodes"
        raise UserError(f"the features have {', '.join(map(str, sorted(counts)))} rows{expected}")
    return fiber.flatten(by_degree).to(dtype)


def by_name(features: Tensor, fiber: Fiber) -> dict[str, Tensor]:
    """Returns flat features as {str(degree): [rows, channels, 2 degree + 1]}."""
    return {str(degree): feature.contiguous() for degree, feature in fiber.unflatten(features).items()}
