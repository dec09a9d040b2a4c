"""Molecular graphs as tensors, the batches of the SE(3)-Transformer."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from src.errors import UserError


class Graph(NamedTuple):
    """Positions and topology of many molecules as one graph, edges sorted by destination.

    A message goes src -> dst, and rel_pos = positions[dst] - positions[src]. Padding is at the end of every tensor:
    padded nodes belong to no molecule, padded molecules have no nodes, and padded edges (src = dst = the last node,
    which is then a padded one) belong to no node's segment.
    """

    positions: Float[Tensor, "nodes 3"]  # angstrom
    src: Int[Tensor, " edges"]
    dst: Int[Tensor, " edges"]
    dst_ptr: Int[Tensor, " nodes_and_1"]  # edges into node n are dst_ptr[n]:dst_ptr[n + 1]
    src_order: Int[Tensor, " edges"]  # edge numbers ordered by source
    src_ptr: Int[Tensor, " nodes_and_1"]  # edges out of node n are src_order[src_ptr[n]:src_ptr[n + 1]]
    graph_ptr: Int[Tensor, " graphs_and_1"]  # nodes of molecule g are graph_ptr[g]:graph_ptr[g + 1]
    distinct: bool  # no real edge has length 0

    @staticmethod
    def build(
        positions: Float[Tensor, "nodes 3"],
        src: Int[Tensor, " edges"],
        dst: Int[Tensor, " edges"],
        graph_sizes: Int[Tensor, " graphs"] | Sequence[int] | None = None,
    ) -> "Graph":
        """Builds the graph from edges in any order; the edges into one node keep their order.

        `graph_sizes`: nodes of each molecule, in order; one molecule if not given. Raises UserError for sizes that do
        not add up to the nodes and for an edge between molecules.
        """
        device, nodes = positions.device, len(positions)
        sizes = torch.as_tensor([nodes] if graph_sizes is None else graph_sizes, dtype=torch.int64, device=device)
        if int(sizes.sum()) != nodes or (sizes < 0).any():
            raise UserError(f"the graph sizes add up to {int(sizes.sum())} nodes, the positions have {nodes}")
        molecule = torch.arange(len(sizes), device=device).repeat_interleave(sizes)
        ends = torch.stack([src, dst]).long()
        outside = ((ends < 0) | (ends >= nodes)).any(0)
        crossing = outside | (molecule[ends.clamp(0, max(nodes - 1, 0))].diff(dim=0)[0] != 0) if nodes else outside
        if crossing.any():
            edge = int(crossing.nonzero()[0])
            raise UserError(f"edge {edge} ({int(src[edge])} -> {int(dst[edge])}) is not within one of the molecules")
        src, dst = ends[:, dst.argsort(stable=True)]
        return Graph(
            positions,
            src,
            dst,
            dst_ptr=pointers(dst.bincount(minlength=nodes)),
            src_order=src.argsort(stable=True),
            src_ptr=pointers(src.bincount(minlength=nodes)),
            graph_ptr=pointers(sizes),
            distinct=not bool((positions[dst] == positions[src]).all(1).any()),
        )


class GraphBatch(NamedTuple):
    """Molecules with their features and one target each, padded to a bucket's shape."""

    positions: Float[Tensor, "nodes 3"]
    src: Int[Tensor, " edges"]
    dst: Int[Tensor, " edges"]
    dst_ptr: Int[Tensor, " nodes_and_1"]
    src_order: Int[Tensor, " edges"]
    src_ptr: Int[Tensor, " nodes_and_1"]
    graph_ptr: Int[Tensor, " graphs_and_1"]
    node_features: Float[Tensor, "nodes 6"]  # one-hot H, C, N, O, F, and the atomic number; 0 where padded
    edge_features: Float[Tensor, "edges 4"]  # one-hot single, double, triple, aromatic; 0 without a bond or padded
    targets: Float[Tensor, " graphs"]  # not normalised; NaN if unknown or padded
    count: int  # real molecules, the first ones

    @property
    def graph(self) -> Graph:
        """The graph; its atoms are distinct because preparation refuses coincident ones."""
        return Graph(*self[:7], distinct=True)


def pointers(sizes: Int[Tensor, " segments"]) -> Int[Tensor, " segments_and_1"]:
    """Returns the start of each segment of these sizes, and the end of the last one."""
    return torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
