"""Radial networks: from an edge's scalars to the weights of its message, and the pairs of degrees that share one."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from src.models.se3_transformer.basis import Pair, num_frequencies
from src.models.se3_transformer.fiber import Fiber

Sharing = Literal["full", "pairwise"]


@dataclass(frozen=True)
class Group:
    """Pairs of degrees that share one radial network: all of `inputs` with all of `outputs`."""

    inputs: Fiber
    outputs: Fiber

    def pairs(self) -> Iterator[Pair]:
        """Yields (degree in, degree out), the output's changing slowest."""
        for d_out in self.outputs:
            for d_in in self.inputs:
                yield d_in, d_out

    def size(self, pair: Pair) -> int:
        """Returns the weights of a pair per frequency: channels in times channels out."""
        return self.inputs.channels(pair[0]) * self.outputs.channels(pair[1])

    @property
    def num_weights(self) -> int:
        """The number of radial weights of one edge."""
        return sum(num_frequencies(pair) * self.size(pair) for pair in self.pairs())

    @property
    def is_scalar(self) -> bool:
        """Whether the only pair is (0, 0); the original then replaces the constant basis by 1."""
        return list(self.pairs()) == [(0, 0)]


def groups_of(fiber_in: Fiber, fiber_out: Fiber, max_degree: int, sharing: Sharing) -> list[Group]:
    """Returns the groups of pairs that share a radial network.

    pairwise: one group per pair. full: a fiber is complete if it has equal channels in every degree up to `max_degree`.
    If both are complete, one group; if only the input is, one per output degree; if only the output is, one per input
    degree; else one per pair.
    """

    def complete(fiber: Fiber) -> bool:
        return fiber.equal_channels is not None and fiber.degrees == tuple(range(max_degree + 1))

    single_in = [Fiber({degree: count}) for degree, count in fiber_in.items()]
    single_out = [Fiber({degree: count}) for degree, count in fiber_out.items()]
    if sharing == "full" and complete(fiber_in) and complete(fiber_out):
        return [Group(fiber_in, fiber_out)]
    if sharing == "full" and complete(fiber_in):
        return [Group(fiber_in, one) for one in single_out]
    if sharing == "full" and complete(fiber_out):
        return [Group(one, fiber_out) for one in single_in]
    return [Group(i, o) for o in single_out for i in single_in]


class HiddenLayers(nn.Sequential):
    """The hidden layers of a radial network: Linear, LayerNorm with `use_layer_norm`, and ReLU, twice."""

    def __init__(self, inputs: int, mid_channels: int, use_layer_norm: bool) -> None:
        layers: list[nn.Module] = []
        for width in (inputs, mid_channels):
            layers += [nn.Linear(width, mid_channels)]
            layers += [nn.LayerNorm(mid_channels)] if use_layer_norm else []
            layers += [nn.ReLU()]
        super().__init__(*layers)


class RadialGroup(nn.Module):
    """The radial network of a group: hidden layers and a last matrix.

    `hidden` maps an edge's scalars to [edges, mid_channels]. `weight` is [rows, mid_channels]; rows are ordered by pair
    of the group, then J ascending, channel in, channel out. An edge's radial weights are weight @ hidden.
    """

    def __init__(self, group: Group, edge_features: int, mid_channels: int, use_layer_norm: bool) -> None:
        super().__init__()
        self.group = group
        self.hidden = HiddenLayers(edge_features, mid_channels, use_layer_norm)
        bound = mid_channels**-0.5  # as in torch's Linear, which the original uses here
        self.weight = nn.Parameter(torch.empty(group.num_weights, mid_channels).uniform_(-bound, bound))

    def hidden_layers(self) -> list[nn.Module]:
        """Returns the layers of `hidden`."""
        return list(self.hidden)

    def radial_weights(self, hidden: Float[Tensor, "edges mid"]) -> dict[Pair, Float[Tensor, "edges _ _ _"]]:
        """Returns for each pair the weights [edges, frequencies, channels in, channels out] of every edge."""
        pairs = list(self.group.pairs())
        sizes = [num_frequencies(pair) * self.group.size(pair) for pair in pairs]
        parts = nn.functional.linear(hidden, self.weight).split(sizes, dim=1)
        return {
            pair: part.unflatten(1, (num_frequencies(pair), self.group.inputs.channels(pair[0]), -1))
            for pair, part in zip(pairs, parts, strict=True)
        }
