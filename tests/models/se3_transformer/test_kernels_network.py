"""The whole network on the fused kernels, interpreted on the CPU, and the fallback to plain torch."""

import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from src.gpu import triton_helpers as shared
from src.models.se3_transformer import ConvSE3, Fiber, Geometry, SE3TransformerPooled, kernels
from src.models.se3_transformer.conv import Execution
from src.models.se3_transformer.kernels import dispatch, fused
from src.models.se3_transformer.kernels.fused import contraction, edges, linear, norm, radial
from tests.support.kernel_differences import error, random
from tests.support.se3_small import padded, random_graph

pytestmark = pytest.mark.slow

MODULES = contraction, edges, linear, norm, radial


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Makes CPU tensors use the fused kernels; returns the names of the kernels launched."""
    names: set[str] = set()
    start = shared.launch

    def record(kernel: Any, *arguments: Any, **constants: Any) -> None:
        names.add(kernel.fn.__name__)
        start(kernel, *arguments, **constants)

    for module in MODULES:
        monkeypatch.setattr(module, "launch", record)
    monkeypatch.setattr(dispatch, "fused_for", lambda tensor: fused if tensor.dtype != torch.float64 else None)
    return names


@pytest.fixture(autouse=True)
def empty_caches() -> Iterator[None]:
    """Clears the caches of log lines and packages before and after each test."""
    for cached in (shared.note, shared.package):
        cached.cache_clear()
    yield
    for cached in (shared.note, shared.package):
        cached.cache_clear()


def outcome(execution: Execution, dtype: torch.dtype, **arguments: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns predictions for a padded batch with an isolated atom, and the gradients of all parameters."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"num_layers": 2, "num_degrees": 2, "num_channels": 4, "num_heads": 2, "pooling": "sum"}
    network = SE3TransformerPooled(**(sizes | arguments), execution=execution).to(dtype)
    for name, parameter in network.named_parameters():
        if "norms" in name and name.endswith("bias"):
            parameter.data.fill_(0.5)  # keeps most ReLUs active, so that high degrees contribute
    graph = padded(random_graph((5, 1, 3), dtype), nodes=2, edges=3, graphs=1)
    nodes, edges = (random(len(x), c, seed=c).to(dtype) for x, c in ((graph.positions, 6), (graph.src, 4)))
    prediction = network(graph, nodes, edges)
    prediction[:3].square().sum().backward()
    return prediction.detach()[:3], {n: p.grad for n, p in network.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    "arguments", [{"num_degrees": 3, "num_channels": 8}, {"low_memory": True, "use_layer_norm": False}]
)
def test_the_network_on_kernels_equals_the_reference(arguments: dict[str, Any], launched: set[str]) -> None:
    expected, expected_gradients = outcome("reference", torch.float64, **arguments)
    assert not launched
    prediction, gradients = outcome("fast", torch.float32, **arguments)
    backward = {
        "contract_backward_data",
        "contract_backward_weight",
        "radial_backward",
        "attend_backward",
        "norm_backward",
    }
    assert launched == backward | {
        "contract", "gather_to_edges", "sum_from_edges", "attend", "norm", "radial", "linear", "linear_backward_weight",
    }  # fmt: skip
    assert error(prediction, expected) < 1e-5
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in gradients.items():
        assert error(gradient, expected_gradients[name]) < 1e-4, name


def test_the_network_with_pairwise_sharing_equals_the_reference(launched: set[str]) -> None:
    """With one group per pair, several contractions are added."""
    expected, expected_gradients = outcome("reference", torch.float64, sharing="pairwise")
    prediction, gradients = outcome("fast", torch.float32, sharing="pairwise")
    assert error(prediction, expected) < 1e-5 and "contract" in launched
    assert all(error(gradient, expected_gradients[name]) < 1e-4 for name, gradient in gradients.items())


def test_an_unsupported_convolution_uses_plain_torch(launched: set[str], caplog: pytest.LogCaptureFixture) -> None:
    """With the same results and a single line in the log."""
    graph = random_graph(dtype=torch.float32)
    geometry = Geometry.of(graph, random(len(graph.src), 2, seed=0).float(), 1, "fast")
    features = random(len(graph.positions), 16, seed=1).float()
    results = []
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(0)
        conv = ConvSE3(Fiber.create(2, 4), Fiber.create(2, 4), 2, 1, mid_channels=24).to(dtype)
        fields = [x.to(dtype) for x in (geometry.radial_inputs, geometry.wigner) if x is not None]
        for _ in range(2):
            results.append(conv(features.to(dtype), Geometry(graph, fields[0], None, fields[1])).detach())
    assert error(results[0], results[2]) < 1e-5
    assert launched == {"gather_to_edges", "sum_from_edges"}
    assert len(caplog.records) == 1
    record = caplog.records[0]
    assert record.levelno == logging.WARNING and record.getMessage() == (
        "the fused contraction does not support Group(inputs=Fiber({0: 4, 1: 4}), outputs=Fiber({0: 4, 1: 4})); "
        "plain torch computes the same, more slowly"
    )


def test_features_with_unequal_channels_use_plain_torch(launched: set[str]) -> None:
    graph, fiber = random_graph(dtype=torch.float32), Fiber({0: 4, 1: 8})
    geometry = Geometry.of(graph, random(len(graph.src), 2, seed=0).float(), 1, "fast")
    torch.manual_seed(0)
    conv = ConvSE3(fiber, fiber, 2, 1)
    output = conv(random(len(graph.positions), fiber.num_features, seed=1).float(), geometry).detach()
    assert launched == {"contract", "radial"}
    exact = Geometry.of(graph, random(len(graph.src), 2, seed=0).float(), 1, "reference")
    expected = conv.double()(
        random(len(graph.positions), fiber.num_features, seed=1).float().double(),
        Geometry(graph, exact.radial_inputs.double(), {p: x.double() for p, x in (exact.basis or {}).items()}, None),
    )
    assert error(output, expected.detach()) < 1e-5


def test_missing_triton_is_logged_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delattr(kernels, "fused")
    monkeypatch.setitem(sys.modules, "src.models.se3_transformer.kernels.fused", None)
    assert dispatch.kernels() is None and dispatch.kernels() is None
    assert len(caplog.records) == 1 and "fused kernels are not available" in caplog.text


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_cpu_tensors_use_plain_torch(dtype: torch.dtype, caplog: pytest.LogCaptureFixture) -> None:
    assert dispatch.fused_for(torch.ones(1, dtype=dtype)) is None and not caplog.records
