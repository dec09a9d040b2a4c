"""Tensor-field convolution (arXiv:1802.08219), with radial networks shared by `radial.Group`.

The message along an edge is W(r) f_source; for each pair of degrees, W(r) = sum_J R_J(|r|, edge scalars) K_J(r). The
`reference` execution computes this formula with an explicit basis K. The `fast` one computes the same function of the
same parameters in edge-aligned frames, where K is sparse.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from src.batches.molecular_graphs import Graph
from src.gpu.triton_helpers import working_dtype
from src.models.se3_transformer.basis import Pair, pair_basis
from src.models.se3_transformer.fiber import Fiber
from src.models.se3_transformer.frames import EdgeLayout, edge_rotations, wigner
from src.models.se3_transformer.kernels import dispatch
from src.models.se3_transformer.plan import Plan
from src.models.se3_transformer.radial import RadialGroup, Sharing, groups_of

Execution = Literal["fast", "reference"]
EdgeFeatures = Mapping[int, Float[Tensor, "edges _ _"]] | None


@dataclass(frozen=True)
class Geometry:
    """Edge quantities that all convolutions use, computed once per forward pass.

    Attributes:
        radial_inputs: edge scalars, with the length (in the unit of the positions) last.
        basis: angular basis of the reference execution; None for the fast one.
        wigner: Wigner matrices of the fast execution, packed as in `frames.wigner`; None for the reference.
    """

    graph: Graph
    radial_inputs: Float[Tensor, "edges scalars"]
    basis: dict[Pair, Tensor] | None
    wigner: Float[Tensor, "edges packed"] | None

    @classmethod
    def of(
        cls,
        graph: Graph,
        edge_scalars: Float[Tensor, "edges scalars"],
        max_degree: int,
        execution: Execution,
    ) -> "Geometry":
        """Computes it in the positions' dtype, or autocast's. The fast execution gives no gradient to the positions."""
        rel_pos = graph.positions[graph.dst] - graph.positions[graph.src]
        radial_inputs = torch.cat([edge_scalars.to(rel_pos.dtype), rel_pos.norm(dim=1, keepdim=True)], 1)
        dtype = working_dtype(rel_pos)
        if execution == "reference":
            degrees = range(max_degree + 1)
            pairs = [(d_in, d_out) for d_out in degrees for d_in in degrees]
            basis = {pair: value.to(dtype) for pair, value in pair_basis(rel_pos, pairs).items()}
            return cls(graph, radial_inputs, basis, None)
        with torch.no_grad(), torch.autocast(rel_pos.device.type, enabled=False):
            packed = wigner(edge_rotations(rel_pos), max_degree)
        return cls(graph, radial_inputs, None, packed.to(dtype))


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
        groups = groups_of(self.fiber_in, fiber_out, max_degree, sharing)
        self.groups = nn.ModuleList(
            RadialGroup(group, edge_features + 1, mid_channels, use_layer_norm) for group in groups
        )
        self.source = EdgeLayout(self.fiber_in, min(self.fiber_in.max_degree, fiber_out.max_degree))
        self.layouts = tuple(EdgeLayout(fiber, self.fiber_in.max_degree) for fiber in self.outputs)
        self.plans = [Plan(group, self.source, self.layouts) for group in groups]
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
            return self._summed(features, geometry, edge_features) + self_interaction
        self_interaction = self._self_interaction(features)[graph.dst] if self.to_self else 0
        return self._messages(features, geometry, edge_features) + self_interaction

    def _summed(self, features: Tensor, geometry: Geometry, edge_features: EdgeFeatures) -> Tensor:
        graph = geometry.graph
        if geometry.wigner is None:
            return dispatch.sum_incoming(self._reference(features, geometry, edge_features), graph)
        messages = self.edge_messages(features, geometry, edge_features)
        return dispatch.sum_from_edges(messages, geometry.wigner, graph, self.layouts[0])

    def _messages(self, features: Tensor, geometry: Geometry, edge_features: EdgeFeatures) -> Tensor:
        if geometry.wigner is None:
            return self._reference(features, geometry, edge_features)
        messages = self.edge_messages(features, geometry, edge_features)
        parts = messages.split([layout.num_features for layout in self.layouts], 1)
        rotated = [layout.from_edge(part, geometry.wigner) for layout, part in zip(self.layouts, parts, strict=True)]
        return torch.cat(rotated, 1)

    def radial_groups(self) -> Iterator[RadialGroup]:
        for group in self.groups:
            assert isinstance(group, RadialGroup)
            yield group

    def edge_messages(
        self,
        features: Float[Tensor, "nodes features"],
        geometry: Geometry,
        edge_features: EdgeFeatures = None,
    ) -> Float[Tensor, "edges columns"]:
        """Returns the fast execution's messages in the edge frames: the columns of `self.layouts`, concatenated."""
        assert geometry.wigner is not None
        features = features.to(working_dtype(features))
        if self.edge_fiber:
            joined = self._joined(features[geometry.graph.src], edge_features)
            columns = self.source.to_edge(joined, geometry.wigner)
        else:
            columns = dispatch.gather_to_edges(features, geometry.wigner, geometry.graph, self.source)
        messages = None
        for radial, plan in zip(self.radial_groups(), self.plans, strict=True):
            hidden = dispatch.radial_hidden(geometry.radial_inputs, radial.hidden)
            with torch.autocast(hidden.device.type, enabled=False):
                mixed = plan.mix(radial.weight)
                part = dispatch.contract(hidden, columns, mixed, plan)
            messages = part if messages is None else messages + part
        assert messages is not None
        return messages

    def _joined(
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

    def _reference(
        self, features: Tensor, geometry: Geometry, edge_features: EdgeFeatures
    ) -> Float[Tensor, "edges outputs"]:
        assert geometry.basis is not None
        joined = self._joined(features[geometry.graph.src], edge_features)
        sums: dict[int, Tensor] = {}
        for radial in self.radial_groups():
            by_pair = radial.radial_weights(radial.hidden(geometry.radial_inputs))
            for (d_in, d_out), weights in by_pair.items():
                part = self.fiber_in.part(joined, d_in).to(weights.dtype)
                if radial.group.is_scalar:
                    message = torch.einsum("eli,efio->elo", part, weights)
                else:
                    angular = torch.einsum("eli,elfk->efik", part, geometry.basis[d_in, d_out])
                    message = torch.einsum("efik,efio->eko", angular, weights)
                sums[d_out] = sums[d_out] + message if d_out in sums else message
        split: list[Tensor] = []
        begin = dict.fromkeys(self.fiber_out, 0)
        for fiber in self.outputs:
            for degree, count in fiber.items():
                split.append(sums[degree].narrow(2, begin[degree], count).flatten(1))
                begin[degree] += count
        return torch.cat(split, 1)

    def _self_interaction(self, features: Float[Tensor, "nodes features"]) -> Float[Tensor, "nodes outputs"]:
        parts = []
        for degree, count in self.fiber_out.items():
            if str(degree) in self.to_self:
                part = nn.functional.linear(self.fiber_nodes.part(features, degree), self.to_self[str(degree)])
                parts.append(part.flatten(1))
            else:
                parts.append(features.new_zeros(len(features), count * (2 * degree + 1)))
        return torch.cat(parts, 1)
