"""Graphs in DGL's place: `from se3_transformer import graphs as dgl`. Networks take a DGLGraph too.

    G = graphs.graph((src, dst), num_nodes=n).to(device)
    G.edata["rel_pos"] = positions[dst] - positions[src]

Only what RFdiffusion and the RoseTTAFolds use of DGL is here.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from src.batches.molecular_graphs import Graph as Batch
from src.batches.molecular_graphs import pointers
from src.errors import UserError


class Graph:
    """Edges src -> dst between `num_nodes` nodes, in any order, with tensors of nodes (ndata) and edges (edata)."""

    is_padded = False  # whether edges of a node -1 are there, which none reads

    def __init__(
        self, src: Tensor, dst: Tensor, num_nodes: int, sizes: Tensor | None = None, edge_sizes: Tensor | None = None
    ) -> None:
        self._src, self._dst, self._num_nodes = src, dst, num_nodes
        self._sizes, self._edge_sizes = sizes, edge_sizes
        self.ndata: dict[str, Tensor] = {}
        self.edata: dict[str, Tensor] = {}

    @property
    def device(self) -> torch.device:
        return self._src.device

    def edges(self) -> tuple[Tensor, Tensor]:
        return self._src, self._dst

    def num_nodes(self) -> int:
        return self._num_nodes

    def num_edges(self) -> int:
        return len(self._src)

    number_of_nodes, number_of_edges = num_nodes, num_edges

    def in_degrees(self) -> Tensor:
        return self._dst.bincount(minlength=self._num_nodes)

    def batch_num_nodes(self) -> Tensor:
        return torch.tensor([self._num_nodes], device=self.device) if self._sizes is None else self._sizes

    def batch_num_edges(self) -> Tensor:
        return torch.tensor([len(self._src)], device=self.device) if self._edge_sizes is None else self._edge_sizes

    @property
    def batch_size(self) -> int:
        return len(self.batch_num_nodes())

    def set_batch_num_nodes(self, sizes: Tensor) -> None:
        """Sets the nodes of each graph of a batch, which pooling reads."""
        self._sizes = sizes
        self.__dict__.pop("topology", None)

    def set_batch_num_edges(self, sizes: Tensor) -> None:
        self._edge_sizes = sizes

    def to(self, device: torch.device | str | int) -> "Graph":
        """Returns the graph with its tensors on a device; itself if it is there."""
        src = self._src.to(device)
        if src is self._src:
            return self
        sizes, edge_sizes = (None if x is None else x.to(device) for x in (self._sizes, self._edge_sizes))
        moved = Graph(src, self._dst.to(device), self._num_nodes, sizes, edge_sizes)
        moved.ndata = {name: value.to(device) for name, value in self.ndata.items()}
        moved.edata = {name: value.to(device) for name, value in self.edata.items()}
        return moved

    @cached_property
    def topology(self) -> tuple[Batch, Int64[Tensor, " edges"]]:
        """See `topology_of`."""
        return topology(self._src, self._dst, self._num_nodes, self.batch_num_nodes())


def graph(data: Any, num_nodes: int | None = None, device: torch.device | str | None = None) -> Graph:
    """Returns the graph of edges (src, dst), two tensors or lists of node numbers in any order.

    Without `num_nodes` the nodes end at the highest number. Raises UserError for numbers outside the nodes.
    """
    if not isinstance(data, Sequence) or len(data) != 2:
        raise UserError(f"graph((src, dst), ...) takes the ends of the edges as a pair, not a {type(data).__name__}")
    if num_nodes is not None and int(num_nodes) != num_nodes:
        raise UserError(f"num_nodes={num_nodes} is not allowed; expected a whole number")
    src, dst = (torch.as_tensor(ends, device=device) for ends in data)
    if src.shape != dst.shape or src.dim() != 1 or src.device != dst.device:
        shown = ", ".join(f"{list(ends.shape)} on {ends.device}" for ends in (src, dst))
        raise UserError(f"src and dst are {shown}; expected two vectors of one length on one device")
    if len(src) and (src.is_floating_point() or dst.is_floating_point()):
        raise UserError(f"src and dst are {src.dtype} and {dst.dtype}; expected integers, the numbers of nodes")
    src, dst = src.long(), dst.long()
    if src.is_cuda and num_nodes is not None:  # without a wait for the device: `Edges.dense` checks there
        return Graph(src, dst, int(num_nodes))
    lowest, highest = torch.stack([src, dst]).aminmax() if len(src) else (0, -1)
    count = int(highest) + 1 if num_nodes is None else int(num_nodes)
    if int(lowest) < 0 or int(highest) >= count:
        raise UserError(f"edges join nodes {int(lowest)} .. {int(highest)}, but the graph has nodes 0 .. {count - 1}")
    return Graph(src, dst, count)


def batch(graphs: Sequence[Graph]) -> Graph:
    """Returns one graph of all graphs' nodes and edges, in order, with the data that each has."""
    if not graphs:
        raise UserError("a batch of no graphs; give at least one")
    counts = [part.num_nodes() for part in graphs]
    begins = torch.tensor(counts).cumsum(0).tolist()
    pairs = [part.edges() for part in graphs]
    src, dst = (
        torch.cat([pair[end] + begin for pair, begin in zip(pairs, [0, *begins], strict=False)]) for end in (0, 1)
    )
    sizes = torch.cat([part.batch_num_nodes() for part in graphs])
    joined = Graph(src, dst, sum(counts), sizes, torch.cat([part.batch_num_edges() for part in graphs]))
    for data, parts in (
        (joined.ndata, [part.ndata for part in graphs]),
        (joined.edata, [part.edata for part in graphs]),
    ):
        if any(part.keys() != parts[0].keys() for part in parts):
            raise UserError(f"graphs of a batch have other data: {', '.join(str(sorted(part)) for part in parts)}")
        data |= {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return joined


def topology_of(graph: Any) -> tuple[Batch, Int64[Tensor, " edges"]]:
    """Returns the edges sorted by destination, and the numbers of these edges in the graph.

    The first has no positions. Raises UserError for an object that is neither a `Graph` nor a DGLGraph.
    """
    check(graph)
    if isinstance(graph, Graph):
        return graph.topology
    src, dst = graph.edges()
    return topology(src, dst, graph.num_nodes(), graph.batch_num_nodes())


def check(graph: Any) -> None:
    """Raises UserError for an object that is neither a `Graph` nor a DGLGraph."""
    for name in ("edges", "num_nodes", "edata", "batch_num_nodes"):
        if not hasattr(graph, name):
            raise UserError(
                f"the graph is a {type(graph).__name__}; expected se3_transformer.graphs.graph or a DGLGraph"
            )


@torch.inference_mode(False)  # a graph that a prediction used may be part of a later gradient
def topology(src: Tensor, dst: Tensor, num_nodes: int, sizes: Tensor) -> tuple[Batch, Int64[Tensor, " edges"]]:
    src, dst = src.long(), dst.long()
    order = dst.argsort(stable=True)
    src, dst = src[order], dst[order]
    src_order = src.argsort(stable=True)
    ends = torch.arange(num_nodes + 1, device=src.device)
    none = torch.zeros(1, 3, device=src.device).expand(num_nodes, 3)
    edges = Batch(
        none,
        src,
        dst,
        dst_ptr=torch.searchsorted(dst, ends),
        src_order=src_order,
        src_ptr=torch.searchsorted(src[src_order], ends),
        graph_ptr=pointers(sizes.to(src.device).long()),
        distinct=False,
    )
    return edges, order
