"""Multi-head attention over the incoming edges of each node."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from src.batches.molecular_graphs import Graph
from src.errors import UserError
from src.models.se3_transformer.conv import ConvSE3, EdgeFeatures, Geometry
from src.models.se3_transformer.fiber import Fiber
from src.models.se3_transformer.kernels import dispatch
from src.models.se3_transformer.kernels.reference import attend
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
        query, graph, convolution = self.to_query(features), geometry.graph, self.to_value_key
        if geometry.wigner is not None:
            # Messages stay in the edge frames: the attention kernel rotates them before it sums.
            messages = apply_convolution(convolution.edge_messages, features, geometry, edge_features, self.low_memory)
            value, key = convolution.layouts
            num_heads = self.attention.num_heads
            attended = dispatch.attend(messages, query, geometry.wigner, graph, value, key, num_heads)
        else:
            value_key = apply_convolution(convolution, features, geometry, edge_features, self.low_memory)
            widths = [self.attention.value_fiber.num_features, self.attention.key_fiber.num_features]
            value, key = value_key.split(widths, 1)
            attended = self.attention(value, key, query, graph)
        return self.project(attended, features)


def apply_convolution(
    convolution: Callable[..., Tensor],
    features: Float[Tensor, "nodes features_in"],
    geometry: Geometry,
    edge_features: EdgeFeatures,
    low_memory: bool,
) -> Float[Tensor, "rows features_out"]:
    """Returns the convolution's output; with `low_memory`, the backward pass recomputes it."""
    if not low_memory:
        return convolution(features, geometry, edge_features)
    arguments = (features, geometry, edge_features)
    return checkpoint(convolution, *arguments, use_reentrant=False, preserve_rng_state=False)  # type: ignore[return-value]
