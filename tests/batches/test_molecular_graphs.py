"""The graph: pointers, orders, what is refused."""

import pytest
import torch

from src.batches.molecular_graphs import Graph, GraphBatch, pointers
from src.errors import UserError


def random_graph() -> tuple[Graph, torch.Tensor, torch.Tensor]:
    """Two random molecules with an isolated atom and an empty molecule between them, and their edges as drawn."""
    generator = torch.Generator().manual_seed(0)
    ends = torch.cat(
        [torch.randint(0, 5, (2, 12), generator=generator), torch.randint(6, 9, (2, 4), generator=generator)], 1
    )
    ends = ends[:, torch.randperm(16, generator=generator)]
    src, dst = ends
    return Graph.build(torch.randn(9, 3, generator=generator), src, dst, [5, 0, 1, 3]), src, dst


def test_every_node_finds_its_edges() -> None:
    graph, src, dst = random_graph()
    for node in range(9):
        into = range(int(graph.dst_ptr[node]), int(graph.dst_ptr[node + 1]))
        assert all(graph.dst[edge] == node for edge in into)
        assert [int(graph.src[edge]) for edge in into] == src[dst == node].tolist()  # in the order they were given
        out = graph.src_order[graph.src_ptr[node] : graph.src_ptr[node + 1]]
        assert (graph.src[out] == node).all()
        assert sorted(graph.dst[out].tolist()) == sorted(dst[src == node].tolist())
    assert graph.graph_ptr.tolist() == [0, 5, 5, 6, 9]
    assert sorted(graph.src_order.tolist()) == list(range(16))
    assert graph.src_order.dtype == graph.dst_ptr.dtype == graph.src.dtype == torch.int64


def test_a_molecule_alone_needs_no_sizes() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    graph = Graph.build(torch.zeros(1, 3), none, none)
    assert graph.graph_ptr.tolist() == [0, 1] and graph.dst_ptr.tolist() == [0, 0] and graph.distinct
    nothing = Graph.build(torch.zeros(0, 3), none, none, [])
    assert nothing.graph_ptr.tolist() == [0] and nothing.src_ptr.tolist() == [0]


def test_atoms_at_one_place_are_noticed_where_an_edge_joins_them() -> None:
    positions = torch.tensor([[0.0, 0, 0], [1, 0, 0], [1, 0, 0]])
    first, second, third = torch.arange(3)[:, None]
    assert Graph.build(positions, first, second).distinct
    assert not Graph.build(positions, third, second).distinct


@pytest.mark.parametrize(
    ("src", "dst", "sizes", "said"),
    [(0, 3, [3, 2], r"edge 1 \(0 -> 3\)"), (0, 5, [3, 2], r"edge 1 \(0 -> 5\)"), (-1, 0, [3, 2], r"\(-1 -> 0\)"),
     (0, 1, [3, 1], "add up to 4 nodes, the positions have 5"), (0, 1, [6, -1], "add up to")],
)  # fmt: skip
def test_edges_that_leave_their_molecule_are_refused(src: int, dst: int, sizes: list[int], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Graph.build(torch.zeros(5, 3), torch.tensor([1, src]), torch.tensor([2, dst]), sizes)


def test_a_batch_gives_its_graph() -> None:
    graph, *_ = random_graph()
    batch = GraphBatch(*graph[:7], torch.zeros(9, 6), torch.zeros(16, 4), torch.zeros(4), count=4)
    assert all(ours is theirs for ours, theirs in zip(batch.graph[:7], graph[:7], strict=True)) and batch.graph.distinct


def test_pointers_are_where_segments_begin() -> None:
    assert pointers(torch.tensor([2, 0, 3])).tolist() == [0, 2, 2, 5]
