"""Attention blocks whose messages stay in the edge frames of `FastConvSE3`.

The attention kernel rotates what it sums, so that no message is stored in the common frame. Where it does not support
device, dtype or shape, plain torch rotates and attends. This module imports no Triton, like `conv`.
"""

from jaxtyping import Float
from torch import Tensor

from src.gpu.hooks import hooked
from src.gpu.triton_helpers import lacks
from src.models.se3_transformer.attention import AttentionBlockSE3, AttentionSE3, apply_convolution
from src.models.se3_transformer.conv import EdgeFeatures, Geometry
from src.models.se3_transformer.fast.conv import FastConvSE3, kernels_for
from src.models.se3_transformer.fast.frames import EdgeLayout, edge_wigner, has_frames


class FastAttentionBlockSE3(AttentionBlockSE3):
    """Attends in edge frames. It is the plain block if its convolution is plain, or the geometry has no frames."""

    def forward(
        self,
        features: Float[Tensor, "nodes features_in"],
        geometry: Geometry,
        edge_features: EdgeFeatures = None,
    ) -> Float[Tensor, "nodes features_out"]:
        convolution = self.to_value_key
        if not isinstance(convolution, FastConvSE3):
            lacks("attention", features, "plain convolutions: give conv too")
            return super().forward(features, geometry, edge_features)
        if not has_frames(geometry):
            return super().forward(features, geometry, edge_features)
        if hooked(self.to_query):
            query = self.to_query(features)
        else:
            query, features = self.to_query.passing(features)
        messages, features = apply_convolution(
            convolution.edge_messages, features, geometry, edge_features, self.low_memory
        )
        value, key = convolution.plans[0].outputs
        return self.project(attend(messages, query, geometry, value, key, self.attention), features)


def attend(
    messages: Float[Tensor, "edges columns"],
    query: Float[Tensor, "nodes keys"],
    geometry: Geometry,
    value: EdgeLayout,
    key: EdgeLayout,
    attention: AttentionSE3,
) -> Float[Tensor, "nodes values"]:
    """Computes attention with messages in the edge frames: the value's columns, then the key's."""
    wigner, graph, num_heads = geometry.once(edge_wigner), geometry.graph, attention.num_heads
    if edges := kernels_for("attention", messages, "edges"):
        if edges.attention_supported(value, key, num_heads):
            return edges.attend(messages, query, wigner, graph, value, key, num_heads)
        lacks("attention", messages, f"{num_heads} heads of {value.fiber} and {key.fiber}")
    values, keys = messages.split([value.num_features, key.num_features], 1)
    return attention(value.from_edge(values, wigner), key.from_edge(keys, wigner), query, graph)
