"""AttentionBlockSE3 with NVIDIA's parameters."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from src.dropin.model.edges import ByName, Edges, by_name, edges_of, flat
from src.dropin.model.fiber import Fiber, plain
from src.dropin.model.layers.convolution import ConvSE3, ConvSE3FuseLevel
from src.dropin.model.layers.linear import LinearSE3
from src.dropin.model.tables import plan_of
from src.errors import UserError
from src.models.se3_transformer.attention import AttentionSE3, apply_convolution
from src.models.se3_transformer.fast.attention import FastAttentionBlockSE3
from src.models.se3_transformer.signs import NVIDIA_E3NN


class AttentionBlockSE3(FastAttentionBlockSE3):
    """Attention over incoming edges with values and keys of one convolution, and a projection with the input.

    Args:
        channels_div: values have the output's channels divided by this, a number or one for each degree by name.
        Others: see ConvSE3.
    """

    def __init__(
        self,
        fiber_in: Fiber,
        fiber_out: Fiber,
        fiber_edge: Fiber | None = None,
        num_heads: int = 4,
        channels_div: int | Mapping[str, int] = 2,
        use_layer_norm: bool = False,
        max_degree: int = 4,
        fuse_level: ConvSE3FuseLevel = ConvSE3FuseLevel.FULL,
        low_memory: bool = False,
        *,
        e3nn: str = NVIDIA_E3NN,
    ) -> None:
        nn.Module.__init__(self)
        fiber_edge = Fiber({}) if fiber_edge is None else fiber_edge
        divisors = channels_div if isinstance(channels_div, Mapping) else {}
        value = Fiber([(d, count // divisors.get(str(d), channels_div)) for d, count in fiber_out])  # type: ignore
        key = Fiber([element for element in value if fiber_in[element.degree]])
        if not key or min(value.channels) < 1:
            raise UserError(f"no attention from {fiber_in} to {fiber_out}: values would be {value} and keys {key}")
        self.low_memory, self.max_degree = low_memory, max_degree
        self.to_key_value = ConvSE3(
            fiber_in,
            value + key,
            fiber_edge,
            pool=False,
            use_layer_norm=use_layer_norm,
            max_degree=max_degree,
            fuse_level=fuse_level,
            e3nn=e3nn,
            split=(value, key),
        )
        self.to_query = LinearSE3(fiber_in, key)
        self.attention = AttentionSE3(num_heads, plain(key), plain(value))
        self.project = LinearSE3(value + fiber_in, fiber_out, sources=(value, fiber_in))

    @property
    def to_value_key(self) -> ConvSE3:  # type: ignore[override]
        return self.to_key_value

    def forward(
        self, node_features: ByName, edge_features: Any, graph: Any, basis: ByName | None = None
    ) -> dict[str, Tensor]:
        convolution = self.to_key_value
        dtype = next(self.parameters()).dtype
        edges = graph
        if not isinstance(edges, Edges):
            edges = edges_of(graph, edge_features, self.max_degree, dtype, convolution.negated, basis)
        features = flat(node_features, convolution.fiber_nodes, dtype, edges.num_nodes)
        if (dense := edges.dense) and (plan := plan_of(convolution, self.attention.num_heads, features, dense)):
            query = self.to_query(features)
            messages = apply_convolution(plan, features, dense, None, self.low_memory)
            out = self.project(plan.attend(messages, query, dense), features)
        else:
            out = super().forward(features, edges.geometry, edges.features)
        return by_name(out, self.project.fiber_out, graph)
