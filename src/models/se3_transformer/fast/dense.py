"""Convolutions and attention of degrees 0 and 1 on dense graphs, where the channels in are multiplied at the nodes.

With few neighbours a message is cheapest where its edge's radial weights are made (`contraction`). With dozens of edges
for each node, as in a protein, the product of the source's features and the last radial matrix is made once a node, and
an edge only multiplies it by its hidden layer: with 32 channels in and 8 out 17 times fewer products. No frames are
needed, and edges of length 0 are ordinary. Edges stay in the caller's order.
"""

from dataclasses import dataclass
from functools import cache, cached_property
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from src.gpu.triton_helpers import can_take, package, power_of_2, working_dtype
from src.models.se3_transformer.basis import Pair, pair_basis
from src.models.se3_transformer.conv import ConvSE3
from src.models.se3_transformer.fiber import Fiber
from src.models.se3_transformer.radial import Group

PAIRS: tuple[Pair, ...] = ((0, 0), (1, 0), (0, 1), (1, 1))
MAX_COLUMNS = 2048  # of a message
LEAST_EDGES = 8  # for each node; with fewer, products at the edges are cheaper


@dataclass(frozen=True)
class DenseEdges:
    """Edges in the caller's order, with those of each source and each destination."""

    src: Int[Tensor, " edges"]
    dst: Int[Tensor, " edges"]
    nodes: int
    rel_pos: Float[Tensor, "edges 3"]
    scalars: Float[Tensor, "edges _"]
    lengths: Float[Tensor, " edges"]  # the last input of radial networks

    @cached_property
    def by_source(self) -> tuple[Tensor, Tensor]:
        """The edges ordered by source, and where each source's begin."""
        return ordered(self.src, self.nodes)

    @cached_property
    def by_destination(self) -> tuple[Tensor, Tensor]:
        return ordered(self.dst, self.nodes)

    @property
    def in_degrees(self) -> Int[Tensor, " nodes"]:
        return self.by_destination[1].diff()


@torch.inference_mode(False)
def ordered(ends: Int[Tensor, " edges"], nodes: int) -> tuple[Tensor, Tensor]:
    small = torch.int16 if nodes < 2**15 else torch.int32  # a radix sort takes as long as its keys are wide
    keys, order = ends.to(small).sort(stable=True)
    return order, torch.searchsorted(keys, torch.arange(nodes + 1, device=ends.device, dtype=small))


@cache
def coefficients(pair: Pair) -> tuple[float, ...]:
    """Returns the factor of each frequency of a pair: of 1, r, the cross product with r, and 3 r r^T - 1."""
    table = pair_basis(torch.tensor([[0.6, 0.0, 0.8]], dtype=torch.float64), [pair])[pair][0].transpose(0, 1)
    if pair == (0, 0):
        return (table[0, 0, 0].item(),)
    if pair == (1, 0):
        return (table[0, 2, 0].item() / 0.8,)
    if pair == (0, 1):
        return (table[0, 0, 2].item() / 0.8,)
    # [frequency, in, out]; r x (0, 1, 0) = (-0.8, 0, 0.6)
    return table[0, 0, 0].item(), table[1, 1, 2].item() / 0.6, -table[2, 1, 1].item()


@dataclass(frozen=True)
class DensePlan:
    """A convolution's groups, and the columns of its messages: of outputs one after the other, by head with `heads`.

    Attributes:
        outputs: fibers that add up to the convolution's, whose channels of a degree are assigned to them in order.
        heads: of attention, whose columns are padded to powers of 2; 0 for those of a flat fiber.
    """

    groups: tuple[Group, ...]
    outputs: tuple[Fiber, ...]
    heads: int

    @cached_property
    def group_of(self) -> dict[Pair, int]:
        return {pair: number for number, group in enumerate(self.groups) for pair in group.pairs()}

    def channels(self, degree: int) -> int:
        return sum(fiber.channels(degree) for fiber in self.outputs)

    def width(self, fiber: Fiber) -> int:
        """Returns the columns of an output, of one head if there are heads."""
        return power_of_2(fiber.num_features // self.heads) if self.heads else fiber.num_features

    @cached_property
    def stride(self) -> int:
        return sum(self.width(fiber) * max(self.heads, 1) for fiber in self.outputs)

    def column(self, fiber: Fiber, degree: int, channel: int, component: int) -> int:
        if not self.heads:
            before = fiber.channels(0) if degree else 0
            return before + component * fiber.channels(degree) + channel
        per_head = fiber.channels(degree) // self.heads
        before = fiber.channels(0) // self.heads if degree else 0
        return channel // per_head * self.width(fiber) + before + component * per_head + channel % per_head

    @cached_property
    def columns(self) -> tuple[tuple[int, ...], ...]:
        """The columns of each degree's output channels, by channel and component."""
        return tuple(tuple(self.columns_of(degree)) for degree in (0, 1))

    def columns_of(self, degree: int) -> list[int]:
        columns, begin = list[int](), 0
        for fiber in self.outputs:
            columns += [
                begin + self.column(fiber, degree, channel, component)
                for channel in range(fiber.channels(degree))
                for component in range(2 * degree + 1)
            ]
            begin += self.width(fiber) * max(self.heads, 1)
        return columns

    @cached_property
    def features(self) -> tuple[tuple[int, ...], ...]:
        """For each of an output's columns the feature of its flat fiber, -1 for padding."""
        return tuple(tuple(self.features_of(output)) for output in range(len(self.outputs)))

    def features_of(self, output: int) -> list[int]:
        fiber = self.outputs[output]
        features = [-1] * (self.width(fiber) * self.heads)
        for degree, count in fiber.items():
            for channel in range(count):
                for component in range(2 * degree + 1):
                    feature = (fiber.channels(0) if degree else 0) + component * count + channel
                    features[self.column(fiber, degree, channel, component)] = feature
        return features

    @cached_property
    def constants(self) -> dict[str, Any]:
        """Compile-time arguments of the kernels."""
        groups = {f"G{pair[0]}{pair[1]}": self.group_of.get(pair, -1) for pair in PAIRS}
        return {**groups, "OUT0": self.channels(0), "OUT1": self.channels(1)}

    @cached_property
    def factors(self) -> list[float]:
        scalar = [group.is_scalar for group in self.groups]
        is_one = (0, 0) in self.group_of and scalar[self.group_of[0, 0]]
        by_pair = {pair: coefficients(pair) for pair in PAIRS} | ({(0, 0): (1.0,)} if is_one else {})
        return [factor for pair in PAIRS for factor in by_pair[pair]]

    @cached_property
    def is_supported(self) -> bool:
        """Whether the kernels take it."""
        degrees = {degree for group in self.groups for fiber in (group.inputs, group.outputs) for degree in fiber}
        if not degrees <= {0, 1} or self.stride > MAX_COLUMNS:
            return False
        if not self.heads:
            return True
        divides = all(count % self.heads == 0 for fiber in self.outputs for _, count in fiber.items())
        return divides and power_of_2(self.heads) == self.heads


@dataclass(frozen=True)
class DenseConvolution:
    """What the kernels compute of a convolution whose `DensePlan` they take."""

    convolution: ConvSE3
    plan: DensePlan
    kernels: ModuleType  # `two_degrees`
    networks: ModuleType  # `edge_networks`

    def __call__(
        self, features: Float[Tensor, "nodes features"], edges: DenseEdges, edge_features: None = None
    ) -> Float[Tensor, "edges columns"]:
        """Returns the messages in the plan's columns."""
        dtype, fiber = working_dtype(features), self.convolution.fiber_nodes
        radials = list(self.convolution.radial_groups())
        layers = [radial.hidden_layers() for radial in radials]
        hidden = self.networks.hidden(edges.scalars, edges.lengths, layers, dtype)
        by_degree = {degree: fiber.part(features, degree).to(dtype) for degree in fiber}
        return self.kernels.messages(hidden, edges, self.plan, by_degree, [radial.weight for radial in radials])

    def sum_incoming(self, messages: Float[Tensor, "edges columns"], edges: DenseEdges) -> Tensor:
        """Returns the sums of messages over incoming edges, [nodes, fiber_out]."""
        return self.kernels.sum_incoming(messages, edges)

    def attend(
        self, messages: Float[Tensor, "edges columns"], query: Float[Tensor, "nodes keys"], edges: DenseEdges
    ) -> Float[Tensor, "nodes values"]:
        """Computes attention over incoming edges, whose messages are values and keys."""
        return self.kernels.attend(messages, query, edges, self.plan)


def dense_convolution(convolution: ConvSE3, heads: int, tensor: Tensor) -> DenseConvolution | None:
    """Returns what the kernels compute in a convolution's place; None if they cannot, or not of such a tensor.

    Args:
        heads: of attention over its messages; 0 to sum them.
    """
    if convolution.edge_fiber or not can_take("conv", tensor):
        return None
    plans = convolution.__dict__.setdefault("dense_plans", {})
    if heads not in plans:
        plans[heads] = DensePlan(tuple(x.group for x in convolution.radial_groups()), convolution.outputs, heads)
    kernels, networks = (package(f"{__package__}.{name}") for name in ("two_degrees", "edge_networks"))
    if kernels is None or networks is None or not plans[heads].is_supported:
        return None
    if not networks.supported([radial.hidden_layers() for radial in convolution.radial_groups()]):
        return None
    return DenseConvolution(convolution, plans[heads], kernels, networks)
