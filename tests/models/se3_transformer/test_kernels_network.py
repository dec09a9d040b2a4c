"""The whole network on the kernels, interpreted on the CPU, and what they leave to plain torch."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from src.gpu import triton_helpers as shared
from src.gpu.replace import Kernels, replace_submodules
from src.models.se3_transformer import ConvSE3, Fiber, Geometry, SE3TransformerPooled, energy_and_forces, fast
from src.models.se3_transformer.attention import AttentionBlockSE3
from src.models.se3_transformer.fast import contraction, edges, linear, norm, radial, rotations
from src.models.se3_transformer.fast.conv import kernels_for
from tests.support.kernel_differences import error, random
from tests.support.se3_small import padded, random_features, random_graph

pytestmark = pytest.mark.slow

MODULES = contraction, edges, linear, norm, radial, rotations


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Lets fast modules use the kernels for CPU tensors; returns the names of the kernels launched."""
    names: set[str] = set()
    start = shared.launch

    def record(kernel: Any, *arguments: Any, **constants: Any) -> None:
        names.add(kernel.fn.__name__)
        start(kernel, *arguments, **constants)

    for module in MODULES:
        monkeypatch.setattr(module, "launch", record)
    monkeypatch.setattr(shared, "devices", {"cpu"})
    return names


@pytest.fixture(autouse=True)
def empty_caches() -> Iterator[None]:
    """Clears the caches of log lines and packages before and after each test."""
    for cached in (shared.note, shared.package):
        cached.cache_clear()
    yield
    for cached in (shared.note, shared.package):
        cached.cache_clear()


def outcome(kernels: Kernels, dtype: torch.dtype, **arguments: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns predictions for a padded batch with an isolated atom, and the gradients of all parameters."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"num_layers": 2, "num_degrees": 2, "num_channels": 4, "num_heads": 2, "pooling": "sum"}
    network = fast.accelerate(SE3TransformerPooled(**(sizes | arguments)).to(dtype), kernels)
    for name, parameter in network.named_parameters():
        if "norms" in name and name.endswith("bias"):
            parameter.data.fill_(0.5)  # keeps most ReLUs active, so that high degrees contribute
    graph = padded(random_graph((5, 1, 3), dtype), nodes=2, edges=3, graphs=1)
    scalars = (random(len(x), c, seed=c).to(dtype) for x, c in ((graph.positions, 6), (graph.src, 4)))
    prediction = network(graph, *scalars)
    prediction[:3].square().sum().backward()
    return prediction.detach()[:3], {n: p.grad for n, p in network.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    "arguments", [{"num_degrees": 3, "num_channels": 8}, {"low_memory": True, "use_layer_norm": False}]
)
def test_the_network_on_kernels_equals_plain_torch(arguments: dict[str, Any], launched: set[str]) -> None:
    expected, expected_gradients = outcome("off", torch.float64, **arguments)
    assert not launched
    prediction, gradients = outcome("auto", torch.float32, **arguments)
    backward = {
        "contract_backward_data",
        "contract_backward_weight",
        "radial_backward",
        "attend_backward",
        "norm_backward",
    }
    assert launched == backward | {
        "contract", "gather_to_edges", "sum_from_edges", "attend", "norm", "radial", "linear", "linear_backward_weight",
        "sum_of_degrees", "edge_matrices",
    }  # fmt: skip
    assert error(prediction, expected) < 1e-5
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in gradients.items():
        assert error(gradient, expected_gradients[name]) < 1e-4, name


def test_the_network_with_pairwise_sharing_equals_plain_torch(launched: set[str]) -> None:
    """With one group per pair, several contractions are added."""
    expected, expected_gradients = outcome("off", torch.float64, sharing="pairwise")
    prediction, gradients = outcome("auto", torch.float32, sharing="pairwise")
    assert error(prediction, expected) < 1e-5 and "contract" in launched
    assert all(error(gradient, expected_gradients[name]) < 1e-4 for name, gradient in gradients.items())


def test_a_blocks_gradients_of_its_features_are_added_by_kernels(launched: set[str]) -> None:
    fiber, graph = Fiber.create(2, 4), random_graph(dtype=torch.float32)
    block = AttentionBlockSE3(fiber, fiber, 1, 1, num_heads=2)
    replace_submodules(network := nn.Sequential(block), fast.REPLACEMENTS, "auto")
    features = random(len(graph.positions), fiber.num_features, seed=0).float().requires_grad_()
    out = network[0](features, Geometry.of(graph, random(len(graph.src), 1, seed=1).float(), 1))
    with Additions() as additions:
        out.sum().backward()
    assert "attend_backward" in launched and features.shape not in additions.shapes


class Additions(TorchDispatchMode):
    """Collects the shapes that torch adds within."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes = set[torch.Size]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "add" in str(func):
            self.shapes.add(args[0].shape)
        return func(*args, **(kwargs or {}))


def geometry_of(dtype: torch.dtype) -> Geometry:
    graph = random_graph(dtype=torch.float32)
    graph = graph._replace(positions=graph.positions.to(dtype))
    return Geometry.of(graph, random(len(graph.src), 2, seed=0).float(), 1)


def convolution(fiber: Fiber, dtype: torch.dtype, kernels: Kernels, mid_channels: int = 32) -> ConvSE3:
    torch.manual_seed(0)
    conv = ConvSE3(fiber, fiber, 2, 1, mid_channels=mid_channels).to(dtype)
    replace_submodules(conv, fast.REPLACEMENTS, kernels)
    return conv


def test_an_unsupported_convolution_uses_plain_torch(launched: set[str], caplog: pytest.LogCaptureFixture) -> None:
    """With the same results and a single line for each reason in the log."""
    fiber, results = Fiber.create(2, 4), []
    for dtype in (torch.float32, torch.float64):
        geometry, conv = geometry_of(dtype), convolution(fiber, dtype, "auto", mid_channels=24)
        features = random(len(geometry.graph.positions), 16, seed=1).float().to(dtype)
        for _ in range(2):
            results.append(conv(features, geometry).detach())
    assert error(results[0], results[2]) < 1e-5
    assert launched == {"edge_matrices", "gather_to_edges", "sum_from_edges"}
    fibers = "inputs=Fiber({0: 4, 1: 4}), outputs=Fiber({0: 4, 1: 4})"
    layer = "Linear(in_features=3, out_features=24, bias=True)"
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert sorted(caplog.messages) == [
        f"execution.kernels: {name} does not support {what}; plain torch computes the same, more slowly"
        for name, what in (
            ("conv", f"Group({fibers}) with 24 hidden channels"), ("conv", "torch.float64"),
            ("radial", f"layer={layer}"), ("radial", "torch.float64"),
        )
    ]  # fmt: skip


def test_features_with_unequal_channels_use_plain_torch(launched: set[str]) -> None:
    fiber, results = Fiber({0: 4, 1: 8}), []
    for kernels, dtype in (("auto", torch.float32), ("off", torch.float64)):
        geometry = geometry_of(dtype)
        features = random(len(geometry.graph.positions), fiber.num_features, seed=1).float().to(dtype)
        results.append(convolution(fiber, dtype, kernels)(features, geometry).detach())
    assert launched == {"contract", "edge_matrices", "radial"}
    assert error(*results) < 1e-5


@pytest.mark.parametrize("names", [["attention"], ["attention", "linear"]])
def test_attention_without_a_fast_convolution_is_the_plain_one(names: list[str], launched: set[str]) -> None:
    outcome(names, torch.float32)
    assert launched == ({"linear", "linear_backward_weight", "sum_of_degrees"} if "linear" in names else set())


def test_a_fast_convolution_without_attention_rotates_its_messages(launched: set[str]) -> None:
    expected, expected_gradients = outcome("off", torch.float64)
    prediction, gradients = outcome(["conv"], torch.float32)
    assert {"contract", "gather_to_edges", "sum_from_edges"} < launched and "attend" not in launched
    assert error(prediction, expected) < 1e-5
    assert all(error(gradient, expected_gradients[name]) < 1e-4 for name, gradient in gradients.items())


@pytest.mark.parametrize("low_memory", [False, True])
@pytest.mark.parametrize("kernels", ["norm", "linear", "radial", "auto"])
def test_a_loss_on_forces_has_the_gradient_of_plain_torch(kernels: str, low_memory: bool, launched: set[str]) -> None:
    """Convolutions are plain then, and the other kernels' gradients are differentiated again."""
    results = []
    for names, dtype in (("auto" if kernels == "auto" else [kernels], torch.float32), ("off", torch.float64)):
        torch.manual_seed(0)
        network = SE3TransformerPooled(2, 2, 4, 2, pooling="sum", low_memory=low_memory).to(dtype)
        for name, parameter in network.named_parameters():
            if "norms" in name and name.endswith("bias"):
                parameter.data.fill_(0.5)
        graph = random_graph((4, 1, 3), dtype)
        nodes, ends = random_features(Fiber({0: 6}), 8, dtype), random_features(Fiber({0: 4}), len(graph.src), dtype)
        energy, forces = energy_and_forces(fast.accelerate(network, names), graph, nodes, ends, create_graph=True)
        (energy.sum() + forces.square().sum()).backward()
        gradient = torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])
        results.append((energy.detach(), forces.detach(), gradient))
    assert "contract" not in launched and ({kernels} if kernels != "auto" else {"norm", "linear", "radial"}) <= launched
    assert all(error(value, exact) < 2e-5 for value, exact in zip(*results, strict=True))


def test_missing_triton_leaves_frames_in_plain_torch(
    launched: set[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shared, "import_module", absent)
    expected, _ = outcome("off", torch.float64)
    prediction, _ = outcome(["conv", "attention"], torch.float32)
    assert error(prediction, expected) < 1e-5 and not launched
    assert sum("fast kernels are not available" in record.getMessage() for record in caplog.records) == 3  # modules


def absent(name: str) -> None:
    raise ImportError(name)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_cpu_tensors_use_plain_torch(dtype: torch.dtype, caplog: pytest.LogCaptureFixture) -> None:
    assert kernels_for("conv", torch.ones(1, dtype=dtype), "edges") is None and not caplog.records
