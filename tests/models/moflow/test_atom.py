"""The atom flow: transformed row, inverse, log-determinants."""

from inspect import unwrap
from typing import cast

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from src.errors import UserError
from src.models.moflow.atom import AtomFlow, AtomStep, relations_of
from src.models.moflow.network import MoFlow
from tests.support.tiny_moflow import make_molecules, make_network, steps_of


def inputs(network: MoFlow, batch: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns noised atom classes and the clean adjacency."""
    x, adj = network.one_hot(*make_molecules(batch))
    return x + 0.6 * torch.rand(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(5)), adj


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kernels", ["off", "auto"])
@pytest.mark.parametrize("logdet", ["published", "exact"])
def test_reverse_inverts_forward(logdet: str, kernels: str, training: bool) -> None:
    network = make_network(logdet=logdet, kernels=kernels)
    flow = network.atom_flow.train(training)
    x, adj = inputs(network)
    z, _ = flow(x, adj)
    assert not torch.allclose(z, x)
    assert_close(flow.reverse(z, adj), x, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kernels", ["off", "auto"])
def test_exact_log_determinant_equals_the_jacobians(kernels: str) -> None:
    network = make_network(logdet="exact", kernels=kernels)
    flow = network.atom_flow.eval()
    x, adj = inputs(network, 1)
    jacobian = torch.autograd.functional.jacobian(lambda value: flow(value, adj)[0], x)
    _, log_det = flow(x, adj)
    assert_close(log_det[0], torch.linalg.slogdet(jacobian.view(12, 12))[1], rtol=1e-9, atol=1e-9)


def test_published_flow_equals_a_literal_loop_over_rows() -> None:
    """Rows one by one as in the paper's code, with every row's logits in the log-determinant."""
    network = make_network()
    flow = network.atom_flow.eval()
    x, adj = inputs(network)
    z, log_det = flow(x, adj)
    value, expected = x, torch.zeros(2, dtype=x.dtype)
    for index, step in enumerate(steps_of(flow)):
        row = index % 4
        value = step.actnorm.scale * (value + step.actnorm.loc)
        expected = expected + 3 * step.actnorm.scale.abs().log().sum()
        hidden = value.clone()
        hidden[:, row] = 0
        conv = step.graph_conv
        messages = conv.edge_linear(hidden).view(2, 4, 6, 4)
        hidden = conv.self_linear(hidden) + torch.einsum("bemn,bnce->bmc", adj, messages)
        for norm, linear in zip(step.norms, step.linears, strict=True):
            shape = (1, 4, 1)
            mean, var = norm.running_mean.view(shape), norm.running_var.view(shape)
            hidden = (hidden - mean) / (var + 1e-5).sqrt() * norm.weight.view(shape) + norm.bias.view(shape)
            hidden = linear(hidden.relu())
        logits, shift = hidden[..., :3], hidden[..., 3:]
        moved = (value + shift) * torch.sigmoid(logits)
        value = torch.cat([value[:, :row], moved[:, row : row + 1], value[:, row + 1 :]], 1)
        for node in range(4):
            expected = expected + F.logsigmoid(logits[:, node]).sum(1)
    assert_close(z, value, rtol=1e-10, atol=1e-10)
    assert_close(log_det, expected, rtol=1e-10, atol=1e-10)


def test_a_step_transforms_only_its_row_and_rows_wrap_around() -> None:
    network = make_network()
    x, adj = inputs(network)
    for index, step in enumerate(steps_of(network.atom_flow)):
        z, _ = step(x, relations_of(adj))
        moved = (z != step.actnorm(x)[0]).any(2).any(0)
        assert moved.tolist() == [node == index % 4 for node in range(4)]


def test_scale_and_shift_do_not_depend_on_the_transformed_row() -> None:
    """The row's output is affine in its input."""
    network = make_network()
    step = steps_of(network.atom_flow.eval())[1]
    x, adj = inputs(network)
    other = x.clone()
    other[:, 1] += 1
    slopes = (step(other, relations_of(adj))[0] - step(x, relations_of(adj))[0])[:, 1]
    again = x.clone()
    again[:, 1] += 2
    assert_close((step(again, relations_of(adj))[0] - step(x, relations_of(adj))[0])[:, 1], 2 * slopes)


def test_relations_are_receiver_first_with_the_identity_as_relation_0() -> None:
    _, adj = make_network().one_hot(*make_molecules(2))
    adj = adj + torch.arange(16).view(4, 4)  # no longer symmetric
    relations = relations_of(adj)
    assert relations.is_contiguous() and relations.shape == (2, 4, 5, 4)
    assert torch.equal(relations[:, :, 0], torch.eye(4).double().expand(2, 4, 4))
    assert torch.equal(relations[:, 2, 1 + 3], adj[:, 3, 2])
    with torch.autocast("cpu", torch.bfloat16):
        assert relations_of(adj).dtype == torch.bfloat16


def test_an_unknown_log_determinant_is_refused() -> None:
    with pytest.raises(UserError, match="logdet=right"):
        unwrap(AtomFlow.__init__)(torch.nn.Module(), 4, 3, 4, 1, 4, (4,), "right")  # past the type checker


def test_rows_without_a_step_pass_the_actnorms_of_all_steps() -> None:
    """Values and gradients are those of the steps one by one, with scales of both signs."""
    flow = make_network(num_atom_flows=3).atom_flow
    x = torch.randn(5, 2, 3, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        flow.get_parameter("steps.1.actnorm.scale")[3] *= -1
    expected = torch.cat([torch.zeros_like(x), x], 1)
    for step in flow.steps:
        expected, _ = cast(AtomStep, step).actnorm(expected)
    leaves = [x, *(p for name, p in flow.named_parameters() if "actnorm" in name)]
    results = [
        [rows, *torch.autograd.grad(rows.square().sum(), leaves)] for rows in (flow.scaled(x, 2), expected[:, 2:])
    ]
    assert_close(*results)
