"""The fused kernels on a GPU against plain torch in float64: half, bfloat16, TF32 and full single precision."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from src.batches.molecular_graphs import Graph
from src.gpu import triton_helpers
from src.gpu.replace import Kernels
from src.models.se3_transformer import Fiber, SE3TransformerPooled, fast
from src.models.se3_transformer.fast.conv import kernels_for
from src.models.se3_transformer.fast.frames import EdgeLayout, edge_rotations, wigner
from tests.support.kernel_differences import error, random
from tests.support.se3_kernels import (
    attention,
    contraction,
    gathering,
    hidden_layer,
    multiplying,
    normalising,
    plan_of,
    ragged,
    summing,
)

# torch warns about TF32, with other words in every release.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

CUDA = "cuda"


class Precision(NamedTuple):
    """Error bounds. `product`: of products of many terms; `short`: of kernels that use TF32x3 or no products.

    Errors are the largest difference relative to the largest number.
    """

    name: str
    dtype: torch.dtype
    matmul: str
    product: float
    short: float


PRECISIONS = [
    Precision("single", torch.float32, "highest", 1e-5, 1e-5),
    Precision("TF32", torch.float32, "high", 3e-3, 2e-5),
    Precision("half", torch.float16, "highest", 3e-3, 3e-3),
    Precision("bfloat16", torch.bfloat16, "highest", 1e-2, 2.5e-2),
]


@pytest.fixture(params=PRECISIONS, ids=lambda precision: precision.name)
def precision(request: pytest.FixtureRequest) -> Iterator[Precision]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param.matmul)
    yield request.param
    torch.set_float32_matmul_precision(before)


@pytest.fixture(scope="module")
def fused() -> Any:
    for name in ("contraction", "edges", "linear", "norm", "radial", "rotations"):
        import_module(f"{fast.__name__}.{name}")
    return fast


@pytest.fixture(scope="module")
def graph() -> Graph:
    """Returns a graph of about 4000 edges, with isolated nodes and padding."""
    return ragged([18, 1, 9, 25, 2] * 8, pad=(37, 211), device=CUDA)


def layout(degrees: int, channels: int, max_m: int | None = None) -> EdgeLayout:
    return EdgeLayout(Fiber.create(degrees, channels), degrees - 1 if max_m is None else max_m)


@pytest.mark.parametrize(
    ("inputs", "outputs", "edges", "mid"),
    [
        (Fiber.create(4, 32), (Fiber.create(4, 16), Fiber.create(4, 16)), 5000, 32),  # the published network's
        (Fiber({0: 6}), (Fiber.create(4, 16), Fiber({0: 16})), 5000, 32),
        (Fiber.create(4, 32), (Fiber({0: 128}),), 5000, 32),
        (Fiber.create(3, 5), (Fiber.create(3, 20),), 4096, 32),
        (Fiber.create(2, 12), (Fiber({1: 112}),), 37, 16),
        (Fiber({0: 4, 1: 3, 3: 5}), (Fiber({0: 6, 3: 2}),), 3000, 64),
    ],
)
def test_contraction_equals_the_reference(
    inputs: Fiber, outputs: tuple[Fiber, ...], edges: int, mid: int, precision: Precision, fused: Any
) -> None:
    difference = contraction(fused, plan_of(inputs, *outputs), edges, mid, precision.dtype, CUDA)
    assert difference.largest < precision.product, difference


def test_contraction_is_deterministic(precision: Precision, fused: Any) -> None:
    """A product that reads registers while they are overwritten would give changing results."""
    plan = plan_of(Fiber.create(4, 32), Fiber.create(4, 16), Fiber.create(4, 16))
    size = sum(plan.group.size((d_in, d_out)) for _, _, d_out, d_in in plan.terms())
    hidden, weights = (random(*shape, seed=1, device=CUDA).float() for shape in ((9000, 32), (size * 32,)))
    columns, grad = (random(9000, 512, seed=seed, device=CUDA).to(precision.dtype) for seed in (2, 3))
    tensors = [hidden.requires_grad_(), columns.requires_grad_(), weights.requires_grad_()]
    runs = []
    for _ in range(5):
        out = fused.contraction.contract(*tensors, plan)
        runs.append((out, *torch.autograd.grad(out, tensors, grad)))
    for again in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(again, runs[0], strict=True))


@pytest.mark.parametrize("shape", [layout(4, 32), layout(4, 16, max_m=1), layout(3, 5), layout(5, 64)])
def test_gathering_and_summing_equal_plain_torch(
    shape: EdgeLayout, precision: Precision, fused: Any, graph: Graph
) -> None:
    for difference in (gathering(fused, shape, graph, precision.dtype), summing(fused, shape, graph, precision.dtype)):
        assert difference.largest < precision.short, difference


@pytest.mark.parametrize(
    ("value", "key", "heads"),
    [
        (layout(4, 16), layout(4, 16), 8),
        (layout(4, 16), layout(1, 16), 8),
        (layout(3, 12), layout(3, 12), 3),
        (layout(4, 16, max_m=1), layout(2, 16), 2),
    ],
)
def test_attention_equals_the_reference(
    value: EdgeLayout, key: EdgeLayout, heads: int, precision: Precision, fused: Any, graph: Graph
) -> None:
    difference = attention(fused, value, key, heads, graph, precision.dtype)
    assert difference.largest < 2 * precision.short, difference


@pytest.mark.parametrize("fiber", [Fiber.create(4, 32), Fiber.create(3, 12), Fiber.create(5, 64)])
def test_norm_equals_the_reference(fiber: Fiber, precision: Precision, fused: Any) -> None:
    difference = normalising(fused, fiber, 1003, precision.dtype, CUDA)
    assert max(difference.output, *difference.gradients[1:]) < precision.short, difference
    assert difference.gradients[0] < max(1e-3, precision.short), difference  # cancellation for scalars near 0


@pytest.mark.parametrize(("degrees", "inner", "outer"), [(4, (16, 32), 32), (1, (6,), 16), (3, (5, 7), 33)])
def test_linear_equals_the_reference(
    degrees: int, inner: tuple[int, ...], outer: int, precision: Precision, fused: Any
) -> None:
    difference = multiplying(fused, degrees, inner, outer, 1500, precision.dtype, CUDA)
    assert difference.largest < precision.product, difference


@pytest.mark.parametrize("precision", PRECISIONS[:2], ids=lambda precision: precision.name, indirect=True)
@pytest.mark.parametrize("wants_inputs", [False, True])
@pytest.mark.parametrize(("scalars", "mid", "norm"), [(5, 32, True), (5, 32, False), (1, 16, True), (16, 64, True)])
def test_radial_networks_equal_plain_torch(
    scalars: int, mid: int, norm: bool, wants_inputs: bool, precision: Precision, fused: Any
) -> None:
    """In float32, with TF32x3 under TF32. A few edges may differ in the sign at a ReLU."""
    difference = hidden_layer(fused, scalars, mid, norm, 20_000, wants_inputs, CUDA)
    assert difference.output < 2e-5, difference
    assert max(difference.gradients[wants_inputs:]) < 0.05, difference


def outcome(
    kernels: Kernels, dtype: torch.dtype, half: torch.dtype | None = None, dense: bool = False, **arguments: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns predictions for a padded batch and the gradients of all parameters; `half`: autocast's dtype."""
    torch.manual_seed(0)
    network = fast.accelerate(SE3TransformerPooled(**({"num_layers": 3, "pooling": "sum"} | arguments)), kernels)
    for name, parameter in network.named_parameters():
        if "norms" in name and name.endswith("bias"):
            parameter.data.fill_(0.5)  # keeps most ReLUs active, so that high degrees contribute
    network.to(CUDA, dtype)
    # In half precision every atom has edges: NormSE3 would scale up the gradient of zeros until it overflows.
    graph = ragged([9, 5, 12, 7], pad=(5, 30), dense=dense, device=CUDA)
    graph = graph._replace(positions=graph.positions.to(dtype))
    nodes, edges = (random(len(x), c, seed=c, device=CUDA).to(dtype) for x, c in ((graph.positions, 6), (graph.src, 4)))
    with torch.autocast(CUDA, half or torch.float16, enabled=half is not None):
        prediction = network(graph, nodes, edges)
    # The gradient of each prediction is 1, so that rounding of predictions does not affect gradients.
    prediction.float().sum().backward()
    return prediction.detach(), {n: p.grad for n, p in network.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    ("matmul", "half", "value", "gradient"),
    [
        ("highest", None, 1e-4, 1e-3),
        ("high", None, 2e-2, 0.1),
        ("highest", torch.float16, 3e-2, 0.15),
        ("highest", torch.bfloat16, 0.15, 0.5),
    ],
)
@pytest.mark.parametrize("arguments", [{}, {"num_degrees": 3, "sharing": "pairwise", "low_memory": True}])
def test_a_network_on_kernels_is_close_to_plain_torch_in_float64(
    arguments: dict[str, Any], matmul: str, half: torch.dtype | None, value: float, gradient: float
) -> None:
    """Errors accumulate over layers; gradients are compared as one vector, relative to its norm."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(matmul)
    try:
        output, gradients = outcome("auto", torch.float32, half, dense=half is not None, **arguments)
    finally:
        torch.set_float32_matmul_precision(before)
    expected, exact = outcome("off", torch.float64, dense=half is not None, **arguments)
    assert error(output, expected) < value
    assert gradients.keys() == exact.keys()
    actual, target = (torch.cat([g[name].double().flatten() for name in exact]) for g in (gradients, exact))
    assert float((actual - target).norm() / target.norm()) < gradient


def test_float64_uses_plain_torch() -> None:
    """Fast modules are exact in float64; the kernels would round."""
    assert kernels_for("conv", torch.ones(1, dtype=torch.float64, device=CUDA), "edges") is None
    output, gradients = outcome("auto", torch.float64, num_layers=2)
    expected, exact = outcome("off", torch.float64, num_layers=2)
    assert error(output, expected) < 1e-10
    assert all(error(gradients[name], exact[name]) < 1e-5 for name in exact)


def test_an_older_gpu_uses_plain_torch(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """With the same results and a single line in the log."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    triton_helpers.note.cache_clear()
    output, _ = outcome("auto", torch.float32, num_layers=1)
    triton_helpers.note.cache_clear()
    expected, _ = outcome("off", torch.float64, num_layers=1)
    assert error(output, expected) < 1e-4
    lines = [record.getMessage() for record in caplog.records if "fast kernels" in record.getMessage()]
    assert len(lines) == 1 and "older than the fast kernels need" in lines[0]


def test_the_network_is_deterministic() -> None:
    """No sum of the kernels depends on the order of programs, unlike torch's pooled sums."""
    first, second = (outcome("auto", torch.float32, torch.float16, dense=True, pooling="max") for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert [name for name, gradient in first[1].items() if not torch.equal(gradient, second[1][name])] == []


@pytest.mark.parametrize("max_degree", range(5))
def test_edge_matrices_equal_plain_torch(max_degree: int, precision: Precision, fused: Any) -> None:
    """Products are three of TF32 in every precision."""
    vectors = torch.cat([random(5000, 3, seed=1), torch.eye(3), torch.zeros(1, 3)]).to(CUDA, torch.float32)
    matrices = fused.rotations.edge_matrices(vectors, max_degree, precision.dtype)
    expected = wigner(edge_rotations(vectors.double()), max_degree)
    assert error(matrices, expected) < {torch.float16: 1e-3, torch.bfloat16: 8e-3}.get(precision.dtype, 1e-5)
