"""Tensor-field convolution (arXiv:1802.08219), with radial networks shared by `radial.Group`.

The message along an edge is W(r) f_source; for each pair of degrees, W(r) = sum_J R_J(|r|, edge scalars) K_J(r), with
the radial network R and the angular basis K.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from src.batches.molecular_graphs import Graph
from src.gpu.triton_helpers import working_dtype
from src.models.se3_transformer.basis import Pair, pair_basis
from src.models.se3_transformer.fiber import Fiber
from src.models.se3_transformer.radial import RadialGroup, Sharing, groups_of

EdgeFeatures = Mapping[int, Float[Tensor, "edges _ _"]] | None
Value = TypeVar("Value")


@dataclass(frozen=True)
class Geometry:
    """Edge quantities of one forward pass.

    Attributes:
        rel_pos: positions of the destinations, relative to the sources.
        radial_inputs: edge scalars, with the length (in the unit of the positions) last.
        max_degree: the highest degree of the network.
        null: numbers of the edges of length 0, for a graph that is not `distinct`; None if they are not known.
        computed: results of `once`.
    """

    graph: Graph
    rel_pos: Float[Tensor, "edges 3"]
    radial_inputs: Float[Tensor, "edges scalars"]
    max_degree: int
    null: Int64[Tensor, " nulls"] | None = None
    computed: dict[Callable[..., Any], Any] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph, edge_scalars: Float[Tensor, "edges scalars"], max_degree: int) -> "Geometry":
        """Computes it in the positions' dtype."""
        rel_pos = graph.positions[graph.dst] - graph.positions[graph.src]
        radial_inputs = torch.cat([edge_scalars.to(rel_pos.dtype), rel_pos.norm(dim=1, keepdim=True)], 1)
        geometry = cls(graph, rel_pos, radial_inputs, max_degree)
        if rel_pos.requires_grad:
            geometry.once(angular_basis)  # here, because a checkpoint must save the same tensors when it recomputes
        return geometry

    def once(self, function: Callable[["Geometry"], Value]) -> Value:
        """Returns function(geometry), computed for the first convolution that needs it."""
        if function not in self.computed:
            self.computed[function] = function(self)
        return self.computed[function]


def angular_basis(geometry: Geometry) -> dict[Pair, Float[Tensor, "edges _ _ _"]]:
    """Returns the basis of all pairs of degrees, in the positions' dtype or autocast's."""
    degrees = range(geometry.max_degree + 1)
    pairs = [(d_in, d_out) for d_out in degrees for d_in in degrees]
    dtype = working_dtype(geometry.rel_pos)
    return {pair: basis.to(dtype) for pair, basis in pair_basis(geometry.rel_pos, pairs).items()}


class ConvSE3(nn.Module):
    """A tensor-field convolution.

    Args:
        fiber_in, fiber_out: fibers of the source nodes' features and of the messages.
        edge_features: number of edge scalars without the length.
        max_degree: the highest degree of the network. sharing: decides, with it, which pairs of degrees share a radial
            network (`radial.groups_of`).
        self_interaction: adds to every message its destination's own features times a matrix per degree.
        use_layer_norm: normalises the hidden layers of the radial networks.
        pool: sum the messages at their destination; otherwise return them.
        mid_channels: width of the radial networks.
        split: fibers that add up to `fiber_out`. The messages' columns are these flat fibers one after the other; each
            output degree's channels are assigned to them in this order.
        edge_fiber: edge features of degrees >= 1, concatenated after the source's channels of the same degree.
    """

    def __init__(
        self,
        fiber_in: Fiber,
        fiber_out: Fiber,
        edge_features: int,
        max_degree: int,
        *,
        sharing: Sharing = "full",
        self_interaction: bool = False,
        use_layer_norm: bool = False,
        pool: bool = True,
        mid_channels: int = 32,
        split: tuple[Fiber, ...] | None = None,
        edge_fiber: Fiber | None = None,
    ) -> None:
        super().__init__()
        self.fiber_nodes, self.fiber_out, self.pool = fiber_in, fiber_out, pool
        self.edge_fiber = edge_fiber or Fiber({})
        # The convolution's input: source features and edge features.
        self.fiber_in = Fiber({d: count + self.edge_fiber.channels(d) for d, count in fiber_in.items()})
        self.outputs = split or (fiber_out,)
        self.groups = nn.ModuleList(
            RadialGroup(group, edge_features + 1, mid_channels, use_layer_norm)
            for group in groups_of(self.fiber_in, fiber_out, max_degree, sharing)
        )
        self.to_self = nn.ParameterDict(
            {
                str(degree): nn.Parameter(
                    torch.randn(count, fiber_in.channels(degree)) / fiber_in.channels(degree) ** 0.5
                )
                for degree, count in fiber_out.items()
                if self_interaction and degree in fiber_in
            }
        )

    def forward(
        self,
        features: Float[Tensor, "nodes features"],
        geometry: Geometry,
        edge_features: EdgeFeatures = None,
    ) -> Float[Tensor, "_ outputs"]:
        """Returns sums over incoming edges [nodes, fiber_out], or with `pool=False` messages [edges, outputs].

        `edge_features` of degrees >= 1 are {degree: [edges, channels, 2 degree + 1]}.
        """
        graph = geometry.graph
        if self.pool:
            # Every incoming edge adds the node's own features once.
            self_interaction = graph.dst_ptr.diff()[:, None] * self._self_interaction(features) if self.to_self else 0
            return self.summed(features, geometry, edge_features) + self_interaction
        self_interaction = self._self_interaction(features)[graph.dst] if self.to_self else 0
        return self.messages(features, geometry, edge_features) + self_interaction

    def summed(
        self, features: Float[Tensor, "nodes features"], geometry: Geometry, edge_features: EdgeFeatures
    ) -> Float[Tensor, "nodes outputs"]:
        """Returns the sums of messages over incoming edges, without self-interaction."""
        return sum_incoming(self.messages(features, geometry, edge_features), geometry.graph)

    def messages(
        self, features: Float[Tensor, "nodes features"], geometry: Geometry, edge_features: EdgeFeatures
    ) -> Float[Tensor, "edges outputs"]:
        """Returns the messages without self-interaction."""
        basis = geometry.once(angular_basis)
        source = self.with_edge_features(features[geometry.graph.src], edge_features)
        sums: dict[int, Tensor] = {}
        for radial in self.radial_groups():
            by_pair = radial.radial_weights(radial.hidden(geometry.radial_inputs))
            for (d_in, d_out), weights in by_pair.items():
                part = self.fiber_in.part(source, d_in).to(weights.dtype)
                if radial.group.is_scalar:
                    message = torch.einsum("eki,eJio->eko", part, weights)
                else:
                    angular = torch.einsum("eki,ekJl->eJil", part, basis[d_in, d_out])
                    message = torch.einsum("eJil,eJio->elo", angular, weights)
                sums[d_out] = sums[d_out] + message if d_out in sums else message
        split: list[Tensor] = []
        begin = dict.fromkeys(self.fiber_out, 0)
        for fiber in self.outputs:
            for degree, count in fiber.items():
                split.append(sums[degree].narrow(2, begin[degree], count).flatten(1))
                begin[degree] += count
        return torch.cat(split, 1)

    def radial_groups(self) -> Iterator[RadialGroup]:
        for group in self.groups:
            assert isinstance(group, RadialGroup)
            yield group

    def with_edge_features(
        self, gathered: Float[Tensor, "edges features"], edge_features: EdgeFeatures
    ) -> Float[Tensor, "edges inputs"]:
        """Returns source features with the edge features' channels appended."""
        if not self.edge_fiber:
            return gathered
        assert edge_features is not None
        parts = []
        for degree in self.fiber_nodes:
            part = self.fiber_nodes.part(gathered, degree)
            if degree in self.edge_fiber:
                part = torch.cat([part, edge_features[degree].transpose(1, 2).to(part.dtype)], 2)
            parts.append(part.flatten(1))
        return torch.cat(parts, 1)

    def _self_interaction(self, features: Float[Tensor, "nodes features"]) -> Float[Tensor, "nodes outputs"]:
        parts = []
        for degree, count in self.fiber_out.items():
            if str(degree) in self.to_self:
                part = nn.functional.linear(self.fiber_nodes.part(features, degree), self.to_self[str(degree)])
                parts.append(part.flatten(1))
            else:
                parts.append(features.new_zeros(features.shape[0], count * (2 * degree + 1)))
        return torch.cat(parts, 1)


def sum_incoming(messages: Float[Tensor, "edges features"], graph: Graph) -> Float[Tensor, "nodes features"]:
    """Sums messages over incoming edges, without padded edges."""
    is_real = torch.arange(graph.dst.shape[0], device=graph.dst.device) < graph.dst_ptr[-1]
    sums = messages.new_zeros(graph.dst_ptr.shape[0] - 1, messages.shape[1])
    return sums.index_add(0, graph.dst, torch.where(is_real[:, None], messages, 0))
