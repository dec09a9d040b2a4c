"""What all layers of a forward pass share: sorted edges with their geometry, and features by name."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from src.batches.molecular_graphs import Graph as Batch
from src.dropin.graphs import check, topology_of
from src.dropin.model import tables
from src.errors import UserError
from src.gpu.triton_helpers import can_take
from src.models.se3_transformer.conv import Geometry, angular_basis
from src.models.se3_transformer.fast.dense import LEAST_EDGES, DenseEdges
from src.models.se3_transformer.fiber import Fiber
from src.models.se3_transformer.signs import Y_0, Triple, symbol_signs

ByName = Mapping[str, Tensor]  # {str(degree): [rows, channels, 2 degree + 1]}


class Edges:
    """The edges of a graph in the caller's order, and what layers make of them once.

    Args:
        scalars: edge features of degree 0 without the radial input. radial: makes that input.
        features: edge features of other degrees.
        negated: Wigner 3j symbols with another sign than e3nn's (`signs.negated_symbols`).
        basis: of `get_basis`, which then gives the directions instead of edata `rel_pos`.
        full_gradient: whether directions have gradients; lengths have them in `radial`.
    """

    def __init__(
        self,
        graph: Any,
        scalars: Float[Tensor, "edges _"] | None,
        radial: Callable[[], Float[Tensor, " edges"]],
        features: ByName,
        max_degree: int,
        dtype: torch.dtype,
        negated: frozenset[Triple],
        basis: ByName | None = None,
        full_gradient: bool = False,
    ) -> None:
        if scalars is not None:
            check_device(graph, scalars)
            if len(scalars) != graph.num_edges():
                raise UserError(f"the edge features are of {len(scalars)} edges, the graph has {graph.num_edges()}")
        self.graph, self.make_radial, self.max_degree, self.dtype = graph, radial, max_degree, dtype
        self.scalars = None if scalars is None else scalars.to(dtype)
        self.given, self.negated, self.basis = features, negated, basis
        if basis is None:
            rel_pos = relative_positions(graph)
            self.rel_pos = (rel_pos if full_gradient else rel_pos.detach()).to(dtype)
            if self.rel_pos.requires_grad:
                # Here, because a checkpoint must save the same tensors when it recomputes.
                self.geometry.once(angular_basis)

    @cached_property
    def radial(self) -> Float[Tensor, " edges"]:
        return self.make_radial().to(self.dtype)

    @property
    def num_nodes(self) -> int:
        return self.graph.num_nodes()

    @cached_property
    def is_dense(self) -> bool:
        """Whether the kernels of degrees 0 and 1 may compute."""
        return self.has_many(LEAST_EDGES) and can_take("conv", self.rel_pos)

    def has_many(self, least: float) -> bool:
        """Returns whether degrees are 0 and 1 and nodes have so many edges that products at the nodes are cheaper."""
        if self.basis is not None or self.max_degree > 1 or self.rel_pos.requires_grad:
            return False
        return self.graph.num_edges() >= max(1, least * self.num_nodes)

    @cached_property
    def dense(self) -> DenseEdges | tables.TableEdges | None:
        """The edges for these kernels, or for the same products in plain torch on a CPU."""
        if not self.is_dense:
            return self.table
        src, dst = self.graph.edges()
        if src.is_cuda and len(src):
            lowest, highest = torch.stack([src, dst]).aminmax()
            inside = (lowest >= -int(getattr(self.graph, "is_padded", False))) & (highest < self.num_nodes)
            torch._assert_async(inside, "an edge joins a node that the graph has not")  # pyright: ignore
        scalars = self.radial.new_empty(len(src), 0) if self.scalars is None else self.scalars
        return DenseEdges(src, dst, self.num_nodes, self.rel_pos.contiguous(), scalars, self.radial)

    @property
    def table(self) -> tables.TableEdges | None:
        if not self.has_many(tables.LEAST_EDGES) or self.dtype not in (torch.float32, torch.float64):
            return None
        if self.rel_pos.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
            return None
        src, dst = self.graph.edges()
        edges = tables.TableEdges(src.long(), dst.long(), self.num_nodes, self.rel_pos, self.radial_inputs)
        return edges if edges.fits else None

    @property
    def radial_inputs(self) -> Float[Tensor, "edges scalars"]:
        """The inputs of radial networks, in the caller's order."""
        radial = self.radial[:, None]
        return radial if self.scalars is None else torch.cat([self.scalars, radial], 1)

    @cached_property
    def sorted(self) -> tuple[Batch, Int64[Tensor, " edges"]]:
        """The edges sorted by destination, and their numbers in the caller's graph."""
        return topology_of(self.graph)

    @property
    def order(self) -> Int64[Tensor, " edges"]:
        return self.sorted[1]

    @cached_property
    def features(self) -> dict[int, Tensor]:
        """Edge features of degrees >= 1, of sorted edges."""
        return {int(degree): x[self.order].to(self.dtype) for degree, x in self.given.items() if degree != "0"}

    @cached_property
    def geometry(self) -> Geometry:
        """What layers read of sorted edges."""
        batch, order = self.sorted
        inputs = self.radial_inputs[order]
        if self.basis is not None:
            nowhere = inputs.new_zeros(1, 3).expand(len(order), 3)
            geometry = Geometry(batch, nowhere, inputs, self.max_degree)
            geometry.computed[angular_basis] = tables_of(self.basis, self.max_degree, order, self.dtype, self.negated)
            return geometry
        rel_pos, null = self.rel_pos[order], None
        if not (rel_pos.is_cuda and torch.cuda.is_current_stream_capturing()):  # which cannot wait for their number
            null = (rel_pos == 0).all(1).nonzero()[:, 0]
            if not len(null):
                batch, null = batch._replace(distinct=True), None
        return Geometry(batch, rel_pos, inputs, self.max_degree, null)


def edges_of(
    graph: Any,
    edge_feats: ByName,
    max_degree: int,
    dtype: torch.dtype,
    negated: frozenset[Triple],
    basis: ByName | None = None,
) -> Edges:
    """Returns the edges of a graph with edata `rel_pos`, and `edge_feats` whose degree 0 ends with the radial input."""
    check(graph)
    check_names(edge_feats, "edge_feats")
    scalars = edge_feats["0"].flatten(1)
    return Edges(graph, scalars[:, :-1], lambda: scalars[:, -1], edge_feats, max_degree, dtype, negated, basis)


def relative_positions(graph: Any) -> Tensor:
    """Returns the graph's edata `rel_pos`. Raises UserError if there is none of three components for each edge."""
    check(graph)
    if "rel_pos" not in graph.edata:
        raise UserError("the graph has no edata['rel_pos']: set it to positions[dst] - positions[src]")
    rel_pos = graph.edata["rel_pos"]
    if not isinstance(rel_pos, Tensor):
        raise UserError(f"edata['rel_pos'] is a {type(rel_pos).__name__}; expected a tensor [{graph.num_edges()}, 3]")
    check_device(graph, rel_pos, "edata['rel_pos'] is")
    if rel_pos.shape != (graph.num_edges(), 3):
        shape = list(rel_pos.shape)
        raise UserError(f"edata['rel_pos'] is {shape}; expected [{graph.num_edges()}, 3], a row for each edge")
    return rel_pos


def check_device(graph: Any, tensor: Tensor, what: str = "its features are") -> None:
    """Raises UserError if the graph is on another device than a tensor, which the message calls `what`."""
    check(graph)
    src, _ = graph.edges()
    if src.device != tensor.device:
        raise UserError(f"the graph is on {src.device} and {what} on {tensor.device}; move both to one device")


def check_names(features: Any, what: str) -> None:
    """Raises UserError unless features are tensors by degree, with degrees as text."""
    if not isinstance(features, Mapping):
        shown = f"a {type(features).__name__}"
    elif wrong := [key for key in features if not (isinstance(key, str) and key.isdecimal())]:
        shown = f"of the key {wrong[0]!r}"
    else:
        return
    raise UserError(f"{what} is {shown}; expected a dictionary by degree as text: {{'0': scalars, '1': vectors}}")


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


class Named(dict[str, Tensor]):
    """Features by name that are views of flat ones."""

    def __init__(self, features: Tensor, fiber: Fiber) -> None:
        views = {str(degree): feature for degree, feature in fiber.unflatten(features).items()}
        super().__init__(views)
        self.whole, self.fiber, self.views = features, fiber, views

    def is_fiber(self, fiber: Fiber) -> bool:
        """Returns whether the flat features are of this fiber and still those by name."""
        return (
            self.fiber == fiber
            and self.keys() == self.views.keys()
            and all(self[k] is v for k, v in self.views.items())
        )


def flat(features: ByName, fiber: Fiber, dtype: torch.dtype, rows: int | None = None) -> Tensor:
    """Returns features by name as one flat tensor. Raises UserError if they are not of this fiber, or of other rows."""
    if isinstance(features, Named) and features.is_fiber(fiber):
        return features.whole.to(dtype)
    check_names(features, "node_feats")
    by_degree = {int(degree): feature for degree, feature in features.items()}
    fiber.check(by_degree, "the features")
    counts = {len(feature) for feature in by_degree.values()}
    if len(counts) > 1 or (rows is not None and counts != {rows}):
        expected = "" if rows is None else f"; the graph has {rows} nodes"
        raise UserError(f"the features have {', '.join(map(str, sorted(counts)))} rows{expected}")
    return fiber.flatten(by_degree).to(dtype)


def by_name(features: Tensor, fiber: Fiber, graph: Any = None) -> dict[str, Tensor]:
    """Returns flat features as {str(degree): [rows, channels, 2 degree + 1]}; views between layers (with `Edges`)."""
    if isinstance(graph, Edges):
        return Named(features, fiber)
    return {str(degree): feature.contiguous() for degree, feature in fiber.unflatten(features).items()}
