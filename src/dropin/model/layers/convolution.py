"""ConvSE3 with NVIDIA's parameters: which pairs of degrees share a radial network is its fuse level.

The rows of a radial network's last matrix are (channel out, channel in, frequency) there; `RadialNetwork.weight` has
them in our order.
"""

import math
from collections.abc import Iterator
from enum import Enum
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from src.dropin.model.edges import ByName, Edges, by_name, edges_of, flat
from src.dropin.model.fiber import Fiber, plain
from src.dropin.model.tables import plan_of
from src.errors import UserError
from src.models.se3_transformer.attention import apply_convolution
from src.models.se3_transformer.basis import num_frequencies
from src.models.se3_transformer.conv import Geometry
from src.models.se3_transformer.fast.conv import FastConvSE3
from src.models.se3_transformer.fiber import Fiber as PlainFiber
from src.models.se3_transformer.radial import Group, RadialGroup
from src.models.se3_transformer.signs import NVIDIA_E3NN, Y_0, Triple, negated_symbols, symbol_signs


class ConvSE3FuseLevel(Enum):
    """The most that pairs of degrees share a radial network: all, those of one degree in or out, none."""

    FULL = 2
    PARTIAL = 1
    NONE = 0


class RadialProfile(nn.Module):
    """From the scalars of an edge to its radial weights."""

    def __init__(
        self,
        num_freq: int,
        channels_in: int,
        channels_out: int,
        edge_dim: int = 1,
        mid_dim: int = 32,
        use_layer_norm: bool = False,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width in (edge_dim, mid_dim):
            layers += [nn.Linear(width, mid_dim), *([nn.LayerNorm(mid_dim)] if use_layer_norm else []), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.Linear(mid_dim, num_freq * channels_in * channels_out, bias=False))

    def forward(self, features: Tensor) -> Tensor:
        return self.net(features)


class RadialNetwork(RadialGroup):
    """The radial network of a group of pairs of degrees.

    Args:
        is_fused: whether NVIDIA's code multiplies the pair (0, 0) by its harmonic, which it does but in single pairs.
    """

    def __init__(
        self, group: Group, edge_dim: int, use_layer_norm: bool, is_fused: bool, negated: frozenset[Triple]
    ) -> None:
        nn.Module.__init__(self)
        self.group = group
        signs = [sign for pair in group.pairs() for sign in symbol_signs(pair, negated)]
        channels = next(iter(group.inputs.items()))[1], next(iter(group.outputs.items()))[1]
        self.shape = channels[1], channels[0], sum(num_frequencies(pair) for pair in group.pairs())
        self.radial_func = RadialProfile(self.shape[2], *channels, edge_dim, use_layer_norm=use_layer_norm)
        self.factors = (Y_0,) if group.is_scalar and is_fused else tuple(signs)

    def hidden(self, inputs: Float[Tensor, "edges scalars"]) -> Float[Tensor, "edges mid"]:  # type: ignore[override]
        for layer in self.hidden_layers():
            inputs = layer(inputs)
        return inputs

    def hidden_layers(self) -> list[nn.Module]:
        return list(self.radial_func.net)[:-1]

    @property
    def by_input(self) -> Float[Tensor, "channels_in frequencies channels_out mid"]:
        last = self.radial_func.net[-1].weight
        assert isinstance(last, Tensor)
        weights = last.unflatten(0, self.shape).permute(1, 2, 0, 3)
        if set(self.factors) != {1.0}:
            weights = weights * factors_on(self.factors, last.device, last.dtype)[:, None, None]
        return weights

    @property
    def weight(self) -> Float[Tensor, "rows mid"]:  # type: ignore[override]
        return self.by_input.transpose(0, 1).flatten(0, 2)


@cache
@torch.inference_mode(False)
def factors_on(factors: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Returns the factors on a device; cached, because a CUDA graph cannot capture the copy."""
    return torch.tensor(factors, device=device, dtype=dtype)


class ConvSE3(FastConvSE3):
    """A tensor-field convolution with NVIDIA's parameters.

    Args:
        fiber_in, fiber_out: of the nodes' features and of the messages. fiber_edge: of the edges' without the length.
        pool: sum the messages of incoming edges; without `sum_over_edge` average them. Else return those of edges.
        self_interaction: adds to every message its destination's own features times a matrix for each degree.
        max_degree: the highest degree of the network. fuse_level: see ConvSE3FuseLevel.
        low_memory: recompute in the backward pass. e3nn: the version whose signs the weights belong to.
    """

    def __init__(
        self,
        fiber_in: Fiber,
        fiber_out: Fiber,
        fiber_edge: Fiber,
        pool: bool = True,
        use_layer_norm: bool = False,
        self_interaction: bool = False,
        sum_over_edge: bool = True,
        max_degree: int = 4,
        fuse_level: ConvSE3FuseLevel = ConvSE3FuseLevel.FULL,
        allow_fused_output: bool = False,
        low_memory: bool = False,
        *,
        e3nn: str = NVIDIA_E3NN,
        split: tuple[Fiber, ...] | None = None,
    ) -> None:
        nn.Module.__init__(self)
        if allow_fused_output:
            raise UserError("allow_fused_output=True is not supported: outputs are dictionaries by degree")
        self.pool, self.sum_over_edge, self.low_memory = pool, sum_over_edge, low_memory
        self.self_interaction, self.max_degree = self_interaction, max_degree
        self.negated = negated_symbols(e3nn, max_degree)
        self.fiber_nodes, self.fiber_out = plain(fiber_in), plain(fiber_out)
        self.edge_fiber = plain(Fiber({degree: fiber_edge[degree] for degree in fiber_in.degrees if degree}))
        joined = Fiber({degree: count + fiber_edge[degree] * (degree > 0) for degree, count in fiber_in})
        self.fiber_in = plain(joined)
        self.outputs = tuple(plain(fiber) for fiber in split or (fiber_out,))
        arguments: dict[str, Any] = {
            "edge_dim": fiber_edge[0] + 1,
            "use_layer_norm": use_layer_norm,
            "negated": self.negated,
        }
        degrees = tuple(range(max_degree + 1))
        whole_in, whole_out = (f.equal_channels and f.degrees == degrees for f in (self.fiber_in, self.fiber_out))
        # In the order of NVIDIA's fibers, which is that of the random numbers.
        if fuse_level is ConvSE3FuseLevel.FULL and whole_in and whole_out:
            self.used_fuse_level = ConvSE3FuseLevel.FULL
            self.conv = RadialNetwork(Group(self.fiber_in, self.fiber_out), is_fused=True, **arguments)
        elif fuse_level is not ConvSE3FuseLevel.NONE and whole_in:
            self.used_fuse_level = ConvSE3FuseLevel.PARTIAL
            groups = {str(d): Group(self.fiber_in, PlainFiber({d: count})) for d, count in fiber_out}
            self.conv_out = nn.ModuleDict({d: RadialNetwork(g, is_fused=True, **arguments) for d, g in groups.items()})
        elif fuse_level is not ConvSE3FuseLevel.NONE and whole_out:
            self.used_fuse_level = ConvSE3FuseLevel.PARTIAL
            groups = {str(d): Group(PlainFiber({d: joined[d]}), self.fiber_out) for d, _ in fiber_in}
            self.conv_in = nn.ModuleDict({d: RadialNetwork(g, is_fused=True, **arguments) for d, g in groups.items()})
        else:
            self.used_fuse_level = ConvSE3FuseLevel.NONE
            self.conv = nn.ModuleDict()
            for d_in, _ in fiber_in:
                for d_out, count in fiber_out:
                    group = Group(PlainFiber({d_in: joined[d_in]}), PlainFiber({d_out: count}))
                    self.conv[f"{d_in},{d_out}"] = RadialNetwork(group, is_fused=False, **arguments)
        if self_interaction:
            self.to_kernel_self = nn.ParameterDict()
            for degree, count in fiber_out:
                if fiber_in[degree]:
                    drawn = torch.randn(count, fiber_in[degree]) / math.sqrt(fiber_in[degree])
                    self.to_kernel_self[str(degree)] = nn.Parameter(drawn)

    @property
    def to_self(self) -> nn.ParameterDict | dict[str, Tensor]:  # type: ignore[override]
        return self.to_kernel_self if self.self_interaction else {}

    def radial_groups(self) -> Iterator[RadialGroup]:
        for name in ("conv", "conv_out", "conv_in"):
            networks = getattr(self, name, None)
            if networks is not None:
                yield from [networks] if isinstance(networks, RadialNetwork) else networks.values()

    def forward(
        self, node_feats: ByName | Tensor, edge_feats: Any, graph: Any = None, basis: ByName | None = None
    ) -> Any:
        """Returns features by name: of nodes, or with pool=False of edges in the graph's order.

        `edge_feats` have the length of each edge as the last of degree 0. Attention blocks give flat features with
        their geometry, and get the flat messages of sorted edges.
        """
        if isinstance(node_feats, Tensor):
            return super().forward(node_feats, edge_feats, graph)
        dtype = next(self.parameters()).dtype
        edges = graph
        if not isinstance(edges, Edges):
            edges = edges_of(graph, edge_feats, self.max_degree, dtype, self.negated, basis)
        features = flat(node_feats, self.fiber_nodes, dtype, edges.num_nodes)
        if self.pool and (dense := edges.dense) and (plan := plan_of(self, 0, features, dense)):
            out = plan.sum_incoming(apply_convolution(plan, features, dense, None, self.low_memory), dense)
            degrees = dense.in_degrees[:, None]
            if self.to_self:
                out = out + degrees * self._self_interaction(features)
            return by_name(out if self.sum_over_edge else out / degrees.clamp_min(1), self.fiber_out, graph)
        out = apply_convolution(super().forward, features, edges.geometry, edges.features, self.low_memory)
        if not self.pool:
            out = torch.empty_like(out).index_copy(0, edges.order, out)
            widths = [fiber.num_features for fiber in self.outputs]
            parts = [by_name(part, fiber) for fiber, part in zip(self.outputs, out.split(widths, 1), strict=True)]
            return {str(d): torch.cat([part[str(d)] for part in parts if str(d) in part], 1) for d in self.fiber_out}
        return by_name(out if self.sum_over_edge else averaged(out, edges.geometry), self.fiber_out, graph)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        inside = [key.removeprefix(prefix) for key in state_dict if key.startswith(prefix)]
        theirs = {key.partition(".radial_func.")[0] for key in inside if ".radial_func." in key}
        ours = {name.removesuffix(".radial_func") for name, _ in self.named_modules() if name.endswith(".radial_func")}
        if theirs and theirs != ours:
            args[-1].append(
                f"{prefix[:-1]}: the weights are of another layout: radial networks {', '.join(sorted(theirs))}, in "
                f"this network {', '.join(sorted(ours))}; give its tensor_cores, low_memory and layout"
            )


def averaged(sums: Float[Tensor, "nodes features"], geometry: Geometry) -> Float[Tensor, "nodes features"]:
    """Returns sums over incoming edges divided by the number of these edges; 0 where there are none."""
    return sums / geometry.graph.dst_ptr.diff().clamp_min(1)[:, None]
