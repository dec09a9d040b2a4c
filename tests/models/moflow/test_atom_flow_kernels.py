"""The atom flow's kernels in Triton's interpreter; test_moflow_gpu.py runs them at full size."""

from contextlib import nullcontext
from copy import deepcopy
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from src.gpu import triton_helpers
from src.gpu.replace import replace_submodules
from src.models.moflow import fast
from src.models.moflow.atom import AtomFlow
from src.models.moflow.fast.atom_weights import TILE_OF_WEIGHT, narrow_gradients, parts_of, weight_gradients


class Case(NamedTuple):
    nodes: int
    classes: int
    kinds: int
    steps: int
    channels: int
    hidden: tuple[int, ...]
    batch: int


SMALL = Case(2, 2, 2, 2, 5, (6,), 3)
CASES = [
    SMALL,
    Case(2, 2, 1, 1, 5, (), 4),
    *(
        pytest.param(case, marks=pytest.mark.slow)
        for case in (
            Case(4, 3, 4, 5, 6, (7, 5), 5),  # the fifth step transforms the first row again
            Case(3, 2, 2, 2, 20, (18,), 19),
            Case(17, 16, 4, 1, 24, (40, 18), 3),
        )
    ),
]


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_helpers, "devices", {"cuda", "cpu"})


def flow_of(case: Case) -> AtomFlow:
    torch.manual_seed(0)
    flow = AtomFlow(case.nodes, case.classes, case.kinds, case.steps, case.channels, case.hidden, "published")
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return flow


def results(flow: AtomFlow, x: Tensor, adj: Tensor) -> dict[str, Tensor]:
    """Returns outputs, running statistics and the gradients of a fixed direction."""
    x = x.clone().requires_grad_()
    z, log_det = flow(x, adj)
    direction = torch.arange(z.numel()).view_as(z).sin().to(z.dtype)
    ((z * direction).sum() + (log_det * torch.arange(1, len(x) + 1).cos()).sum()).backward()
    values = {"z": z, "log_det": log_det, "gradient of x": x.grad}
    values |= {f"gradient of {name}": parameter.grad for name, parameter in flow.named_parameters()}
    values |= {name: value for name, value in flow.named_buffers() if "running" in name}
    return {name: value.detach() for name, value in values.items() if value is not None}


def errors(case: Case, dtype: torch.dtype = torch.float32) -> dict[str, tuple[float, float]]:
    """Returns for each result of the kernels and of plain torch the largest error over the largest value."""
    flow, (batch, nodes, kinds) = flow_of(case), (case.batch, case.nodes, case.kinds)
    x = torch.randn(batch, nodes, case.classes)
    adj = F.one_hot(torch.randint(0, kinds, (batch, nodes, nodes)), kinds).permute(0, 3, 1, 2).float()
    exact = results(deepcopy(flow).double(), x.double(), adj.double())
    both = []
    for name in ((), ("atom_flow",)):
        module = deepcopy(flow)
        assert replace_submodules(module, fast.REPLACEMENTS, name) == [*name]
        with torch.autocast("cpu", dtype) if dtype != torch.float32 else nullcontext():
            both.append(results(module, x, adj))
    plain, kernels = both
    assert exact.keys() == plain.keys() == kernels.keys()
    largest = dict[str, tuple[float, float]]()
    for name, value in exact.items():
        size = value.abs().max().clamp_min(1e-3)
        largest[name] = (
            float((kernels[name] - value).abs().max() / size),
            float((plain[name] - value).abs().max() / size),
        )
    return largest


@pytest.mark.parametrize("case", CASES)
def test_kernels_agree_with_the_plain_flow_in_float64(case: Case) -> None:
    """Latents, log-determinants, all gradients, and running statistics."""
    assert not {name: error for name, error in errors(case).items() if error[0] > 1e-5}


@pytest.mark.parametrize("case", CASES)
def test_so_do_they_where_all_inputs_of_layers_are_stored(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("src.models.moflow.fast.atom_weights.NARROW", 0)
    assert not {name: error for name, error in errors(case).items() if error[0] > 1e-5}


def test_programs_of_several_samples_agree_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last program has fewer than the others."""
    monkeypatch.setattr("src.models.moflow.fast.atom_flow.PROGRAMS", 2)
    assert not {name: error for name, error in errors(Case(2, 2, 1, 1, 5, (), 3)).items() if error[0] > 1e-5}


@pytest.mark.parametrize(
    ("outputs", "inputs", "parts"), [(512, 256, 5), (64, 512, 10), (256, 80, 10), (32, 64, 20), (2048, 2048, 1)]
)
def test_the_published_weights_gradients_have_enough_tiles(outputs: int, inputs: int, parts: int) -> None:
    """Of 38 steps and 40 nodes."""
    assert parts_of((38, 40, 512, outputs), inputs, TILE_OF_WEIGHT) == parts


@pytest.mark.parametrize("fewest", [1, 10, 1000])
def test_weights_gradients_are_summed_over_all_parts(fewest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In 1, 2 and 6 parts of six nodes, which is what 5 steps of one tile take."""
    monkeypatch.setattr("src.models.moflow.fast.atom_weights.FEWEST_TILES", fewest)
    of_out, inputs = torch.randn(5, 6, 3, 4), torch.randn(5, 6, 3, 7)
    exact = torch.einsum("snbo,snbi->soi", of_out.double(), inputs.double())
    torch.testing.assert_close(weight_gradients(of_out, inputs), exact.float())


@pytest.mark.parametrize(("fewest", "batch", "dtype"), [(1, 17, torch.float16), (10, 3, torch.float32)])
def test_a_narrow_layers_gradients_are_of_all_its_rows(
    fewest: int, batch: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of weight and bias, by programs of several and of one block of rows, several nodes, and a part of the inputs."""
    for name, value in (("FEWEST_TILES", fewest), ("COLUMNS", 16), ("DEPTH", 16)):
        monkeypatch.setattr(f"src.models.moflow.fast.atom_weights.{name}", value)
    of_out, z, norms = (
        torch.randn(2, 4, batch, 5).to(dtype),
        torch.randn(2, 4, batch, 18).to(dtype),
        torch.randn(2, 4, 4),
    )
    scale, shift = norms[:, 2:].double().unbind(1)
    inputs = F.relu(z.double() * scale[:, :, None, None] + shift[:, :, None, None])
    of_weight, of_bias = narrow_gradients(of_out, z, norms)
    error = 1e-2 if dtype == torch.float16 else 1e-5
    exact = torch.einsum("snbo,snbi->soi", of_out.double(), inputs)
    torch.testing.assert_close(of_weight, exact.float(), rtol=error, atol=error)
    torch.testing.assert_close(of_bias, of_out.double().sum((1, 2)).float(), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_kernels_round_as_plain_torch_under_autocast() -> None:
    assert not {name: error for name, error in errors(SMALL, torch.float16).items() if error[0] > 0.01 + 2 * error[1]}


def test_a_mean_far_from_0_leaves_the_deviations() -> None:
    """Where a layer's bias is large, squares of its outputs would cancel in float32."""
    flow, x = flow_of(SMALL), torch.randn(3, 2, 2)
    adj = torch.ones(3, 2, 2, 2)
    with torch.no_grad():
        for step in flow.steps:
            step.get_submodule("linears.0").bias.add_(3000.0)  # type: ignore[union-attr]
            step.get_submodule("graph_conv.self_linear").bias.add_(3000.0)  # type: ignore[union-attr]
    exact = results(deepcopy(flow).double(), x.double(), adj.double())
    replace_submodules(flow, fast.REPLACEMENTS, ["atom_flow"])
    for name, value in results(flow, x, adj).items():
        torch.testing.assert_close(
            value.double(), exact[name].double(), rtol=2e-2, atol=2e-3 * float(exact[name].abs().max())
        )


@pytest.mark.slow
def test_equal_batches_give_equal_bits() -> None:
    flow, x, adj = flow_of(SMALL), torch.randn(3, 2, 2), torch.ones(3, 2, 2, 2)
    replace_submodules(flow, fast.REPLACEMENTS, ["atom_flow"])
    first, second = (results(deepcopy(flow), x, adj) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("kernels", ["off", "auto"])
def test_a_network_that_evaluates_uses_running_statistics(kernels: str) -> None:
    flow = flow_of(SMALL)
    replace_submodules(flow, fast.REPLACEMENTS, kernels)  # type: ignore[arg-type]
    x, adj = torch.randn(3, 2, 2), torch.ones(3, 2, 2, 2)
    flow(x, adj)
    before = {name: value.clone() for name, value in flow.named_buffers()}
    z, _ = flow.eval()(x, adj)
    torch.testing.assert_close(flow.reverse(z, adj), x, rtol=1e-3, atol=1e-4)
    assert all(torch.equal(value, before[name]) for name, value in flow.named_buffers())
