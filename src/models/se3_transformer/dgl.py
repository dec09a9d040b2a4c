"""Conversion of graphs to DGL and back, with features in the layout of NVIDIA's code. Only this module needs DGL."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from src.batches.molecular_graphs import Graph
from src.errors import UserError

ByName = dict[str, Tensor]  # {str(degree): [rows, channels, 2 degree + 1]}
ByDegree = dict[int, Tensor]


def to_dgl(
    graph: Graph,
    node_features: Mapping[int, Float[Tensor, "nodes _ _"]],
    edge_features: Mapping[int, Float[Tensor, "edges _ _"]] | None = None,
) -> tuple[Any, ByName, ByName]:
    """Returns a batched DGLGraph with ndata `pos` and edata `rel_pos`, node and edge features; without padding.

    Raises UserError if DGL is not installed.
    """
    dgl = _dgl()
    graph_ptr = graph.graph_ptr.tolist()
    nodes, edges = graph_ptr[-1], int(graph.dst_ptr[-1])
    src, dst, positions = graph.src[:edges], graph.dst[:edges], graph.positions[:nodes]
    dgl_graph = dgl.graph((src, dst), num_nodes=nodes)
    dgl_graph.set_batch_num_nodes(graph.graph_ptr.diff())
    dgl_graph.set_batch_num_edges(graph.dst_ptr[graph.graph_ptr].diff())
    dgl_graph.ndata["pos"] = positions
    dgl_graph.edata["rel_pos"] = positions[dst] - positions[src]
    by_name = {str(degree): feature[:nodes] for degree, feature in node_features.items()}
    return dgl_graph, by_name, {str(degree): feature[:edges] for degree, feature in (edge_features or {}).items()}


def from_dgl(
    dgl_graph: Any, node_features: Mapping[str, Tensor], edge_features: Mapping[str, Tensor] | None = None
) -> tuple[Graph, ByDegree, ByDegree]:
    """Returns the graph of a (batched) DGLGraph with ndata `pos`, node features, and edge features in its edge order.

    Raises UserError for a graph without positions.
    """
    if "pos" not in dgl_graph.ndata:
        raise UserError(f"the DGL graph has no ndata 'pos' but {sorted(dgl_graph.ndata)}: add the positions [nodes, 3]")
    src, dst = dgl_graph.edges()
    graph = Graph.build(dgl_graph.ndata["pos"], src, dst, dgl_graph.batch_num_nodes())
    order = torch.argsort(dst, stable=True)  # Graph.build's order of edges
    by_degree = {int(degree): feature for degree, feature in node_features.items()}
    return graph, by_degree, {int(degree): feature[order] for degree, feature in (edge_features or {}).items()}


def _dgl() -> Any:
    try:
        return import_module("dgl")
    except ImportError as error:
        raise UserError(
            f"DGL cannot be imported ({error}): pip install dgl==1.1.3 and set DGLBACKEND=pytorch"
        ) from None
