"""Attention against a loop over nodes and heads; equivariance and gradients of the block, plain and fast."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from src.batches.molecular_graphs import Graph
from src.errors import UserError
from src.gpu.replace import Kernels, replace_submodules
from src.models.se3_transformer import AttentionBlockSE3, AttentionSE3, Fiber, Geometry, fast
from src.models.se3_transformer.attention import attend
from tests.support.se3_small import moved, padded, random_features, random_graph, rotated, rotated_flat, seeded

FIBERS = [
    (Fiber.create(3, 4), Fiber.create(3, 4)),
    (Fiber({0: 4}), Fiber.create(4, 4)),
    (Fiber({0: 2, 2: 6}), Fiber({0: 4, 1: 2, 2: 6})),
]  # (keys, values)
HEADS = 2


def inputs(graph: Graph, key_fiber: Fiber, value_fiber: Fiber, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Returns values, keys and queries."""
    edges, nodes = len(graph.src), len(graph.positions)
    rows = (value_fiber, edges), (key_fiber, edges), (key_fiber, nodes)
    return [fiber.flatten(random_features(fiber, n, dtype, seed)) for seed, (fiber, n) in enumerate(rows)]


def attention_of_each_node(
    value: Tensor, key: Tensor, query: Tensor, graph: Graph, key_fiber: Fiber, value_fiber: Fiber
) -> Tensor:
    """Computes the attention of Fuchs et al. 2020, one node and head at a time."""
    values, keys, queries = value_fiber.unflatten(value), key_fiber.unflatten(key), key_fiber.unflatten(query)
    columns = sum(channels * (2 * degree + 1) for degree, channels in key_fiber.items())
    result = {d: torch.zeros(len(query), c, 2 * d + 1, dtype=value.dtype) for d, c in value_fiber.items()}
    for node in range(len(query)):
        edges = [edge for edge in range(int(graph.dst_ptr[-1])) if graph.dst[edge] == node]
        for head in range(HEADS if edges else 0):
            value_slices = {d: slice(head * c // HEADS, (head + 1) * c // HEADS) for d, c in value_fiber.items()}
            key_slices = {d: slice(head * c // HEADS, (head + 1) * c // HEADS) for d, c in key_fiber.items()}
            products = [(keys[d][edges, s] * queries[d][node, s]).sum((1, 2)) for d, s in key_slices.items()]
            logits = torch.stack(products).sum(0) / math.sqrt(columns)
            for edge, weight in zip(edges, logits.softmax(0), strict=True):
                for degree, channels in value_slices.items():
                    result[degree][node, channels] += weight * values[degree][edge, channels]
    return value_fiber.flatten(result)


@pytest.mark.parametrize(("key_fiber", "value_fiber"), FIBERS)
def test_attention_equals_a_loop_over_nodes_and_heads(key_fiber: Fiber, value_fiber: Fiber) -> None:
    graph = random_graph()
    value, key, query = inputs(graph, key_fiber, value_fiber)
    result = AttentionSE3(HEADS, key_fiber, value_fiber)(value, key, query, graph)
    expected = attention_of_each_node(value, key, query, graph, key_fiber, value_fiber)
    assert_close(result, expected, rtol=0, atol=1e-12)
    isolated = graph.dst_ptr.diff() == 0
    assert isolated.sum() == 2 and not result[isolated].any() and result[~isolated].all()


@pytest.mark.parametrize(("key_fiber", "value_fiber"), FIBERS)
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_attention_is_equivariant(key_fiber: Fiber, value_fiber: Fiber, dtype: torch.dtype, atol: float) -> None:
    graph, attention = random_graph(dtype=dtype), AttentionSE3(HEADS, key_fiber, value_fiber)
    value, key, query = inputs(graph, key_fiber, value_fiber, dtype)
    result = attention(value, key, query, graph)
    arguments = rotated_flat(value, value_fiber), rotated_flat(key, key_fiber), rotated_flat(query, key_fiber)
    assert_close(attention(*arguments, graph), rotated_flat(result, value_fiber), rtol=0, atol=atol)


def test_padded_edges_have_no_effect_and_no_gradient() -> None:
    fiber, graph = Fiber.create(2, 4), random_graph()
    full = padded(graph, nodes=1, edges=3, graphs=2)
    tensors = [x.requires_grad_() for x in inputs(full, fiber, fiber)]
    value, key, query = tensors
    result = attend(value, key, query, full, HEADS, fiber, fiber)
    real = len(graph.src)
    expected = attend(value[:real], key[:real], query[:-1], graph, HEADS, fiber, fiber)
    assert_close(result[:-1], expected, rtol=0, atol=1e-14)
    assert not result[-1].any()
    result.square().sum().backward()
    assert all(x.grad is not None and x.grad.any() for x in tensors)
    for x, rows in ((value, real), (key, real), (query, len(query) - 1)):
        assert x.grad is not None and not x.grad[rows:].any()


def test_softmax_of_large_logits_is_finite() -> None:
    fiber, graph = Fiber.create(2, 4), random_graph()
    value, key, query = inputs(graph, fiber, fiber)
    key = (1e4 * key).requires_grad_()
    result = attend(value, key, query, graph, HEADS, fiber, fiber)
    result.sum().backward()
    assert result.isfinite().all() and key.grad is not None and key.grad.isfinite().all()
    assert result.abs().max() <= value.abs().max()


def test_float16_attention_sums_in_float32() -> None:
    fiber, nodes = Fiber({0: 8}), 64
    src, dst = (torch.arange(nodes) != torch.arange(nodes)[:, None]).nonzero().T
    graph = Graph.build(torch.randn(nodes, 3, generator=seeded(0)), src, dst)
    value, key, query = (x.half() for x in inputs(graph, fiber, fiber, torch.float32))
    result = attend(value, key, 50 * query, graph, HEADS, fiber, fiber)
    expected = attend(value.double(), key.double(), (50 * query).double(), graph, HEADS, fiber, fiber)
    assert result.dtype == torch.float16
    assert_close(result.double(), expected, rtol=2**-10, atol=1e-4)


@pytest.mark.parametrize(("key_fiber", "value_fiber"), FIBERS)
def test_gradients_of_attention_equal_numerical_ones(key_fiber: Fiber, value_fiber: Fiber) -> None:
    graph = random_graph((3, 1, 2))
    tensors = [x.requires_grad_() for x in inputs(graph, key_fiber, value_fiber)]

    def function(value: Tensor, key: Tensor, query: Tensor) -> Tensor:
        return attend(value, key, query, graph, HEADS, value_fiber, key_fiber)

    assert torch.autograd.gradcheck(function, tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, tensors, fast_mode=True)


BLOCKS = [
    (Fiber({0: 5}), Fiber.create(4, 8), Fiber({})),
    (Fiber.create(3, 8), Fiber.create(3, 8), Fiber({1: 2})),
    (Fiber({0: 3, 1: 2, 2: 1}), Fiber({0: 8, 1: 4}), Fiber({})),
]


@pytest.mark.parametrize("kernels", ["auto", "off"])
@pytest.mark.parametrize(("fiber_in", "fiber_out", "edge_fiber"), BLOCKS)
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_block_is_equivariant(
    fiber_in: Fiber, fiber_out: Fiber, edge_fiber: Fiber, kernels: Kernels, dtype: torch.dtype, atol: float
) -> None:
    torch.manual_seed(0)
    degree = max(fiber_in.max_degree, fiber_out.max_degree)
    block = AttentionBlockSE3(fiber_in, fiber_out, 2, degree, num_heads=HEADS, edge_fiber=edge_fiber).to(dtype)
    replace_submodules(block, fast.REPLACEMENTS, kernels)
    graph = random_graph(dtype=dtype)
    features = fiber_in.flatten(random_features(fiber_in, len(graph.positions), dtype))
    edges = random_features(edge_fiber, len(graph.src), dtype)
    scalars = torch.randn(len(graph.src), 2, dtype=dtype, generator=seeded(4))
    result = block(features, Geometry.of(graph, scalars, degree), edges)
    geometry = Geometry.of(moved(graph), scalars, degree)
    assert_close(
        block(rotated_flat(features, fiber_in), geometry, rotated(edges)),
        rotated_flat(result, fiber_out),
        rtol=0,
        atol=atol,
    )


def test_gradient_of_a_block_equals_the_numerical_one() -> None:
    torch.manual_seed(0)
    fiber = Fiber.create(2, 4)
    block = AttentionBlockSE3(fiber, fiber, 0, 1, num_heads=HEADS).double()
    graph = random_graph((3, 1))
    features = fiber.flatten(random_features(fiber, 4)).requires_grad_()
    scalars = torch.zeros(len(graph.src), 0, dtype=torch.float64)
    positions = graph.positions.requires_grad_()

    def function(features: Tensor, positions: Tensor, *values: Tensor) -> Tensor:
        geometry = Geometry.of(graph._replace(positions=positions), scalars, 1)
        named = dict(zip(dict(block.named_parameters()), values, strict=True))
        return torch.func.functional_call(block, named, (features, geometry))

    assert torch.autograd.gradcheck(function, (features, positions, *block.parameters()), fast_mode=True)


def test_heads_that_do_not_divide_the_channels_are_refused() -> None:
    with pytest.raises(UserError, match="num_heads=3 does not divide the 4 attention channels of degree 1"):
        AttentionSE3(3, Fiber({0: 3}), Fiber({0: 3, 1: 4}))


def test_a_block_without_a_common_degree_is_refused() -> None:
    with pytest.raises(UserError, match="have no degree in common"):
        AttentionBlockSE3(Fiber({1: 4}), Fiber({0: 4}), 0, 1)
