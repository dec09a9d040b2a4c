"""Convolutions and attention of degrees 0 and 1 in plain torch on a CPU, for nodes of many edges.

As in `fast.dense`, the channels in are multiplied at the nodes: the product of a source's features and the last radial
matrix is made once a node, and an edge multiplies it by its hidden layer. Edges are rows of a table, those of a source
side by side and padded to the longest, so that these products are one batched product.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import functional as F

from src.models.se3_transformer.basis import Pair, num_frequencies
from src.models.se3_transformer.fast.dense import DenseEdges, coefficients, dense_convolution, ordered
from src.models.se3_transformer.radial import Group

LEAST_EDGES = 2  # for each node; with fewer, products at the edges are cheaper
MOST_PADDING = 2.0  # rows of the table for each edge; with more, edges are sorted instead
TERMS = 13  # 1, r and r r^T of a direction r


@dataclass(frozen=True)
class Rows:
    """The edges of each node side by side, [nodes x longest], None if they are in the caller's order.

    Where `is_missing`, they are an edge of the same node again.
    """

    edges: Int64[Tensor, " rows"] | None
    longest: int
    counts: Int64[Tensor, " nodes"]
    places: Int64[Tensor, " edges"]  # of each edge among them
    is_missing: Bool[Tensor, "nodes longest"] | None = None

    def of(self, edges: Tensor) -> Tensor:
        """Returns rows of a tensor of edges."""
        return edges if self.edges is None else edges.index_select(0, self.edges)


@torch.inference_mode(False)
def rows_of(ends: Int64[Tensor, " edges"], nodes: int) -> Rows:
    order, begins = ordered(ends, nodes)
    counts, number = begins.diff(), torch.arange(len(ends))
    longest = int(counts.max())
    if len(ends) == nodes * longest:
        if torch.equal(order, number):
            return Rows(None, longest, counts, number)
        return Rows(order, longest, counts, torch.empty_like(order).index_copy_(0, order, number))
    column = torch.arange(longest)
    shifts = torch.arange(nodes) * longest - begins[:-1]
    places = torch.empty_like(order).index_copy_(0, order, number + shifts.repeat_interleave(counts))
    inside = torch.minimum(begins[:-1, None] + column, begins[1:, None] - 1).clamp_min(0)
    return Rows(order[inside].flatten(), longest, counts, places, column >= counts[:, None])


@dataclass(frozen=True)
class TableEdges:
    """The edges of a graph: what layers make of them once."""

    src: Int64[Tensor, " edges"]
    dst: Int64[Tensor, " edges"]
    nodes: int
    rel_pos: Float[Tensor, "edges 3"]
    inputs: Float[Tensor, "edges scalars"]  # of radial networks

    @cached_property
    def by_source(self) -> Rows:
        return rows_of(self.src, self.nodes)

    @cached_property
    def by_destination(self) -> Rows:
        return rows_of(self.dst, self.nodes)

    @property
    def in_degrees(self) -> Int64[Tensor, " nodes"]:
        return self.by_destination.counts

    @cached_property
    def fits(self) -> bool:
        """Whether the tables are short."""
        longest = max(self.by_source.longest, self.by_destination.longest)
        return longest * self.nodes <= MOST_PADDING * len(self.src)

    @cached_property
    def radial_inputs(self) -> Float[Tensor, "rows scalars"]:
        return self.by_source.of(self.inputs)

    @cached_property
    def messages_of_destinations(self) -> Int64[Tensor, " rows"]:
        """The messages of each destination's edges."""
        return self.by_destination.of(self.by_source.places)

    @cached_property
    def destinations(self) -> Int64[Tensor, " rows"]:
        """The destination of each message, `nodes` of those that stand for no edge."""
        rows = self.by_source
        ends = rows.of(self.dst)
        return ends if rows.is_missing is None else ends.masked_fill(rows.is_missing.flatten(), self.nodes)

    @cached_property
    def terms(self) -> Float[Tensor, "rows terms"]:
        direction = F.normalize(self.by_source.of(self.rel_pos), dim=1)
        squares = direction[:, :, None] * direction[:, None]
        return torch.cat([torch.ones_like(direction[:, :1]), direction, squares.flatten(1)], 1)


@dataclass(frozen=True)
class Products:
    """What a group multiplies at the nodes, by degree in, component and frequency.

    Attributes:
        chosen: for each degree in the frequencies of the group that multiply it.
        table: the matrix from `TableEdges.terms` to those from these products to the group's output, which has
            `components`.
    """

    chosen: tuple[list[int], ...]
    table: Float[Tensor, "terms matrices"]
    components: int

    def parts(self, by_input: Float[Tensor, "channels_in frequencies _ mid"]) -> Sequence[Tensor]:
        """Returns the weights of each degree in."""
        if [number for chosen in self.chosen for number in chosen] == list(range(by_input.shape[1])):
            return by_input.split([len(chosen) for chosen in self.chosen], 1)
        return [by_input[:, chosen] for chosen in self.chosen]


@cache
@torch.inference_mode(False)
def products_of(group: Group, dtype: torch.dtype) -> Products:
    begin_out, outs = dict[int, int](), 0
    for degree in group.outputs:
        begin_out[degree], outs = outs, outs + 2 * degree + 1
    numbers: dict[int, list[tuple[Pair, int, int]]] = {degree: [] for degree in group.inputs}
    total = 0
    for pair in group.pairs():
        numbers[pair[0]] += [(pair, j, total + j) for j in range(num_frequencies(pair))]
        total += num_frequencies(pair)
    columns = []
    for d_in, frequencies in numbers.items():
        for component in range(2 * d_in + 1):
            for pair, frequency, _ in frequencies:
                factor = 1.0 if group.is_scalar else coefficients(pair)[frequency]
                column = torch.zeros(TERMS, outs, dtype=torch.float64)
                part = column[:, begin_out[pair[1]] : begin_out[pair[1]] + 2 * pair[1] + 1]
                part.copy_(factor * form(pair, frequency, component))
                columns.append(column)
    chosen = tuple([number for *_, number in frequencies] for frequencies in numbers.values())
    return Products(chosen, torch.stack(columns, 2).flatten(1).to(dtype), outs)


def form(pair: Pair, frequency: int, component: int) -> Float[Tensor, "terms out"]:
    """Returns the output of this component in for each term: 1, r, the cross product with r, or 3 r r^T - r^T r."""
    outs = 2 * pair[1] + 1
    table = torch.zeros(TERMS, outs, dtype=torch.float64)
    squares = table[4:].view(3, 3, outs)
    if pair == (0, 0):
        table[0] = 1
    elif pair == (1, 0):
        table[1 + component, 0] = 1
    elif pair == (0, 1):
        table[1:4] = torch.eye(3)
    elif frequency == 0:
        table[0, component] = 1
    elif frequency == 1:
        unit = torch.eye(3, dtype=torch.float64)
        table[1:4] = torch.linalg.cross(unit, unit[component].expand(3, 3))
    else:
        for axis in range(3):
            squares[axis, component, axis] += 3
            squares[axis, axis, component] -= 1
    return table


@dataclass(frozen=True)
class TableConvolution:
    """A convolution over such edges."""

    convolution: Any  # ConvSE3
    heads: int

    def __call__(
        self, features: Float[Tensor, "nodes features"], edges: TableEdges, edge_features: None = None
    ) -> Float[Tensor, "rows columns"]:
        """Returns the messages, of the flat fiber of all outputs, whose channels of a degree are theirs in order."""
        fiber, by_components = self.convolution.fiber_nodes, dict[int, Tensor]()
        for radial in self.convolution.radial_groups():
            layout = products_of(radial.group, features.dtype)
            by_input = radial.by_input  # [channels in, frequencies, channels out, mid]
            channels, mid = by_input.shape[2:]
            at_nodes = [
                (fiber.part(features, degree) @ matrix.flatten(1)).view(edges.nodes, -1, mid)
                for degree, matrix in zip(radial.group.inputs, layout.parts(by_input), strict=True)
            ]
            hidden = radial.hidden(edges.radial_inputs).view(edges.nodes, -1, mid)
            products = torch.bmm(hidden, joined(at_nodes).transpose(1, 2)).view(len(edges.terms), -1, channels)
            basis = (edges.terms @ layout.table).view(len(products), layout.components, -1)
            before = by_components.get(layout.components)
            message = torch.bmm(basis, products) if before is None else torch.baddbmm(before, basis, products)
            by_components[layout.components] = message
        return joined([by_components[components].flatten(1) for components in sorted(by_components)])

    def sum_incoming(self, messages: Float[Tensor, "rows columns"], edges: TableEdges) -> Tensor:
        """Returns the sums of messages over incoming edges, [nodes, columns]."""
        if edges.by_source.is_missing is None:
            return messages.new_zeros(edges.nodes, messages.shape[1]).index_add(0, edges.destinations, messages)
        sums = messages.new_zeros(edges.nodes + 1, messages.shape[1])
        return sums.index_add(0, edges.destinations, messages)[: edges.nodes]

    def attend(
        self, messages: Float[Tensor, "rows columns"], query: Float[Tensor, "nodes keys"], edges: TableEdges
    ) -> Float[Tensor, "nodes values"]:
        """Computes attention over incoming edges (`attention.attend`), whose messages are values and keys."""
        rows, (_, key) = edges.by_destination, self.convolution.outputs
        incoming = messages.index_select(0, edges.messages_of_destinations)
        values, logits = list[Tensor](), None
        for degrees, part in self.by_degrees(incoming.view(edges.nodes, rows.longest, -1)):
            count = key.channels(degrees[0])
            value, keys = part.split([part.shape[3] - count, count], 3)
            values.append(value.unflatten(3, (self.heads, -1)))
            if count:
                asked = joined([key.part(query, degree) for degree in degrees])[:, None] * key.num_features**-0.5
                products = (keys * asked).unflatten(3, (self.heads, -1)).sum((2, 4))
                logits = products if logits is None else logits + products
        assert logits is not None
        if rows.is_missing is not None:
            logits = logits.masked_fill(rows.is_missing[:, :, None], torch.finfo(logits.dtype).min)
        weights = logits.softmax(1)
        if rows.is_missing is not None:  # of nodes without edges all
            weights = weights.masked_fill(rows.is_missing[:, :, None], 0)
        return joined([(weights[:, :, None, :, None] * value).sum(1).flatten(1) for value in values])

    def by_degrees(
        self, messages: Float[Tensor, "nodes longest columns"]
    ) -> Iterator[tuple[tuple[int, ...], Float[Tensor, "nodes longest components channels"]]]:
        """Yields degrees and their messages; all at once if each output has equal channels of them."""
        value, key = self.convolution.outputs
        if value.degrees == key.degrees and value.equal_channels and key.equal_channels:
            yield value.degrees, messages.unflatten(2, (-1, value.equal_channels + key.equal_channels))
            return
        begin = 0
        for degree in value:
            components, channels = 2 * degree + 1, value.channels(degree) + key.channels(degree)
            yield (degree,), messages.narrow(2, begin, components * channels).unflatten(2, (components, channels))
            begin += components * channels


def joined(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts, 1) if len(parts) > 1 else parts[0]


def plan_of(convolution: Any, heads: int, features: Tensor, edges: DenseEdges | TableEdges) -> Any:
    """Returns what computes a convolution over such edges, with `heads` for attention; None where nothing can."""
    if isinstance(edges, DenseEdges):
        return dense_convolution(convolution, heads, features)
    if convolution.edge_fiber:
        return None
    _ = edges.radial_inputs  # here, because a checkpoint must save the same tensors when it recomputes
    return TableConvolution(convolution, heads)
