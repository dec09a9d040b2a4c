"""SE3Transformer and SE3TransformerPooled, as RFdiffusion and the RoseTTAFolds build them.

Differences of their copies of NVIDIA's package are arguments: `layout`, and those that one of them added.
"""

from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from src.dropin.graphs import Graph
from src.dropin.model.edges import ByName, Edges, check_device, check_names, relative_positions
from src.dropin.model.fiber import Fiber, plain
from src.dropin.model.layers.attention import AttentionBlockSE3
from src.dropin.model.layers.convolution import ConvSE3, ConvSE3FuseLevel
from src.dropin.model.layers.linear import LinearSE3
from src.dropin.model.layers.norm import NormSE3
from src.dropin.model.layers.pooling import GPooling
from src.errors import UserError
from src.gpu import inference_graphs
from src.gpu.hooks import uncompiled
from src.models.se3_transformer.signs import NVIDIA_E3NN, negated_symbols

FinalLayer = Literal["conv", "lin", "att"]
Populate = Literal["lin", "arcsin", "log", "zero"]
Layout = Literal["2021", "2022"]


class Sequential(nn.Sequential):
    """Calls each layer with the features and all other arguments."""

    def forward(self, input: Any, *args: Any, **kwargs: Any) -> Any:
        for layer in self:
            input = layer(input, *args, **kwargs)
        return input


class SE3Transformer(nn.Module):
    """Attention blocks, each with its norm, and a last layer.

    Args:
        return_type: return only this degree. pooling: its average or maximum over each graph of a batch.
        final_layer: a convolution, a matrix for each degree, or an attention block.
        norm: a NormSE3 after each block. use_layer_norm: LayerNorm in the radial networks.
        tensor_cores, low_memory: decide which pairs of degrees share a radial network, see `layout`.
        populate_edge: the radial input of length r: r, arcsinh(max(r, 4) - 4) / 3, log(1 + r) or 0.
        sum_over_edge: the last convolution adds its messages; else it averages them.
        layout: of the parameters with low_memory: `2021` as in RFdiffusion, RF2NA and RFAA; `2022` as in RoseTTAFold2
            and NVIDIA's code since September 2022, which also recomputes convolutions in the backward pass.
        e3nn: the version that the weights were trained with; its signs matter from degree 2 on.
        full_gradient: whether gradients flow through the directions of `rel_pos` too, not only through its lengths.

    Raises UserError for other arguments, which NVIDIA's code ignores.
    """

    def __init__(
        self,
        num_layers: int,
        fiber_in: Fiber,
        fiber_hidden: Fiber,
        fiber_out: Fiber,
        num_heads: int,
        channels_div: int,
        fiber_edge: Fiber | None = None,
        return_type: int | None = None,
        pooling: str | None = None,
        final_layer: str = "conv",
        norm: bool = True,
        use_layer_norm: bool = True,
        tensor_cores: bool = False,
        low_memory: bool = False,
        populate_edge: str = "lin",
        sum_over_edge: bool = True,
        *,
        layout: str = "2021",
        e3nn: str = NVIDIA_E3NN,
        full_gradient: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        if kwargs:
            raise UserError(f"SE3Transformer has no argument {', '.join(sorted(kwargs))}")
        _check("final_layer", final_layer, FinalLayer)
        _check("populate_edge", populate_edge, Populate)
        _check("layout", layout, Layout)
        fiber_edge = Fiber({}) if fiber_edge is None else fiber_edge
        fibers = {"fiber_in": fiber_in, "fiber_hidden": fiber_hidden, "fiber_out": fiber_out, "fiber_edge": fiber_edge}
        for name, fiber in fibers.items():
            if not isinstance(fiber, Fiber):
                raise UserError(f"{name} is a {type(fiber).__name__}; expected a se3_transformer.model.fiber.Fiber")
        if num_layers < 0 or channels_div < 1:
            raise UserError(f"num_layers={num_layers}, channels_div={channels_div}; expected at least 0 and 1")
        if pooling is not None and return_type is None:
            raise UserError(f"pooling={pooling} needs return_type, the degree that is pooled")
        if return_type is not None and not fiber_out[return_type]:
            raise UserError(f"return_type={return_type} is not a degree of fiber_out={fiber_out}")
        self.num_layers, self.fiber_edge, self.num_heads, self.channels_div = (
            num_layers,
            fiber_edge,
            num_heads,
            channels_div,
        )
        self.return_type, self.pooling, self.populate_edge = return_type, pooling, populate_edge
        self.tensor_cores, self.low_memory, self.full_gradient = tensor_cores, low_memory, full_gradient
        self.max_degree = max(*fiber_in.degrees, *fiber_hidden.degrees, *fiber_out.degrees)
        self.out_names = [str(degree) for degree in sorted(plain(fiber_out).degrees)]
        self.negated = negated_symbols(e3nn, self.max_degree)
        level = ConvSE3FuseLevel.FULL if tensor_cores and not low_memory else ConvSE3FuseLevel.PARTIAL
        last_level = ConvSE3FuseLevel.FULL
        if layout == "2022":
            level = last_level = ConvSE3FuseLevel.NONE if low_memory else level
        shared: dict[str, Any] = {
            "fiber_edge": fiber_edge,
            "use_layer_norm": use_layer_norm,
            "max_degree": self.max_degree,
            "low_memory": low_memory and layout == "2022",
            "e3nn": e3nn,
        }
        layers: list[nn.Module] = []
        for _ in range(num_layers):
            layers.append(
                AttentionBlockSE3(
                    fiber_in,
                    fiber_hidden,
                    num_heads=num_heads,
                    channels_div=channels_div,
                    fuse_level=level,
                    **shared,
                )
            )
            layers += [NormSE3(fiber_hidden)] if norm else []
            fiber_in = fiber_hidden
        if final_layer == "conv":
            final = ConvSE3(
                fiber_in,
                fiber_out,
                self_interaction=True,
                sum_over_edge=sum_over_edge,
                fuse_level=last_level,
                **shared,
            )
        elif final_layer == "lin":
            final = LinearSE3(fiber_in, fiber_out)
        else:
            # One head, and only the scalars of the values are fewer.
            divisors = {str(d): 1 if d else channels_div for d in range(self.max_degree + 1)}
            final = AttentionBlockSE3(
                fiber_in, fiber_out, num_heads=1, channels_div=divisors, fuse_level=level, **shared
            )
        self.graph_modules = Sequential(*layers, final)
        if pooling is not None:
            assert return_type is not None
            self.pooling_module = GPooling(return_type, pooling)

    @uncompiled
    def forward(
        self, graph: Any, node_feats: ByName, edge_feats: ByName | None = None, basis: ByName | None = None
    ) -> Any:
        """Returns features {str(degree): [nodes, channels, 2 degree + 1]}, or the degree that `return_type` names.

        Args:
            graph: of `graphs.graph` or DGL, with edata `rel_pos`, the position of each edge's destination relative to
                its source.
            node_feats, edge_feats: {str(degree): [rows, channels, 2 degree + 1]}, those of edges in the graph's order.
            basis: of `get_basis`, instead of the directions of `rel_pos`.
        """
        parameter = next(self.parameters())
        dtype = parameter.dtype
        for what, features in (("node_feats", node_feats), ("edge_feats", edge_feats or {})):
            check_names(features, what)
            for feature in features.values():
                check_device(graph, feature)
        check_device(graph, parameter, "the network's weights are")
        edges = self._edges(graph, edge_feats or {}, dtype, basis)
        fits = all(len(feature) == graph.num_nodes() for feature in node_feats.values())
        if fits and edges.is_dense and inference_graphs.can_run(self, edges.rel_pos):
            out = self._graphed(graph, edges, node_feats, edge_feats or {}, dtype)
        else:
            out = self._run(edges, node_feats, edge_feats)
        if self.pooling is not None:
            return self.pooling_module(out, graph=graph)
        return out if self.return_type is None else out[str(self.return_type)]

    def _run(self, edges: Edges, node_feats: ByName, edge_feats: ByName | None) -> dict[str, Tensor]:
        out = self.graph_modules(node_feats, edge_feats, graph=edges, basis=edges.basis)
        return {name: feature.contiguous() for name, feature in out.items()}

    def _graphed(
        self, graph: Any, edges: Edges, node_feats: ByName, edge_feats: ByName, dtype: torch.dtype
    ) -> dict[str, Tensor]:
        """Runs as a CUDA graph: a network of few channels takes the host longer to launch than the GPU to run."""
        names = [sorted(part) for part in (node_feats, edge_feats)]
        rows, nodes = inference_graphs.rounded(graph.num_edges()), graph.num_nodes()

        def function(tensors: list[Tensor]) -> list[Tensor]:
            src, dst, rel_pos, *others = tensors
            padded = Graph(src, dst, nodes)
            padded.is_padded = True
            padded.edata["rel_pos"] = rel_pos
            of_nodes = dict(zip(names[0], others, strict=False))
            of_edges = dict(zip(names[1], others[len(names[0]) :], strict=True))
            out = self._run(self._edges(padded, of_edges, dtype, None), of_nodes, of_edges)
            return [out[name] for name in self.out_names]

        ends = [inference_graphs.Input(end, rows, -1) for end in graph.edges()]
        of_nodes = [inference_graphs.Input(node_feats[name], nodes) for name in names[0]]
        of_edges = [inference_graphs.Input(edge_feats[name], rows) for name in names[1]]
        rel_pos = inference_graphs.Input(relative_positions(graph), rows)
        key = nodes, tuple(map(tuple, names)), dtype
        out = inference_graphs.run(self, function, [*ends, rel_pos, *of_nodes, *of_edges], key)
        return dict(zip(self.out_names, out, strict=True))

    def _edges(self, graph: Any, edge_feats: ByName, dtype: torch.dtype, basis: ByName | None) -> Edges:
        """Returns the graph's edges with their features and radial inputs."""
        wanted = {int(degree): (count, 2 * degree + 1) for degree, count in self.fiber_edge if count}
        shapes = {int(degree): tuple(x.shape[1:]) for degree, x in edge_feats.items() if x.numel() or x.shape[1]}
        if shapes != wanted:
            raise UserError(f"edge_feats have shapes {shapes} by degree; fiber_edge={self.fiber_edge} needs {wanted}")
        for degree, feature in edge_feats.items():
            if len(feature) != graph.num_edges():
                raise UserError(f"edge_feats['{degree}'] is of {len(feature)} edges, the graph has {graph.num_edges()}")
        scalars = edge_feats["0"].flatten(1) if "0" in edge_feats else None
        arguments = self.max_degree, dtype, self.negated, basis, self.full_gradient
        return Edges(graph, scalars, partial(self._radial, relative_positions(graph), dtype), edge_feats, *arguments)

    def _radial(self, rel_pos: Tensor, dtype: torch.dtype) -> Tensor:
        """Returns the radial input of each edge."""
        r = rel_pos.to(dtype).norm(dim=1)
        if self.populate_edge == "arcsin":
            return torch.arcsinh(r.clamp_min(4.0) - 4.0) / 3.0
        if self.populate_edge == "log":
            return torch.log(1 + r)
        return torch.zeros_like(r) if self.populate_edge == "zero" else r


class SE3TransformerPooled(nn.Module):
    """An SE3Transformer to scalars, pooled over each graph, and two linear layers; `pooling` is max by default."""

    def __init__(
        self,
        fiber_in: Fiber,
        fiber_out: Fiber,
        fiber_edge: Fiber,
        num_degrees: int,
        num_channels: int,
        output_dim: int,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self.transformer = SE3Transformer(
            fiber_in=fiber_in,
            fiber_hidden=Fiber.create(num_degrees, num_channels),
            fiber_out=fiber_out,
            fiber_edge=fiber_edge,
            return_type=0,
            **{**kwargs, "pooling": kwargs.get("pooling") or "max"},
        )
        width = fiber_out.num_features
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, output_dim))

    def forward(
        self, graph: Any, node_feats: ByName, edge_feats: ByName | None = None, basis: ByName | None = None
    ) -> Tensor:
        """Returns [graphs, output_dim], or [graphs] for one output."""
        pooled = self.transformer(graph, node_feats, edge_feats, basis).squeeze(-1)
        return self.mlp(pooled).squeeze(-1)


def _check(name: str, value: object, allowed: Any) -> None:
    if value not in get_args(allowed):
        raise UserError(f"{name}={value} is not allowed; expected one of {', '.join(get_args(allowed))}")
