"""SE(3)-Transformer: equivariant attention on molecular graphs (arXiv:2006.10503).

The network is plain torch; `fast.accelerate` replaces its layers by faster ones:

    network = fast.accelerate(SE3TransformerPooled())
    graph = Graph.build(positions, src, dst, graph_sizes)
    prediction = network(graph, node_features, edge_features)
"""

from src.batches.molecular_graphs import Graph
from src.models.se3_transformer.attention import AttentionBlockSE3, AttentionSE3
from src.models.se3_transformer.checkpoint import from_nvidia, load_nvidia, to_nvidia
from src.models.se3_transformer.conv import ConvSE3, Geometry
from src.models.se3_transformer.dgl import from_dgl, to_dgl
from src.models.se3_transformer.fiber import Fiber
from src.models.se3_transformer.forces import energy_and_forces
from src.models.se3_transformer.linear import LinearSE3
from src.models.se3_transformer.network import SE3Transformer, SE3TransformerPooled
from src.models.se3_transformer.norm import NormSE3
from src.models.se3_transformer.pooling import pool

__all__ = [
    "AttentionBlockSE3",
    "AttentionSE3",
    "ConvSE3",
    "Fiber",
    "Geometry",
    "Graph",
    "LinearSE3",
    "NormSE3",
    "SE3Transformer",
    "SE3TransformerPooled",
    "energy_and_forces",
    "from_dgl",
    "from_nvidia",
    "load_nvidia",
    "pool",
    "to_dgl",
    "to_nvidia",
]
