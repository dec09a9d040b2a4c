"""Kernels of atom steps that compute their own row alone, in Triton's interpreter against plain torch in float64."""

from copy import deepcopy
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from src.gpu import triton_helpers
from src.gpu.replace import replace_submodules
from src.models.moflow import fast
from src.models.moflow.actnorm import BatchNorm, kept_statistics, reused_statistics
from src.models.moflow.atom import AtomFlow, LogDet
from src.models.moflow.flow import Limit


class Case(NamedTuple):
    nodes: int
    classes: int
    kinds: int
    steps: int
    channels: int
    hidden: tuple[int, ...]
    batch: int
    drawn: int  # latents that are run backwards


CASES = [
    Case(3, 2, 2, 2, 5, (6,), 3, 2),
    Case(2, 2, 1, 1, 5, (), 4, 3),
    *(
        pytest.param(case, marks=pytest.mark.slow)
        for case in (
            Case(4, 3, 4, 5, 6, (7, 5), 5, 4),  # the fifth step transforms the first row again
            Case(17, 16, 4, 2, 24, (40, 18), 19, 33),
        )
    ),
]


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_helpers, "devices", {"cuda", "cpu"})
    monkeypatch.setattr(Limit, "FREE", 0.8)
    monkeypatch.setattr(Limit, "BOUND", 1.5)


def flow_of(case: Case, logdet: LogDet) -> AtomFlow:
    torch.manual_seed(0)
    flow = AtomFlow(case.nodes, case.classes, case.kinds, case.steps, case.channels, case.hidden, logdet)
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        for step in flow.steps:  # backwards they divide by up to exp of the last layer's outputs
            step.get_submodule("linears")[-1].weight.mul_(0.3)  # type: ignore[index]
    return flow.train()


def graph_of(case: Case, batch: int) -> Tensor:
    kinds, nodes = case.kinds, case.nodes
    return F.one_hot(torch.randint(0, kinds, (batch, nodes, nodes)), kinds).permute(0, 3, 1, 2).float()


def direction(like: Tensor) -> Tensor:
    return torch.arange(1, like.numel() + 1).view_as(like).sin().to(like)


def gradients(loss: Tensor, flow: AtomFlow, **inputs: Tensor) -> dict[str, Tensor]:
    leaves = dict(flow.named_parameters()) | inputs
    tensors = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return {f"gradient of {name}": gradient for name, gradient in zip(leaves, tensors, strict=True)}


def kept_rows(flow: AtomFlow, nodes: int) -> dict[str, Tensor]:
    """Returns the kept statistics of the steps' own rows; plain steps keep those of all rows."""
    rows = dict[str, Tensor]()
    for number, step in enumerate(flow.steps):
        for layer, norm in enumerate(module for module in step.modules() if isinstance(module, BatchNorm)):
            for name, kept in (("mean", norm.kept_mean), ("variance", norm.kept_var)):
                assert kept is not None
                rows[f"{name} {layer} of step {number}"] = kept[number % nodes if len(kept) > 1 else 0]
    return rows


def trained(flow: AtomFlow, case: Case, x: Tensor, adj: Tensor) -> dict[str, Tensor]:
    """Returns outputs, kept and running statistics, and gradients of a fixed direction of the first two."""
    x = x.clone().requires_grad_()
    with kept_statistics(flow):
        z, log_det = flow(x, adj)
        values = {"z": z, "log_det": log_det} | kept_rows(flow, case.nodes)
    loss = torch.stack([(value * direction(value)).sum() for value in values.values()]).sum()
    values |= gradients(loss, flow, x=x)
    values |= {name: value for name, value in flow.named_buffers() if "running" in name}
    return {name: value.detach() for name, value in values.items()}


def generated(flow: AtomFlow, x: Tensor, adj: Tensor, z: Tensor, drawn: Tensor, limits: bool) -> dict[str, Tensor]:
    """Returns atoms at latents with the statistics of a batch, how far they went, and gradients of both."""
    x, z, limit = x.clone().requires_grad_(), z.clone().requires_grad_(), Limit()
    with kept_statistics(flow):
        flow(x, adj)
        with reused_statistics(flow):
            atoms = flow.reverse(z, drawn, limit if limits else None)
    values = {"atoms": atoms, "beyond": torch.as_tensor(limit.beyond)}
    loss = (atoms * direction(atoms)).sum() + 3 * values["beyond"]
    values |= gradients(loss, flow, x=x, z=z)
    return {name: value.detach() for name, value in values.items()}


def assert_close(values: dict[str, Tensor], exact: dict[str, Tensor]) -> None:
    assert values.keys() == exact.keys()
    for name, value in exact.items():
        assert float((values[name] - value).abs().max()) < 2e-5 * max(float(value.abs().max()), 0.1), name


@pytest.mark.parametrize("case", CASES)
def test_kernels_train_rows_as_the_plain_flow_in_float64(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    flow, x, adj = flow_of(case, "exact"), torch.randn(case.batch, case.nodes, case.classes), graph_of(case, case.batch)
    exact = trained(deepcopy(flow).double(), case, x.double(), adj.double())
    replace_submodules(flow, fast.REPLACEMENTS, ["atom_flow"])
    monkeypatch.setattr(AtomFlow, "run", None)  # which plain steps need
    assert_close(trained(flow, case, x, adj), exact)


@pytest.mark.parametrize("logdet", ["exact", pytest.param("published", marks=pytest.mark.slow)])
@pytest.mark.parametrize("limits", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_kernels_run_backwards_as_the_plain_flow_in_float64(
    case: Case, limits: bool, logdet: LogDet, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow, x, adj = flow_of(case, logdet), torch.randn(case.batch, case.nodes, case.classes), graph_of(case, case.batch)
    z, drawn = 1.3 * torch.randn(case.drawn, case.nodes, case.classes), graph_of(case, case.drawn)
    exact = generated(deepcopy(flow).double(), x.double(), adj.double(), z.double(), drawn.double(), limits)
    if limits:
        sizes = exact["atoms"].abs()
        assert (sizes == 1.5).any() and (sizes < 1.5).any() and exact["beyond"] > 0
    replace_submodules(flow, fast.REPLACEMENTS, ["atom_flow"])
    monkeypatch.setattr(AtomFlow, "run_reverse", None)
    assert_close(generated(flow, x, adj, z, drawn, limits), exact)
