"""Batches of molecular graphs in a few fixed shapes, assembled on the device that holds the data set."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from src.batches.molecular_graphs import GraphBatch
from src.datamodules.graphs.data import ELEMENTS, Arrays
from src.datamodules.graphs.edges import DirectedEdges
from src.datamodules.resident import OrderedLoader

EDGE_FEATURES = 4
MULTIPLE = 128  # capacities are multiples of it
SPREAD = 4  # standard deviations of a batch's size between the mean and the first bucket's capacity
AHEAD = 16  # batches gathered at once, at most,
SLOTS = 1 << 20  # and as many edges, unless one batch has more
GROWTH = 1.1  # ratio of a bucket's capacity to the one before


class Buckets:
    """The shapes of batches: (nodes, edges) in ascending order.

    The first fits practically every random batch; the last fits a batch of the largest molecules. Each has one node
    more, to which padded edges point.
    """

    def __init__(self, num_nodes: Int[np.ndarray, " rows"], num_edges: Int[np.ndarray, " rows"], batch_size: int):
        sizes = np.stack([num_nodes, num_edges]).astype(np.int64)
        largest = np.sort(sizes)[:, -batch_size:].sum(1)
        capacity = sizes.mean(1) * batch_size + SPREAD * sizes.std(1) * batch_size**0.5
        shapes = [self._shape(np.minimum(capacity, largest))]
        while shapes[-1] != self._shape(largest):
            capacity = capacity * GROWTH
            shapes.append(self._shape(np.minimum(capacity, largest)))
        self.shapes = list(dict.fromkeys(shapes))

    @staticmethod
    def _shape(sizes: Float[np.ndarray, " 2"] | Int[np.ndarray, " 2"]) -> tuple[int, int]:
        nodes, edges = (int(np.ceil(size / MULTIPLE)) * MULTIPLE for size in (sizes[0] + 1, max(sizes[1], 1)))
        return nodes, edges

    def fit(self, nodes: int, edges: int) -> tuple[int, int]:
        """Returns the smallest shape that fits these and one node more."""
        return next(shape for shape in self.shapes if nodes < shape[0] and edges <= shape[1])


class ResidentGraphs:
    """All molecules on one device, followed by an empty molecule, a blank atom and a blank edge for padding.

    `batches` returns what Graph.build returns for the concatenated molecules, with gathers alone.
    """

    def __init__(
        self,
        arrays: Arrays,
        edges: DirectedEdges,
        targets: Float[np.ndarray, " molecules"],
        device: torch.device,
        elements: Sequence[int] = tuple(ELEMENTS.values()),
    ) -> None:
        """`elements`: the atomic numbers that the atoms may have, ascending."""
        self.num_nodes, self.num_edges = arrays.num_atoms.astype(np.int64), edges.num_edges.astype(np.int64)
        self.device = device

        def tensor(array: np.ndarray, dtype: torch.dtype, blank: float = 0) -> Tensor:
            width = [(0, 0)] * (array.ndim - 1)
            padded = np.pad(array, [*width, (0, 1)], constant_values=blank)
            return torch.from_numpy(np.ascontiguousarray(padded)).to(device, dtype)

        sizes = np.stack([self.num_nodes, self.num_edges])
        starts = sizes.cumsum(1) - sizes
        self._sizes, self._starts = tensor(sizes, torch.int64), tensor(starts, torch.int64)
        self._blanks = torch.tensor([[len(arrays.numbers)], [len(edges.src)]], device=device)
        self._positions = tensor(arrays.positions.T, torch.float32).T.contiguous()
        element = np.searchsorted(elements, arrays.numbers)
        self._elements = tensor(element, torch.int32, blank=len(elements))
        first_atom_of_edge, first_edge_of_atom = starts[0].repeat(self.num_edges), starts[1].repeat(self.num_nodes)
        in_degrees = np.bincount(first_atom_of_edge + edges.dst, minlength=len(arrays.numbers))
        # Edges into earlier atoms of the same molecule.
        self._edges_before = tensor(in_degrees.cumsum() - in_degrees - first_edge_of_atom, torch.int32)
        self._ends = tensor(np.stack([edges.src, edges.dst]), torch.int32)
        self._reverse = tensor(edges.reverse, torch.int32)
        self._orders = tensor(edges.orders, torch.int32)
        self._targets = tensor(targets, torch.float32, blank=np.nan)
        self._node_features = features_of(elements).to(device)
        self._edge_features = torch.eye(EDGE_FEATURES + 1)[:, 1:].contiguous().to(device)

    @property
    def empty(self) -> int:
        """The row of the molecule without atoms, which pads batches."""
        return len(self.num_nodes)

    def batches(
        self, rows: Int[Tensor, "batches graphs"], counts: Sequence[int], shape: tuple[int, int]
    ) -> list[GraphBatch]:
        """Returns a batch of each row's molecules, of which the first `counts` are real, padded to `shape`.

        A gather for many batches takes a GPU hardly longer than for one.
        """
        nodes, edges = shape
        ends = self._sizes[:, rows].cumsum(2)
        ptr = torch.nn.functional.pad(ends, (1, 0))
        # Atom or edge index minus slot of the batch, by molecule; slots after the last molecule get blanks.
        blanks = self._blanks[:, :, None].expand(2, len(rows), 1)
        shift = torch.cat([self._starts[:, rows] - ptr[:, :, :-1], blanks], 2)
        node, of_node = _gather_index(nodes + 1, ends[0], shift[0], blank=len(self._elements) - 1)
        edge, of_edge = _gather_index(edges, ends[1], shift[1], blank=len(self._orders) - 1)
        first_node = ptr[0].clone()
        first_node[:, -1].fill_(nodes - 1)  # an assignment would synchronise with the device
        src, dst = self._ends[:, edge] + first_node.gather(1, of_edge)
        dst_ptr = self._edges_before[node] + ptr[1].gather(1, of_node)
        node = node[:, :-1]
        gathered = {
            "positions": self._positions[node],
            "src": src,
            "dst": dst,
            "src_order": self._reverse[edge] + torch.arange(edges, device=self.device),
            "node_features": self._node_features[self._elements[node]],
            "edge_features": self._edge_features[self._orders[edge]],
        }
        # Copied where rows do not begin at multiples of 16 bytes, for which Triton would compile other kernels.
        odd = [tensor.unbind() for tensor in (dst_ptr, ptr[0], self._targets[rows])]
        batches = []
        for number, count in enumerate(counts):
            edges_into, atoms, targets = (tensors[number].clone() for tensors in odd)
            batch = {name: tensor[number] for name, tensor in gathered.items()}
            ends_of = {"dst_ptr": edges_into, "src_ptr": edges_into, "graph_ptr": atoms}  # every edge has its reverse
            batches.append(GraphBatch(**batch, **ends_of, targets=targets, count=count))
        return batches


def features_of(elements: Sequence[int]) -> Float[Tensor, "elements_and_1 features"]:
    """Returns the features of an atom of each element, and of padding: one-hot, for those of QM9 with the number too.

    A linear layer on a one-hot vector is a learned embedding of the element.
    """
    one_hot = torch.eye(len(elements) + 1, len(elements))
    if list(elements) != list(ELEMENTS.values()):
        return one_hot
    return torch.cat([one_hot, torch.tensor([*elements, 0], dtype=torch.float32)[:, None]], 1)


def _gather_index(
    slots: int, ends: Int[Tensor, "batches graphs"], shift: Int[Tensor, "batches graphs_and_1"], blank: int
) -> tuple[Int[Tensor, "batches slots"], Int[Tensor, "batches slots"]]:
    """Returns the index of the atom or edge of each slot of a batch, and its molecule's number in the batch."""
    slot = torch.arange(slots, device=ends.device).repeat(len(ends), 1)
    molecule = torch.searchsorted(ends, slot, right=True)
    return (slot + shift.gather(1, molecule)).clamp_(max=blank), molecule


class GraphLoader(OrderedLoader[GraphBatch]):
    """Batches of the molecules `index`; the last one is padded with empty molecules.

    Every rank has the same number of steps, so the last batch of some ranks may have fewer molecules, or none.
    """

    def __init__(self, graphs: ResidentGraphs, buckets: Buckets, index: Tensor, batch_size: int, **order: Any) -> None:
        """`order`: shuffle, seed, rank and world_size, as for OrderedLoader."""
        super().__init__(index, batch_size, drop_last=False, **order)
        self.graphs, self.buckets = graphs, buckets
        self._rows = index
        self._plan: list[tuple[int, tuple[int, int]]] = []
        self._ahead: dict[int, GraphBatch] = {}  # by step

    def __len__(self) -> int:
        most = -(-len(self.index) // self.world_size)
        return -(-most // self.batch_size)

    def begin(self, order: Tensor) -> None:
        """Copies the order to the device and computes the size and shape of each batch on the host."""
        rows = torch.full((len(self), self.batch_size), self.graphs.empty)
        rows.view(-1)[: len(order)] = order
        nodes, edges = (
            np.append(sizes, 0)[rows.numpy()].sum(1) for sizes in (self.graphs.num_nodes, self.graphs.num_edges)
        )
        self._plan = [
            (min(max(len(order) - step * self.batch_size, 0), self.batch_size), self.buckets.fit(*size))
            for step, size in enumerate(zip(nodes.tolist(), edges.tolist(), strict=True))
        ]
        self._rows = rows.to(self.graphs.device)
        self._ahead = {}

    def batch(self, step: int) -> GraphBatch:
        if step not in self._ahead:
            shape = self._plan[step][1]
            most = max(1, min(AHEAD, SLOTS // shape[1]))
            together = takewhile(lambda plan: plan[1] == shape, self._plan[step : step + most])
            counts = [count for count, _ in together]
            batches = self.graphs.batches(self._rows[step : step + len(counts)], counts, shape)
            self._ahead = dict(enumerate(batches, step))
        return self._ahead.pop(step)
