"""In place of DGL, which has no build for this torch and CUDA: the operations of NVIDIA's SE(3)-Transformer.

Edges are sorted by destination, so a sum over the edges into a node is one segmented reduction that reads each number
once and needs no atomic addition; its gradient is one gather. DGL computes the same by a permutation of the edges.
"""

import sys
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

DIFFERS = "DGL's operations by torch's segmented reductions over sorted edges: DGL has no build for this torch and CUDA"


class DGLGraph:
    """Molecules as one graph: what the network asks of DGL's class of this name.

    Args:
        src, dst: of each edge [edges], sorted by dst. sizes: atoms of each molecule.
    """

    def __init__(self, src: Tensor, dst: Tensor, sizes: Tensor) -> None:
        self.src, self.dst, self.sizes = src, dst, sizes
        nodes = int(sizes.sum())
        self.offsets = nn.functional.pad(dst.bincount(minlength=nodes).cumsum(0), (1, 0))
        self.molecules = nn.functional.pad(sizes.cumsum(0), (1, 0))
        self.edata: dict[str, Tensor] = {}
        self.ndata: dict[str, Tensor] = {}

    def edges(self) -> tuple[Tensor, Tensor]:
        return self.src, self.dst


class SumAtDestination(torch.autograd.Function):
    """Sums edges at their destination: [edges, ...] -> [nodes, ...]."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, offsets: Tensor, dst: Tensor) -> Tensor:
        ctx.save_for_backward(dst)
        return torch.segment_reduce(values.contiguous(), "sum", offsets=offsets, unsafe=True)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (dst,) = ctx.saved_tensors
        return grads[0].index_select(0, dst), None, None


class FromDestination(torch.autograd.Function):
    """Gives each edge its destination's values: [nodes, ...] -> [edges, ...]."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, offsets: Tensor, dst: Tensor) -> Tensor:
        ctx.save_for_backward(offsets)
        return values.index_select(0, dst)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (offsets,) = ctx.saved_tensors
        return torch.segment_reduce(grads[0].contiguous(), "sum", offsets=offsets, unsafe=True), None, None


def copy_e_sum(graph: DGLGraph, values: Tensor) -> Tensor:
    return SumAtDestination.apply(values, graph.offsets, graph.dst)


def e_dot_v(graph: DGLGraph, edges: Tensor, nodes: Tensor) -> Tensor:
    """Returns the product of each edge's values with its destination's: [edges, heads, size] -> [edges, heads, 1]."""
    with torch.autocast(edges.device.type, enabled=False):  # it would sum in float32, which DGL does not
        return (edges * FromDestination.apply(nodes, graph.offsets, graph.dst)).sum(-1, keepdim=True)


def edge_softmax(graph: DGLGraph, values: Tensor) -> Tensor:
    """Returns the softmax over the edges into each node."""
    with torch.no_grad():
        greatest = torch.segment_reduce(values.contiguous(), "max", offsets=graph.offsets, unsafe=True)
        shift = greatest.index_select(0, graph.dst)
    with torch.autocast(values.device.type, enabled=False):
        powers = (values - shift).exp()
        return powers / FromDestination.apply(copy_e_sum(graph, powers), graph.offsets, graph.dst)


class MaxPooling(nn.Module):
    """Returns the greatest value of each molecule: [nodes, ...] -> [molecules, ...]."""

    def forward(self, graph: DGLGraph, values: Tensor) -> Tensor:
        return torch.segment_reduce(values.contiguous(), "max", offsets=graph.molecules, unsafe=True)


def install() -> None:
    """Makes these operations importable under DGL's names."""
    modules = {name: ModuleType(name) for name in ("dgl", "dgl.ops", "dgl.nn", "dgl.nn.pytorch", "dgl.data")}
    for name, module in modules.items():
        module.__path__ = []  # type: ignore[attr-defined]
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(modules[parent], child, module)
    contents = {
        "dgl": {"DGLGraph": DGLGraph},
        "dgl.ops": {"copy_e_sum": copy_e_sum, "e_dot_v": e_dot_v, "edge_softmax": edge_softmax},
        "dgl.nn.pytorch": {"MaxPooling": MaxPooling, "AvgPooling": MaxPooling},
        "dgl.data": {"QM9EdgeDataset": object},
    }
    for name, values in contents.items():
        vars(modules[name]).update(values)
    sys.modules.update(modules)
