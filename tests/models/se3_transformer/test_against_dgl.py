"""Graph operations and conversions against DGL. Collected only if DGL is installed."""

import math

import dgl  # pyright: ignore[reportMissingImports]
import dgl.ops  # pyright: ignore[reportMissingImports]
import pytest
import torch
from torch.testing import assert_close

from src.errors import UserError
from src.models.se3_transformer import Fiber, from_dgl, pool, to_dgl
from src.models.se3_transformer.attention import attend, segment_softmax
from src.models.se3_transformer.pooling import Pooling
from tests.support.se3_small import SIZES, padded, random_features, random_graph, seeded

NODES, EDGES = Fiber({0: 6, 1: 2}), Fiber({0: 4, 2: 1})


def test_to_dgl_drops_padding() -> None:
    graph = random_graph()
    full = padded(graph, nodes=2, edges=3, graphs=1)
    nodes, edges = random_features(NODES, len(full.positions)), random_features(EDGES, len(full.src))
    dgl_graph, node_features, edge_features = to_dgl(full, nodes, edges)
    assert dgl_graph.batch_num_nodes().tolist() == [*SIZES, 0]
    assert dgl_graph.num_nodes() == 11 and dgl_graph.num_edges() == len(graph.src)
    src, dst = dgl_graph.edges()
    assert torch.equal(src, graph.src) and torch.equal(dst, graph.dst)
    assert_close(dgl_graph.edata["rel_pos"], graph.positions[dst] - graph.positions[src])
    assert {name: tuple(x.shape) for name, x in node_features.items()} == {"0": (11, 6, 1), "1": (11, 2, 3)}
    assert {name: tuple(x.shape[1:]) for name, x in edge_features.items()} == {"0": (4, 1), "2": (1, 5)}
    assert [part.num_edges() for part in dgl.unbatch(dgl_graph)] == dgl_graph.batch_num_edges().tolist()


def test_a_graph_is_the_same_after_to_dgl_and_from_dgl() -> None:
    graph = random_graph()
    nodes, edges = random_features(NODES, len(graph.positions)), random_features(EDGES, len(graph.src))
    again, node_features, edge_features = from_dgl(*to_dgl(graph, nodes, edges))
    assert again.distinct == graph.distinct
    assert_close(tuple(again), tuple(graph), rtol=0, atol=0)
    assert_close((node_features, edge_features), (nodes, edges), rtol=0, atol=0)


def test_from_dgl_sorts_edges_and_their_features() -> None:
    src, dst = torch.tensor([0, 0, 1, 2, 3, 4]), torch.tensor([1, 2, 0, 0, 4, 3])
    dgl_graph = dgl.batch([dgl.graph((src[:4], dst[:4])), dgl.graph((src[4:] - 3, dst[4:] - 3))])
    dgl_graph.ndata["pos"] = torch.randn(5, 3, generator=seeded(0))
    graph, _, edges = from_dgl(dgl_graph, {}, {"0": torch.stack([src, dst], 1)[:, :, None].float()})
    assert torch.equal(edges[0][:, :, 0].long(), torch.stack([graph.src, graph.dst], 1))
    assert graph.graph_ptr.tolist() == [0, 3, 5] and graph.dst.tolist() == [0, 0, 1, 2, 3, 4]


def test_a_graph_without_positions_is_refused() -> None:
    with pytest.raises(UserError, match="has no ndata 'pos'"):
        from_dgl(dgl.graph(([0], [1])), {})


def test_softmax_over_edges_equals_dgls() -> None:
    graph = random_graph()
    logits = torch.randn(len(graph.src), 3, dtype=torch.float64, generator=seeded(1))
    expected = dgl.ops.edge_softmax(to_dgl(graph, {})[0], logits)
    assert_close(segment_softmax(logits, graph.dst, len(graph.positions)), expected, rtol=0, atol=1e-12)


def test_attention_equals_dgls_operations() -> None:
    graph, fiber, heads = random_graph(), Fiber.create(3, 4), 2
    dgl_graph = to_dgl(graph, {})[0]
    edges, nodes = len(graph.src), len(graph.positions)
    value, key, query = (random_features(fiber, n, seed=seed) for seed, n in enumerate((edges, edges, nodes)))
    keys, queries = (torch.cat([x.reshape(len(x), heads, -1) for x in part.values()], 2) for part in (key, query))
    logits = dgl.ops.e_dot_v(dgl_graph, keys, queries).squeeze(2) / math.sqrt(fiber.num_features)
    weights = dgl.ops.edge_softmax(dgl_graph, logits)
    weighted = {d: (weights[:, :, None, None] * x.unflatten(1, (heads, -1))).flatten(1, 2) for d, x in value.items()}
    expected = {degree: dgl.ops.copy_e_sum(dgl_graph, x) for degree, x in weighted.items()}
    flat_value, flat_key, flat_query = (fiber.flatten(x) for x in (value, key, query))
    result = attend(flat_value, flat_key, flat_query, graph, heads, fiber, fiber)
    assert_close(fiber.unflatten(result), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["max", "mean", "sum"])
def test_pooling_equals_dgls(kind: Pooling) -> None:
    graph = random_graph()
    dgl_graph = to_dgl(graph, {})[0]
    dgl_graph.ndata["x"] = torch.randn(len(graph.positions), 4, dtype=torch.float64, generator=seeded(2))
    expected = dgl.readout_nodes(dgl_graph, "x", op=kind)
    assert_close(pool(dgl_graph.ndata["x"], graph.graph_ptr, kind), expected, rtol=0, atol=1e-12)
