"""The drop-in's kernels: interpreted on a CPU, and on a GPU, against plain torch in float64."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from src.dropin.model import edges as edges_module
from src.gpu import inference_graphs, triton_helpers
from src.gpu.inference_graphs import rounded
from src.models.se3_transformer import Fiber
from src.models.se3_transformer.basis import pair_basis
from src.models.se3_transformer.fast import dense
from src.models.se3_transformer.fast.dense import DensePlan, coefficients
from src.models.se3_transformer.radial import Group
from tests.dropin.cases import CASES, OURS, Case, built, ends, features, positions, run

TWO_DEGREES = [case for case in CASES if case.degrees == 2 and case.edges.keys() <= {0}]
SMALL = Case("small", "", {0: 3, 1: 2}, {0: 3, 1: 2}, {0: 2}, 8, arguments={"num_layers": 1})
by_name = pytest.mark.parametrize("case", TWO_DEGREES, ids=lambda case: case.name)
needs_triton = pytest.mark.skipif(not find_spec("triton"), reason="Triton is not installed")
on_gpu = pytest.mark.gpu


@pytest.fixture
def convolutions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lets the kernels take any number of edges; returns a list that each convolution on them adds to."""
    taken: list[str] = []
    call = dense.DenseConvolution.__call__

    def noted(self: Any, *arguments: Any) -> Tensor:
        taken.append(str(self.plan.outputs))
        return call(self, *arguments)

    monkeypatch.setattr(dense.DenseConvolution, "__call__", noted)
    monkeypatch.setattr(edges_module, "LEAST_EDGES", 0)
    return taken


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_helpers, "devices", {"cpu"})


def relative(results: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    """Returns the largest differences over the largest entries, of tensors with any."""
    return {
        name: float((results[name].cpu() - x).abs().max() / x.abs().max().clamp_min(1e-3))
        for name, x in expected.items()
        if x.numel()
    }


def test_coefficients_are_those_of_the_basis() -> None:
    r = torch.nn.functional.normalize(torch.randn(5, 3, dtype=torch.float64), dim=1)
    one = torch.eye(3, dtype=torch.float64).expand(5, 3, 3)
    cross = torch.linalg.cross(r[:, None].expand(5, 3, 3), one)  # r x (a unit vector in), components out
    forms = one, cross, 3 * r[:, :, None] * r[:, None] - one
    expected = torch.stack([c * form for c, form in zip(coefficients((1, 1)), forms, strict=True)], 2)
    tables = pair_basis(r, [(0, 1), (1, 0), (1, 1)])
    assert_close(tables[1, 1], expected)
    assert_close(tables[0, 1][:, 0, 0], coefficients((0, 1))[0] * r)
    assert_close(tables[1, 0][:, :, 0, 0], coefficients((1, 0))[0] * r)


def test_columns_of_messages() -> None:
    value, key = Fiber({0: 4, 1: 2}), Fiber({0: 2})
    plan = DensePlan((Group(Fiber({0: 3, 1: 1}), value + key),), (value, key), 2)
    assert plan.stride == 2 * 8 + 2 * 1 and plan.is_supported
    assert plan.features[0] == (0, 1, 4, 6, 8, -1, -1, -1, 2, 3, 5, 7, 9, -1, -1, -1)
    assert plan.columns[0] == (0, 1, 8, 9, 16, 17) and plan.columns[1] == (2, 3, 4, 10, 11, 12)
    flat = DensePlan(plan.groups, (value + key,), 0)
    assert flat.columns == (tuple(range(6)), (6, 8, 10, 7, 9, 11))
    assert not DensePlan(plan.groups, (value, key), 3).is_supported


def test_sizes_of_graphs() -> None:
    assert [rounded(rows) for rows in (1, 15, 17, 9900, 159600)] == [1, 15, 18, 10240, 163840]
    assert all(rows <= rounded(rows) <= rows * 9 / 8 + 1 for rows in range(1, 5000, 7))


@needs_triton
def test_a_small_network_on_the_kernels(convolutions: list[str], interpreted: None) -> None:
    network = built(OURS, SMALL).double()
    with torch.no_grad():
        expected = network(*inputs(SMALL, torch.float64, count=6))
        assert not convolutions
        results = network.float()(*inputs(SMALL, torch.float32, count=6))
    assert len(convolutions) == 2
    assert max(relative(results, expected).values()) < 2e-6


@needs_triton
@pytest.mark.slow
@by_name
def test_networks_on_the_kernels(case: Case, convolutions: list[str], interpreted: None) -> None:
    network = built(OURS, case)
    expected = run(OURS, case, network)
    network.zero_grad()
    results = run(OURS, case, network, torch.float32)
    assert len(convolutions) >= case.arguments["num_layers"]
    assert max(relative(results, expected).values()) < 5e-6


def inputs(
    case: Case, dtype: torch.dtype, device: str = "cpu", count: int = 47, seed: int = 5
) -> tuple[Any, dict[str, Tensor], dict[str, Tensor]]:
    """Returns a graph of the first `count` edges, and features."""
    (src, dst), places = (end[:count] for end in ends()), positions()
    made = OURS.graph((src.to(device), dst.to(device)), num_nodes=len(places))
    made.edata["rel_pos"] = (places[dst] - places[src]).to(device, dtype)
    nodes, of_edges = features(case.inputs, len(places), seed), features(case.edges, count, seed + 1)
    nodes, of_edges = ({k: x.to(device, dtype) for k, x in part.items()} for part in (nodes, of_edges))
    return made, nodes, of_edges


PRECISIONS = {
    "single": ("highest", None, 1e-5),
    "TF32": ("high", None, 6e-3),
    "bfloat16": ("highest", torch.bfloat16, 6e-2),
}


@pytest.fixture(params=PRECISIONS)
def bound(request: pytest.FixtureRequest) -> Iterator[float]:
    matmul, dtype, largest = PRECISIONS[request.param]
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(matmul)
    with torch.autocast("cuda", dtype or torch.bfloat16, enabled=dtype is not None):
        yield largest
    torch.set_float32_matmul_precision(before)


@on_gpu
@pytest.mark.filterwarnings("default")  # torch warns about TF32
@by_name
def test_outputs_on_a_gpu(case: Case, bound: float, convolutions: list[str]) -> None:
    network = built(OURS, case).double()
    with torch.no_grad():
        expected = out_of(network(*inputs(case, torch.float64)))
        network = network.float().cuda()
        calls = [
            out_of(network(*inputs(case, torch.float32, "cuda"))) for _ in range(3)
        ]  # the third is a graph's replay
    assert convolutions
    assert relative(calls[0], expected) and max(relative(calls[0], expected).values()) < bound
    for results in calls[1:]:
        assert max(relative(results, {k: x.cpu() for k, x in calls[0].items()}).values()) < 1e-6


@on_gpu
@by_name
def test_gradients_on_a_gpu(case: Case, convolutions: list[str]) -> None:
    network = built(OURS, case)
    expected = gradients(network.double(), case, torch.float64, "cpu")
    results = gradients(network.float().cuda(), case, torch.float32, "cuda")
    assert convolutions
    assert max(relative(results, expected).values()) < 2e-5


def out_of(results: Any) -> dict[str, Tensor]:
    return results if isinstance(results, dict) else {"pooled": results}


def gradients(network: nn.Module, case: Case, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
    made, nodes, of_edges = inputs(case, dtype, device)
    leaves = {**{f"node {k}": x for k, x in nodes.items()}, **{f"edge {k}": x for k, x in of_edges.items()}}
    rel_pos = made.edata["rel_pos"].requires_grad_()
    wanted = {**dict(network.named_parameters()), **leaves, "rel_pos": rel_pos}
    for leaf in leaves.values():
        leaf.requires_grad_()
    total = sum((x.sin() * x).sum() for x in out_of(network(made, nodes, of_edges)).values())
    grads = torch.autograd.grad(total, list(wanted.values()), allow_unused=True)  # type: ignore[arg-type]
    return {name: x for name, x in zip(wanted, grads, strict=True) if x is not None}


@on_gpu
def test_graphs_see_changed_and_replaced_weights_and_other_edges(convolutions: list[str]) -> None:
    case = TWO_DEGREES[0]
    network = built(OURS, case).cuda()

    def differences(count: int, seed: int) -> float:
        given = inputs(case, torch.float32, "cuda", count, seed)
        with torch.no_grad():
            results = network(*given)
            exact = built(OURS, case).double()
            exact.load_state_dict(network.state_dict())
            return max(relative(results, exact(*inputs(case, torch.float64, "cpu", count, seed))).values())

    for turn in range(4):  # the number of edges changes within one size
        assert differences(46 + turn % 2, turn) < 1e-5
    captured = len(inference_graphs._of_module[network].captures)
    assert captured == 1
    query = network.graph_modules[0].to_query.weights
    with torch.no_grad():
        query["0"].mul_(3)
    assert differences(47, 4) < 1e-5 and len(inference_graphs._of_module[network].captures) == captured
    query["0"] = nn.Parameter(query["0"].detach() * -2)
    assert differences(47, 5) < 1e-5
    with torch.inference_mode():
        network(*inputs(case, torch.float32, "cuda"))


@on_gpu
def test_graphs_compilation_and_checkpoints_around(convolutions: list[str]) -> None:
    case = TWO_DEGREES[1]
    network = built(OURS, case).cuda()
    given = inputs(case, torch.float32, "cuda")
    with torch.no_grad():
        expected = network(*given)
        assert_close(torch.compile(network)(*given), expected, rtol=1e-5, atol=1e-5)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = network(*given)
        for x in given[1].values():
            x.mul_(-1)
        graph.replay()
        assert_close(captured, network(*given), rtol=1e-5, atol=1e-5)
    plain, rerun = (
        torch.autograd.grad(call()["0"].sum(), list(network.parameters()), allow_unused=True)
        for call in (lambda: network(*given), lambda: checkpoint(network, *given, use_reentrant=False))  # type: ignore
    )
    assert_close(plain, rerun, rtol=0, atol=0)
    assert convolutions
