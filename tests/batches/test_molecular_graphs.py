"""The graph: pointers, order of edges, errors."""

import pytest
import torch

from src.batches.molecular_graphs import Graph, GraphBatch, pointers
from src.errors import UserError


def random_graph() -> tuple[Graph, torch.Tensor, torch.Tensor]:
    """Two random molecules with an isolated atom and an empty molecule between them, and their unsorted edges."""
    generator = torch.Generator().manual_seed(0)
    ends = torch.cat(
        [torch.randint(0, 5, (2, 12), generator=generator), torch.randint(6, 9, (2, 4), generator=generator)], 1
    )
    ends = ends[:, torch.randperm(16, generator=generator)]
    src, dst = ends
    return Graph.build(torch.randn(9, 3, generator=generator), src, dst, [5, 0, 1, 3]), src, dst


def test_the_pointers_of_every_node_give_its_edges() -> None:
    graph, src, dst = random_graph()
    for node in range(9):
        into = range(int(graph.dst_ptr[node]), int(graph.dst_ptr[node + 1]))
        assert all(graph.dst[edge] == node for edge in into)
        assert [int(graph.src[edge]) for edge in into] == src[dst == node].tolist()  # in their original order
        out = graph.src_order[graph.src_ptr[node] : graph.src_ptr[node + 1]]
        assert (graph.src[out] == node).all()
        assert sorted(graph.dst[out].tolist()) == sorted(dst[src == node].tolist())
    assert graph.graph_ptr.tolist() == [0, 5, 5, 6, 9]
    assert sorted(graph.src_order.tolist()) == list(range(16))
    assert graph.src_order.dtype == graph.dst_ptr.dtype == graph.src.dtype == torch.int64


def test_a_single_molecule_needs_no_sizes() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    graph = Graph.build(torch.zeros(1, 3), none, none)
    assert graph.graph_ptr.tolist() == [0, 1] and graph.dst_ptr.tolist() == [0, 0] and graph.distinct
    nothing = Graph.build(torch.zeros(0, 3), none, none, [])
    assert nothing.graph_ptr.tolist() == [0] and nothing.src_ptr.tolist() == [0]


def test_a_graph_with_an_edge_of_length_0_is_not_distinct() -> None:
    positions = torch.tensor([[0.0, 0, 0], [1, 0, 0], [1, 0, 0]])
    first, second, third = torch.arange(3)[:, None]
    assert Graph.build(positions, first, second).distinct
    assert not Graph.build(positions, third, second).distinct


@pytest.mark.parametrize(
    ("src", "dst", "sizes", "message"),
    [(0, 3, [3, 2], r"edge 1 \(0 -> 3\)"), (0, 5, [3, 2], r"edge 1 \(0 -> 5\)"), (-1, 0, [3, 2], r"\(-1 -> 0\)"),
     (0, 1, [3, 1], "add up to 4 nodes, the positions have 5"), (0, 1, [6, -1], "add up to")],
)  # fmt: skip
def test_edges_between_molecules_are_refused(src: int, dst: int, sizes: list[int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Graph.build(torch.zeros(5, 3), torch.tensor([1, src]), torch.tensor([2, dst]), sizes)


def test_the_graph_of_a_batch_shares_its_tensors() -> None:
    graph, *_ = random_graph()
    batch = GraphBatch(*graph[:7], torch.zeros(9, 6), torch.zeros(16, 4), torch.zeros(4), count=4)
    assert all(one is other for one, other in zip(batch.graph[:7], graph[:7], strict=True)) and batch.graph.distinct


def test_pointers_are_the_starts_of_segments() -> None:
    assert pointers(torch.tensor([2, 0, 3])).tolist() == [0, 2, 2, 5]
