"""Random molecules of a few atoms, their features, and rotations of both."""

from collections.abc import Mapping
from functools import cache

import torch
from e3nn import o3
from torch import Tensor

from src.batches.molecular_graphs import Graph
from src.models.se3_transformer.fiber import Fiber

ByDegree = dict[int, Tensor]
ANGLES = torch.tensor([0.7, 1.9, -2.3], dtype=torch.float64)  # about e3nn's axes y, x and y
SHIFT = torch.tensor([1.5, -2.0, 0.7], dtype=torch.float64)
SIZES = (6, 1, 4)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_graph(sizes: tuple[int, ...] = SIZES, dtype: torch.dtype = torch.float64, seed: int = 0) -> Graph:
    """Returns molecules with about half of all edges, in both directions; the first one's last atom has none."""
    generator = seeded(seed)
    positions = 1.5 * torch.randn(sum(sizes), 3, dtype=torch.float64, generator=generator)
    molecule = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    joined = (molecule[:, None] == molecule) & (torch.rand(sum(sizes), sum(sizes), generator=generator) < 0.6)
    joined.fill_diagonal_(False)
    joined[sizes[0] - 1] = False
    joined |= joined.T.clone()
    joined[sizes[0] - 1] = joined[:, sizes[0] - 1] = False
    src, dst = joined.nonzero().T
    return Graph.build(positions.to(dtype), src, dst, sizes)


def random_features(fiber: Fiber, rows: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> ByDegree:
    """Returns {degree: [rows, channels, 2 degree + 1]}."""
    generator = seeded(seed)
    return {
        degree: torch.randn(rows, channels, 2 * degree + 1, dtype=torch.float64, generator=generator).to(dtype)
        for degree, channels in fiber.items()
    }


def padded(graph: Graph, nodes: int, edges: int, graphs: int) -> Graph:
    """Returns the graph with padded nodes, edges and molecules appended."""
    last = len(graph.positions) + nodes - 1
    ends, total = torch.full((edges,), last), len(graph.src)
    return Graph(
        positions=torch.cat([graph.positions, graph.positions.new_zeros(nodes, 3)]),
        src=torch.cat([graph.src, ends]),
        dst=torch.cat([graph.dst, ends]),
        dst_ptr=torch.cat([graph.dst_ptr, graph.dst_ptr[-1:].expand(nodes)]),
        src_order=torch.cat([graph.src_order, torch.arange(total, total + edges)]),
        src_ptr=torch.cat([graph.src_ptr, graph.src_ptr[-1:].expand(nodes)]),
        graph_ptr=torch.cat([graph.graph_ptr, graph.graph_ptr[-1:].expand(graphs)]),
        distinct=graph.distinct,
    )


def moved(graph: Graph) -> Graph:
    """Returns the graph rotated and shifted."""
    rotation = o3.angles_to_matrix(*ANGLES)
    positions = graph.positions.double() @ rotation.T + SHIFT
    return graph._replace(positions=positions.to(graph.positions.dtype))


@cache
def wigner_matrix(degree: int) -> Tensor:
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # e3nn creates its generators in the default dtype
    try:
        return o3.wigner_D(degree, *ANGLES)
    finally:
        torch.set_default_dtype(default)


def rotated(features: Mapping[int, Tensor]) -> ByDegree:
    """Returns the features rotated as `moved` rotates positions."""
    return {d: (feature.double() @ wigner_matrix(d).T).to(feature.dtype) for d, feature in features.items()}


def rotated_flat(features: Tensor, fiber: Fiber) -> Tensor:
    return fiber.flatten(rotated(fiber.unflatten(features)))
