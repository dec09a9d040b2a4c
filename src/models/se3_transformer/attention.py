"""Multi-head attention over the incoming edges of each node."""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from src.batches.molecular_graphs import Graph
from src.errors import UserError
from src.models.se3_transformer.conv import ConvSE3, EdgeFeatures, Geometry
from src.models.se3_transformer.fiber import Fiber
from src.models.se3_transformer.linear import LinearSE3
from src.models.se3_transformer.radial import Sharing


class AttentionSE3(nn.Module):
    """Multi-head attention, see `attend`. Raises UserError if the heads do not divide the channels."""

    def __init__(self, num_heads: int, key_fiber: Fiber, value_fiber: Fiber) -> None:
        super().__init__()
        for degree, channels in (*key_fiber.items(), *value_fiber.items()):
            if num_heads < 1 or channels % num_heads:
                raise UserError(
                    f"num_heads={num_heads} does not divide the {channels} attention channels of degree {degree} "
                    "(hidden channels // channels_div): change num_heads, channels_div or num_channels"
                )
        self.num_heads, self.key_fiber, self.value_fiber = num_heads, key_fiber, value_fiber

    def forward(
        self,
        value: Float[Tensor, "edges value_features"],
        key: Float[Tensor, "edges key_features"],
        query: Float[Tensor, "nodes key_features"],
        graph: Graph,
    ) -> Float[Tensor, "nodes value_features"]:
        return attend(value, key, query, graph, self.num_heads, self.value_fiber, self.key_fiber)


class AttentionBlockSE3(nn.Module):
    """Attention with values and keys from one convolution; its output is concatenated with the input and projected.

    Args:
        edge_features, max_degree, sharing, use_layer_norm, edge_fiber: see `ConvSE3`.
        channels_div: values have fiber_out's channels divided by this; keys and queries too, in the input's degrees.
        low_memory: recompute the convolution in the backward pass (activation checkpointing).

    Raises UserError if fiber_in and fiber_out have no degree in common.
    """

    def __init__(
        self,
        fiber_in: Fiber,
        fiber_out: Fiber,
        edge_features: int,
        max_degree: int,
        *,
        num_heads: int = 8,
        channels_div: int = 2,
        sharing: Sharing = "full",
        use_layer_norm: bool = False,
        low_memory: bool = False,
        edge_fiber: Fiber | None = None,
    ) -> None:
        super().__init__()
        value_fiber = fiber_out.divided(channels_div)
        key_fiber = value_fiber.restricted(fiber_in)
        if not key_fiber:
            raise UserError(f"{fiber_in} and {fiber_out} have no degree in common, which attention needs: add one")
        self.low_memory = low_memory
        self.to_value_key = ConvSE3(
            fiber_in,
            value_fiber + key_fiber,
            edge_features,
            max_degree,
            sharing=sharing,
            use_layer_norm=use_layer_norm,
            pool=False,
            split=(value_fiber, key_fiber),
            edge_fiber=edge_fiber,
        )
        self.to_query = LinearSE3(fiber_in, key_fiber)
        self.attention = AttentionSE3(num_heads, key_fiber, value_fiber)
        self.project = LinearSE3(value_fiber + fiber_in, fiber_out, sources=(value_fiber, fiber_in))

    def forward(
        self,
        features: Float[Tensor, "nodes features_in"],
        geometry: Geometry,
        edge_features: EdgeFeatures = None,
    ) -> Float[Tensor, "nodes features_out"]:
        query = self.to_query(features)
        value_key = apply_convolution(self.to_value_key, features, geometry, edge_features, self.low_memory)
        widths = [self.attention.value_fiber.num_features, self.attention.key_fiber.num_features]
        value, key = value_key.split(widths, 1)
        attended = self.attention(value, key, query, geometry.graph)
        return self.project(attended, features)


def apply_convolution(
    convolution: Callable[..., Any],
    features: Float[Tensor, "nodes features_in"],
    geometry: Any,
    edge_features: EdgeFeatures,
    low_memory: bool,
) -> Any:
    """Returns the convolution's result; with `low_memory`, the backward pass recomputes it."""
    if not low_memory:
        return convolution(features, geometry, edge_features)
    arguments = (features, geometry, edge_features)
    return checkpoint(convolution, *arguments, use_reentrant=False, preserve_rng_state=False)


def attend(
    value: Float[Tensor, "edges value_features"],
    key: Float[Tensor, "edges key_features"],
    query: Float[Tensor, "nodes key_features"],
    graph: Graph,
    num_heads: int,
    value_fiber: Fiber,
    key_fiber: Fiber,
) -> Float[Tensor, "nodes value_features"]:
    """Computes for each node and head the softmax(<key, query> / sqrt(columns))-weighted sum of incoming values.

    Heads split every degree's channels in order; `columns` counts the key's columns of all heads, as published. Nodes
    without incoming edges get 0; padded edges are ignored. Logits, weights and sums are float32 or wider.
    """
    wide = torch.promote_types(value.dtype, torch.float32)
    nodes, edges = query.shape[0], torch.arange(key.shape[0], device=key.device)
    # Padded edges form an extra segment, which is dropped, so that not even their NaNs reach a node.
    segment = graph.dst.where(edges < graph.dst_ptr[-1], nodes).long()
    products = [
        (k.to(wide) * q[graph.dst].to(wide)).sum((1, 3))
        for k, q in zip(by_head(key, key_fiber, num_heads), by_head(query, key_fiber, num_heads), strict=True)
    ]
    logits = sum(products[1:], products[0]) / math.sqrt(key_fiber.num_features)
    alpha = segment_softmax(logits, segment, nodes + 1)[:, None, :, None]
    weighted = [(alpha * v.to(wide)).flatten(1) for v in by_head(value, value_fiber, num_heads)]
    sums = alpha.new_zeros(nodes + 1, value_fiber.num_features).index_add(0, segment, torch.cat(weighted, 1))
    return sums[:nodes].to(value.dtype)


def segment_softmax(
    logits: Float[Tensor, "edges heads"], segment: Int64[Tensor, " edges"], segments: int
) -> Float[Tensor, "edges heads"]:
    """Computes the softmax over the rows of each segment, for each column."""
    rows = segment[:, None].expand(logits.shape)
    largest = logits.new_full((segments, logits.shape[1]), -torch.inf).scatter_reduce(0, rows, logits.detach(), "amax")
    powers = (logits - largest[segment]).exp()
    return powers / powers.new_zeros(largest.shape).index_add(0, segment, powers)[segment]


def by_head(x: Float[Tensor, "rows features"], fiber: Fiber, num_heads: int) -> list[Float[Tensor, "rows _ heads _"]]:
    """Returns features as [rows, components, heads, channels]: one tensor if channels are equal, or one per degree."""
    if fiber.equal_channels:
        return [x.unflatten(1, (-1, num_heads, fiber.equal_channels // num_heads))]
    return [fiber.part(x, degree).unflatten(2, (num_heads, -1)) for degree in fiber]
