"""The SE(3)-Transformer (arXiv:2006.10503) in NVIDIA's variant (DeepLearningExamples, SE3Transformer)."""

from collections.abc import Mapping
from typing import Annotated, Any, get_args

from jaxtyping import Float
from torch import Tensor, nn

from src.batches.molecular_graphs import Graph
from src.config.ranges import Count, Number, Range
from src.errors import UserError
from src.models.se3_transformer.attention import AttentionBlockSE3, apply_convolution
from src.models.se3_transformer.conv import ConvSE3, Geometry
from src.models.se3_transformer.fiber import Fiber
from src.models.se3_transformer.norm import NormSE3
from src.models.se3_transformer.pooling import Pool, Pooling, check_pooling
from src.models.se3_transformer.radial import Sharing

# Features as {degree: [rows, channels, 2 degree + 1]}, or those of degree 0 alone as [rows, channels].
Features = Mapping[int, Float[Tensor, "_ _ _"]] | Float[Tensor, "_ _"]


class SE3Transformer(nn.Module):
    """Attention blocks, each with its norm, and a convolution to the output.

    Args:
        fiber_in, fiber_out: fibers of the node features at input and output.
        fiber_hidden: fiber of the node features between layers. fiber_edge: fiber of the edge features without the
            length; a degree >= 1 is used only if the nodes have it too.
        pooling: over the nodes of each molecule; None returns node features.
        return_type: return only this degree; None returns all.
        norm: a NormSE3 after each block. use_layer_norm: LayerNorm in the radial networks.
        low_memory: recompute convolutions in the backward pass (activation checkpointing).
        sharing: `full` shares radial networks as NVIDIA's fully fused convolutions do, `pairwise` gives each pair of
            degrees its own.

    Raises UserError for incompatible arguments.
    """

    def __init__(
        self,
        fiber_in: Fiber,
        fiber_out: Fiber,
        fiber_hidden: Fiber | None = None,
        fiber_edge: Fiber | None = None,
        num_layers: int = 7,
        num_heads: int = 8,
        channels_div: int = 2,
        pooling: Pooling | None = None,
        return_type: int | None = None,
        norm: bool = True,
        use_layer_norm: bool = True,
        low_memory: bool = False,
        sharing: Sharing = "full",
    ) -> None:
        super().__init__()
        fiber_hidden = fiber_hidden or Fiber.create(4, 32)
        self.fiber_in, self.fiber_out, self.fiber_edge = fiber_in, fiber_out, fiber_edge or Fiber({})
        self.returned = fiber_out if return_type is None else fiber_out.restricted(Fiber({return_type: 1}))
        self.pooling: Pooling | None = pooling
        self.return_type, self.low_memory = return_type, low_memory
        self._check(sharing)
        self.max_degree = max(fiber_in.max_degree, fiber_hidden.max_degree, fiber_out.max_degree)
        scalars = self.fiber_edge.channels(0)
        edge_fiber = Fiber({degree: count for degree, count in self.fiber_edge.items() if degree})
        self.blocks, self.norms = nn.ModuleList(), nn.ModuleList()
        for fiber in [fiber_in, *[fiber_hidden] * num_layers][:num_layers]:
            self.blocks.append(
                AttentionBlockSE3(
                    fiber,
                    fiber_hidden,
                    scalars,
                    self.max_degree,
                    num_heads=num_heads,
                    channels_div=channels_div,
                    sharing=sharing,
                    use_layer_norm=use_layer_norm,
                    low_memory=low_memory,
                    edge_fiber=edge_fiber,
                )
            )
            self.norms.append(NormSE3(fiber_hidden) if norm else nn.Identity())
        self.to_output = ConvSE3(
            fiber_hidden if num_layers else fiber_in,
            fiber_out,
            scalars,
            self.max_degree,
            sharing=sharing,
            self_interaction=True,
            use_layer_norm=use_layer_norm,
            edge_fiber=edge_fiber,
        )

        self.pool = None if pooling is None else Pool(pooling)

    def _check(self, sharing: str) -> None:
        if sharing not in get_args(Sharing):
            raise UserError(f"sharing={sharing} must be one of {', '.join(get_args(Sharing))}")
        if not self.returned:
            raise UserError(f"return_type={self.return_type} is not a degree of the output {self.fiber_out}")
        if self.pooling is not None:
            check_pooling(self.pooling)
            if self.pooling == "max" and self.returned.max_degree > 0:
                raise UserError(
                    "pooling=max would break the symmetry of degrees >= 1: use mean or sum, or return_type=0"
                )

    def forward(
        self, graph: Graph, node_features: Features, edge_features: Features | None = None
    ) -> Float[Tensor, "rows channels components"] | dict[int, Float[Tensor, "rows _ _"]]:
        """Returns features as {degree: [nodes, channels, 2 degree + 1]}, or the degree that `return_type` names.

        With `pooling`, rows are molecules. Raises UserError for features of another fiber.
        """
        dtype = next(self.parameters()).dtype
        graph = graph._replace(positions=graph.positions.to(dtype))
        nodes = by_degree(node_features, self.fiber_in, "node_features")
        edges = by_degree({} if edge_features is None else edge_features, self.fiber_edge, "edge_features")
        scalars = edges[0].flatten(1) if 0 in edges else graph.positions.new_zeros(graph.src.shape[0], 0)
        geometry = Geometry.of(graph, scalars.to(dtype), self.max_degree)
        features = self.fiber_in.flatten(nodes).to(dtype)
        for block, norm in zip(self.blocks, self.norms, strict=True):
            features = norm(block(features, geometry, edges))
        features = apply_convolution(self.to_output, features, geometry, edges, self.low_memory)
        if self.pool is not None:
            features = self.pool(features, graph.graph_ptr)
        returned = self.fiber_out.unflatten(features)
        return returned if self.return_type is None else returned[self.return_type]


class SE3TransformerPooled(nn.Module):
    """An SE(3)-Transformer to scalars, pooled over each molecule, and two linear layers to the prediction.

    The defaults are the published model for QM9: 9,279,553 parameters; 9,407,521 with `sharing="pairwise"`.

    Args:
        num_degrees, num_channels: hidden features have `num_channels` channels in degrees 0 .. num_degrees - 1.
        node_features, edge_features: number of scalars of a node, and of an edge without its length.
        output_dim: number of values predicted for a molecule.
        Others: see SE3Transformer.

    Raises UserError for incompatible arguments.
    """

    def __init__(
        self,
        num_layers: Count = 7,
        num_degrees: Annotated[int, Range(1, 7)] = 4,
        num_channels: Count = 32,
        num_heads: Count = 8,
        channels_div: Count = 2,
        pooling: Pooling = "max",
        norm: bool = True,
        use_layer_norm: bool = True,
        low_memory: bool = False,
        node_features: Count = 6,
        edge_features: Number = 4,
        output_dim: Count = 1,
        sharing: Sharing = "full",
    ) -> None:
        self._arguments: dict[str, Any] = {
            name: value for name, value in locals().items() if name not in ("self", "__class__")
        }
        super().__init__()
        width = num_degrees * num_channels
        self.transformer = SE3Transformer(
            Fiber({0: node_features}),
            Fiber({0: width}),
            Fiber.create(num_degrees, num_channels),
            Fiber({0: edge_features} if edge_features else {}),
            num_layers=num_layers,
            num_heads=num_heads,
            channels_div=channels_div,
            pooling=pooling,
            return_type=0,
            norm=norm,
            use_layer_norm=use_layer_norm,
            low_memory=low_memory,
            sharing=sharing,
        )
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, output_dim))

    def with_node_features(self, count: int) -> "SE3TransformerPooled":
        """Returns a new network of the same sizes for another number of node features, with random weights."""
        return SE3TransformerPooled(**{**self._arguments, "node_features": count})

    def forward(
        self, graph: Graph, node_features: Features, edge_features: Features | None = None
    ) -> Float[Tensor, "graphs outputs"]:
        """Returns the prediction for each molecule; see SE3Transformer."""
        return self.head(self.transformer(graph, node_features, edge_features).squeeze(2))


def by_degree(features: Features, fiber: Fiber, what: str) -> Mapping[int, Float[Tensor, "_ _ _"]]:
    """Returns features as {degree: [rows, channels, 2 degree + 1]}. Raises UserError if they are not of this fiber."""
    if isinstance(features, Tensor):
        features = {0: features[:, :, None]}
    fiber.check(features, what)
    return features
