"""The bond flow's kernels in Triton's interpreter against the plain flow in float64; test_moflow_gpu.py has a GPU."""

from contextlib import nullcontext
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from src.gpu import triton_helpers
from src.gpu.replace import replace_submodules
from src.models.moflow import fast
from src.models.moflow.actnorm import BatchNorm, kept_statistics, reused_statistics
from src.models.moflow.bond import BondFlow
from src.models.moflow.flow import Limit


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_helpers, "devices", {"cuda", "cpu"})


def direction(like: Tensor) -> Tensor:
    return torch.arange(1, like.numel() + 1).view_as(like).sin().to(like)


def results(flow: BondFlow, adj: Tensor, keeps: bool = False) -> dict[str, Tensor]:
    """Returns outputs, running statistics and the gradients of a fixed direction, also of statistics that it keeps."""
    adj = adj.clone().requires_grad_()
    with kept_statistics(flow) if keeps else nullcontext():
        z, log_det = flow(adj)
        norms = [module for module in flow.modules() if isinstance(module, BatchNorm)]
        kept = [tensor for norm in norms for tensor in (norm.kept_mean, norm.kept_var) if tensor is not None]
    assert len(kept) == 2 * len(norms) * keeps
    torch.stack([(tensor * direction(tensor)).sum() for tensor in (z, log_det, *kept)]).sum().backward()
    values = {"z": z, "log_det": log_det, "gradient of adj": adj.grad}
    values |= {f"gradient of {name}": parameter.grad for name, parameter in flow.named_parameters()}
    values |= {name: value for name, value in flow.named_buffers() if "running" in name}
    values |= {f"kept {number}": tensor for number, tensor in enumerate(kept)}
    return {name: value.detach() for name, value in values.items() if value is not None}


@pytest.mark.parametrize(
    ("kinds", "hidden", "steps", "batch", "far", "keeps"),
    [
        (1, (6,), 2, 3, 0.0, False),
        (1, (6,), 2, 3, 0.0, True),
        (1, (), 1, 3, 0.0, False),
        pytest.param(1, (6,), 1, 3, 3000.0, False, marks=pytest.mark.slow),
        pytest.param(3, (11, 5), 2, 150, 0.0, True, marks=pytest.mark.slow),
    ],
)
def test_kernels_agree_with_the_plain_flow_in_float64(
    kinds: int, hidden: tuple[int, ...], steps: int, batch: int, far: float, keeps: bool
) -> None:
    """Latents, log-determinants, all gradients, running and kept statistics; with means that are `far` from 0, too."""
    torch.manual_seed(0)
    flow = BondFlow(4, kinds, 2, hidden, steps, 2)
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        for step in flow.steps:
            step.get_submodule("coupling.convs.0").bias.add_(far)  # type: ignore[union-attr]
    adj = torch.randn(batch, kinds, 4, 4)
    exact = results(deepcopy(flow).double(), adj.double(), keeps)
    assert replace_submodules(flow, fast.REPLACEMENTS, ["bond_flow"]) == ["bond_flow"]
    values = results(flow, adj, keeps)
    assert values.keys() == exact.keys()
    largest = max(float(value.abs().max()) for name, value in exact.items() if "weight" in name)
    for name, value in values.items():
        # A bias that BatchNorm subtracts again has no gradient: what is there is rounding.
        is_void = hidden and not keeps and "convs" in name and "bias" in name and f"convs.{len(hidden)}" not in name
        size = largest if is_void else max(float(exact[name].abs().max()), 1e-3)
        assert float((value - exact[name]).abs().max()) < (2e-3 if far else 1e-5) * size, name


@pytest.mark.parametrize(
    ("kinds", "hidden", "steps", "batch", "limits"),
    [
        (1, (6,), 2, 3, True),
        (1, (6,), 1, 3, False),
        pytest.param(3, (11, 5), 2, 70, True, marks=pytest.mark.slow),
    ],
)
def test_kernels_run_the_flow_backwards_with_kept_statistics(
    kinds: int, hidden: tuple[int, ...], steps: int, batch: int, limits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Latents within the limit, how far they went beyond, and gradients of all: of the batch through the statistics."""
    monkeypatch.setattr(Limit, "FREE", 0.8)
    monkeypatch.setattr(Limit, "BOUND", 1.5)
    torch.manual_seed(1)  # a value near a limit may lie on either side of it in float32
    flow = BondFlow(4, kinds, 2, hidden, steps, 2)
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    adj, latent = torch.randn(3, kinds, 4, 4), torch.randn(batch, kinds, 4, 4)
    results = []
    for module, dtype in ((deepcopy(flow).double(), torch.float64), (flow, torch.float32)):
        if dtype == torch.float32:
            replace_submodules(module, fast.REPLACEMENTS, ["bond_flow"])
            monkeypatch.setattr(BondFlow, "run_reverse", None)  # which plain steps need
        x, z, limit = adj.to(dtype).requires_grad_(), latent.to(dtype).requires_grad_(), Limit()
        with kept_statistics(module):
            module(x)
            # Forward has made the matrices of the convolutions, too; the next training batch has other weights.
            norms: list[Any] = [step.get_submodule("coupling.norms.0") for step in module.steps]
            kept = [len(norm.kept_matrices) for norm in norms]
            with reused_statistics(module):
                y = module.reverse(z, limit if limits else None)
        assert kept == [(1 + len(hidden)) * (dtype == torch.float32)] * steps
        assert not any(norm.kept_matrices for norm in norms)
        beyond = torch.as_tensor(limit.beyond)
        loss = (y * direction(y)).sum() + 3 * beyond
        leaves = dict(module.named_parameters()) | {"x": x, "z": z}
        gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        values = {"y": y, "beyond": beyond} | dict(zip(leaves, gradients, strict=True))
        results.append({name: value.detach() for name, value in values.items() if value is not None})
    exact, values = results
    if limits:
        assert (exact["y"].abs() == 1.5).any() and (exact["y"].abs() < 0.8).any() and exact["beyond"] > 0
    assert values.keys() == exact.keys() >= {"x", "z"}
    for name, value in exact.items():
        assert float((values[name] - value).abs().max()) < 2e-5 * max(float(value.abs().max()), 0.1), name
