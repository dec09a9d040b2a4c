"""Equivariance of the network, independence of order, batch and padding, agreement of plain and fast modules."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from src.batches.molecular_graphs import Graph
from src.gpu.replace import Kernels
from src.gpu.triton_helpers import note
from src.models.se3_transformer import Fiber, SE3Transformer, SE3TransformerPooled, fast
from src.models.se3_transformer.pooling import Pooling
from src.models.se3_transformer.radial import Sharing
from tests.support.se3_small import (
    SHIFT,
    SIZES,
    ByDegree,
    moved,
    padded,
    random_features,
    random_graph,
    rotated,
    seeded,
)

IN, EDGE = Fiber({0: 5, 1: 2}), Fiber({0: 3, 1: 2})
PRECISIONS = pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
KERNELS = pytest.mark.parametrize("kernels", ["auto", "off"])


def small_network(
    fiber_out: Fiber, fiber_hidden: Fiber, dtype: torch.dtype, kernels: Kernels = "auto", **arguments: Any
) -> SE3Transformer:
    torch.manual_seed(0)
    arguments = {"fiber_edge": EDGE, "num_layers": 2, "num_heads": 2, **arguments}
    network = SE3Transformer(IN, fiber_out, fiber_hidden, **arguments)
    for name, parameter in network.named_parameters():
        if name.startswith("norms") and name.endswith("bias"):
            parameter.data.fill_(0.5)  # keeps most ReLUs active, so that high degrees contribute
    return fast.accelerate(network.to(dtype), kernels)


def inputs(graph: Graph) -> tuple[ByDegree, ByDegree]:
    dtype = graph.positions.dtype
    return random_features(IN, len(graph.positions), dtype), random_features(EDGE, len(graph.src), dtype, 2)


@KERNELS
@PRECISIONS
@pytest.mark.parametrize("sharing", ["full", "pairwise"])
@pytest.mark.parametrize("num_degrees", [1, 2, 3, 4])
def test_network_is_equivariant(
    num_degrees: int, sharing: Sharing, dtype: torch.dtype, atol: float, kernels: Kernels
) -> None:
    """For a batch of a molecule with an isolated atom, a single atom, and another molecule."""
    out = Fiber.create(4, 3)
    network = small_network(out, Fiber.create(num_degrees, 8), dtype, sharing=sharing, kernels=kernels)
    graph = random_graph(dtype=dtype)
    nodes, edges = inputs(graph)
    result = network(graph, nodes, edges)
    assert all(feature.std() > 0.01 for feature in result.values())
    assert_close(network(moved(graph), rotated(nodes), rotated(edges)), rotated(result), rtol=0, atol=atol)


@pytest.mark.slow
@KERNELS
@PRECISIONS
def test_the_published_model_is_equivariant(dtype: torch.dtype, atol: float, kernels: Kernels) -> None:
    torch.manual_seed(0)
    network = fast.accelerate(SE3TransformerPooled().to(dtype), kernels)
    graph = random_graph(dtype=dtype)
    nodes, edges = random_features(Fiber({0: 6}), 11, dtype), random_features(Fiber({0: 4}), len(graph.src), dtype)
    with torch.no_grad():
        prediction, again = network(graph, nodes, edges), network(moved(graph), nodes, edges)
        assert_close(again, prediction, rtol=0, atol=atol)
        network.transformer.pooling = None
        of_nodes = network.transformer(graph, nodes, edges)
        assert_close(network.transformer(moved(graph), nodes, edges), of_nodes, rtol=0, atol=atol)


@KERNELS
@PRECISIONS
@pytest.mark.parametrize("sizes", [(1,), (1, 1, 1), (2, 1), (5,)])
def test_network_is_equivariant_for_few_atoms(
    sizes: tuple[int, ...], dtype: torch.dtype, atol: float, kernels: Kernels
) -> None:
    network = small_network(Fiber.create(3, 2), Fiber.create(3, 4), dtype, kernels=kernels)
    graph = random_graph(sizes, dtype)
    nodes, edges = inputs(graph)
    result = network(graph, nodes, edges)
    assert all(feature.isfinite().all() for feature in result.values())
    assert_close(network(moved(graph), rotated(nodes), rotated(edges)), rotated(result), rtol=0, atol=atol)


@KERNELS
@PRECISIONS
def test_network_with_unequal_channels_is_equivariant(dtype: torch.dtype, atol: float, kernels: Kernels) -> None:
    hidden = Fiber({0: 8, 1: 4, 3: 12})
    network = small_network(Fiber({0: 2, 2: 3}), hidden, dtype, kernels=kernels)
    graph = random_graph(dtype=dtype)
    nodes, edges = inputs(graph)
    result = network(graph, nodes, edges)
    assert result[2].std() > 0.01
    assert_close(network(moved(graph), rotated(nodes), rotated(edges)), rotated(result), rtol=0, atol=atol)


@PRECISIONS
def test_coincident_atoms_use_plain_convolutions_and_stay_equivariant(
    dtype: torch.dtype, atol: float, caplog: pytest.LogCaptureFixture
) -> None:
    note.cache_clear()
    network = small_network(Fiber.create(3, 2), Fiber.create(3, 4), dtype)
    graph = random_graph(dtype=dtype)
    positions = graph.positions.clone()
    positions[graph.dst[0]] = positions[graph.src[0]]
    graph = Graph.build(positions, graph.src, graph.dst, SIZES)
    assert not graph.distinct
    nodes, edges = inputs(graph)
    result = network(graph, nodes, edges)
    assert all(feature.isfinite().all() for feature in result.values())
    assert_close(network(moved(graph), rotated(nodes), rotated(edges)), rotated(result), rtol=0, atol=atol)
    assert [record.levelname for record in caplog.records] == ["WARNING"] and "has length 0" in caplog.text


@KERNELS
def test_order_of_atoms_and_edges_does_not_matter(kernels: Kernels) -> None:
    network = small_network(Fiber.create(3, 2), Fiber.create(3, 4), torch.float64, kernels=kernels)
    graph = random_graph()
    nodes, edges = inputs(graph)
    result = network(graph, nodes, edges)
    within = [torch.randperm(size, generator=seeded(size)) for size in SIZES]
    order = torch.cat([first + part for first, part in zip((0, 6, 7), within, strict=True)])
    shuffle = torch.randperm(len(graph.src), generator=seeded(9))
    new_index = order.argsort()
    src, dst = new_index[graph.src[shuffle]], new_index[graph.dst[shuffle]]
    shuffled = Graph.build(graph.positions[order], src, dst, SIZES)
    edges = {degree: feature[shuffle][dst.argsort(stable=True)] for degree, feature in edges.items()}
    expected = {degree: feature[order] for degree, feature in result.items()}
    permuted = network(shuffled, {degree: feature[order] for degree, feature in nodes.items()}, edges)
    assert_close(permuted, expected, rtol=0, atol=1e-11)


def pooled_network(kernels: Kernels = "auto", **arguments: Any) -> SE3TransformerPooled:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"num_layers": 2, "num_degrees": 3, "num_channels": 8, "num_heads": 2, "output_dim": 3}
    return fast.accelerate(SE3TransformerPooled(**(sizes | arguments)).double(), kernels)


def scalars(graph: Graph) -> tuple[Tensor, Tensor]:
    rows = len(graph.positions), len(graph.src)
    return tuple(torch.rand(n, c, dtype=torch.float64, generator=seeded(c)) for n, c in zip(rows, (6, 4), strict=True))  # type: ignore[return-value]


@KERNELS
@pytest.mark.parametrize("pooling", ["max", "mean", "sum"])
def test_a_prediction_does_not_depend_on_the_rest_of_the_batch(pooling: Pooling, kernels: Kernels) -> None:
    network, graph = pooled_network(pooling=pooling, kernels=kernels), random_graph()
    nodes, edges = scalars(graph)
    together = network(graph, nodes, edges)
    for number in range(len(SIZES)):
        first, last = graph.graph_ptr[number], graph.graph_ptr[number + 1]
        span = slice(graph.dst_ptr[first], graph.dst_ptr[last])
        alone = Graph.build(graph.positions[first:last], graph.src[span] - first, graph.dst[span] - first)
        assert_close(network(alone, nodes[first:last], edges[span]), together[number : number + 1], rtol=0, atol=1e-11)


@KERNELS
@pytest.mark.parametrize("pooling", ["max", "mean", "sum"])
def test_padding_changes_neither_predictions_nor_gradients(pooling: Pooling, kernels: Kernels) -> None:
    """Even if the padding's features are not zero."""
    network, graph = pooled_network(pooling=pooling, kernels=kernels), random_graph()
    nodes, edges = scalars(graph)
    expected = network(graph, nodes, edges)
    gradients = torch.autograd.grad(expected.square().sum(), list(network.parameters()))
    full = padded(graph, nodes=2, edges=3, graphs=2)
    nodes, edges = torch.cat([nodes, torch.ones(2, 6).double()]), torch.cat([edges, torch.ones(3, 4).double()])
    result = network(full, nodes, edges)
    assert_close(result[:3], expected, rtol=0, atol=1e-11)
    assert_close(result[3:], network.head(torch.zeros(2, 24).double()), rtol=0, atol=1e-14)
    padded_gradients = torch.autograd.grad(result[:3].square().sum(), list(network.parameters()))
    assert_close(padded_gradients, gradients, rtol=0, atol=1e-10)


@pytest.mark.parametrize("sharing", ["full", "pairwise"])
@pytest.mark.parametrize("hidden", [Fiber.create(4, 4), Fiber({0: 8, 1: 4, 3: 12})])
def test_plain_and_fast_modules_agree_in_outputs_and_gradients(hidden: Fiber, sharing: Sharing) -> None:
    graph = random_graph()
    nodes, edges = inputs(graph)
    nodes = {degree: feature.requires_grad_() for degree, feature in nodes.items()}
    results = []
    for kernels in ("auto", "off"):
        network = small_network(Fiber.create(3, 2), hidden, torch.float64, sharing=sharing, kernels=kernels)
        output = network(graph, nodes, edges)
        loss = torch.stack([feature.square().sum() for feature in output.values()]).sum()
        inner = [*network.parameters(), *nodes.values()]
        results.append((output, torch.autograd.grad(loss, inner)))
    assert_close(results[0], results[1], rtol=1e-9, atol=1e-10)


@KERNELS
@pytest.mark.parametrize("num_degrees", [1, 3])
def test_low_memory_gives_the_same_outputs_and_gradients(num_degrees: int, kernels: Kernels) -> None:
    graph = random_graph()
    results = []
    for low_memory in (False, True):
        network = pooled_network(num_degrees=num_degrees, low_memory=low_memory, kernels=kernels)
        output = network(graph, *scalars(graph))
        results.append((output, torch.autograd.grad(output.square().sum(), list(network.parameters()))))
    assert_close(results[1], results[0], rtol=0, atol=1e-12)


@KERNELS
def test_low_memory_saves_fewer_tensors(kernels: Kernels) -> None:
    graph, kept = random_graph((12, 12)), []
    for low_memory in (False, True):
        network, sizes = pooled_network(low_memory=low_memory, kernels=kernels), []

        def keep(tensor: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            network(graph, *scalars(graph))
        kept.append(sum(sizes))
    assert kept[1] < kept[0] / 2


def test_a_shift_changes_nothing() -> None:
    network, graph = pooled_network(), random_graph()
    shifted = graph._replace(positions=graph.positions + 100 * SHIFT)
    assert_close(network(shifted, *scalars(graph)), network(graph, *scalars(graph)), rtol=0, atol=1e-10)
