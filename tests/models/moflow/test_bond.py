"""The bond flow: layout, inverse, log-determinant."""

import pytest
import torch
from torch.testing import assert_close

from src.errors import UserError
from src.models.moflow.bond import (
    BondFlow,
    InvertibleConv,
    InvertibleConvLU,
    divergence_note,
    squeeze,
    unsqueeze,
)
from tests.support.tiny_moflow import make_network, steps_of


def test_squeeze_orders_channels_by_kind_row_and_column() -> None:
    adj = torch.arange(2 * 3 * 6 * 6).view(2, 3, 6, 6).float()
    z = squeeze(adj, 2)
    assert z.shape == (2, 9, 12)
    for kind, row, column in [(0, 0, 0), (1, 2, 5), (2, 4, 3), (2, 5, 5)]:
        position = row // 2 * 3 + column // 2
        channel = (kind * 2 + row % 2) * 2 + column % 2
        assert torch.equal(z[:, position, channel], adj[:, kind, row, column])
    assert torch.equal(unsqueeze(z, 2), adj)


def random_adjacency(batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 4, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("conv_lu", [0, 1, 2])
def test_reverse_inverts_forward(conv_lu: int, training: bool) -> None:
    flow = make_network(conv_lu=conv_lu).bond_flow.train(training)
    adj = random_adjacency()
    z, _ = flow(adj)
    assert not torch.allclose(z, adj)
    assert_close(flow.reverse(z), adj, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("conv_lu", [0, 1, 2])
def test_log_determinant_equals_the_jacobians(conv_lu: int) -> None:
    flow = make_network(conv_lu=conv_lu).bond_flow.eval()
    adj = random_adjacency(1)
    jacobian = torch.autograd.functional.jacobian(lambda value: flow(value)[0], adj)
    _, log_det = flow(adj)
    assert_close(log_det[0], torch.linalg.slogdet(jacobian.view(64, 64))[1], rtol=1e-9, atol=1e-9)


def test_only_flows_without_1x1_convolution_alternate_halves() -> None:
    for conv_lu, expected in [(0, [False] * 3), (1, [False] * 3), (2, [False, True, False])]:
        assert [step.swap for step in steps_of(make_network(conv_lu=conv_lu).bond_flow)] == expected


def test_swap_exchanges_conditioning_and_transformed_half() -> None:
    first, second, _ = steps_of(make_network().bond_flow.eval())
    z = torch.randn(1, 4, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for step, kept in [(first, slice(0, 8)), (second, slice(8, 16))]:
        normalised, _ = step.actnorm(z)
        output, _ = step(z)
        same = (output == normalised).all((0, 1))
        assert same[kept].all() and same.sum() == 8


def test_1x1_convolutions_start_as_rotations() -> None:
    matrices = []
    for kind in (InvertibleConv, InvertibleConvLU):
        torch.manual_seed(0)
        conv = kind(6)
        matrices.append(conv.matrix())
        assert_close(matrices[-1] @ matrices[-1].T, torch.eye(6), atol=1e-5, rtol=0)
        assert abs(conv.log_abs_det().item()) < 1e-5
    assert_close(*matrices)


def test_plu_matrix_has_the_log_determinant_and_gradients_of_slogdet() -> None:
    torch.manual_seed(0)
    conv = InvertibleConvLU(12).double()
    parameters = list(conv.parameters())
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(0.3 * torch.randn_like(parameter))
    expected = torch.linalg.slogdet(conv.matrix())[1]
    assert_close(conv.log_abs_det(), expected, rtol=1e-12, atol=1e-12)
    _, log_det = conv(torch.randn(2, 4, 12, dtype=torch.float64))
    gradients = torch.autograd.grad(log_det, parameters, allow_unused=True, materialize_grads=True)
    assert_close(gradients, torch.autograd.grad(4 * expected, parameters), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("conv_lu", "lr", "slow"), [(1, 7e-3, "1e-03"), (1, 5e-3, None), (0, 1.0, None), (2, 1.0, None)]
)
def test_plu_convolutions_that_may_diverge_at_a_learning_rate_are_noted(
    conv_lu: int, lr: float, slow: str | None
) -> None:
    note = divergence_note(make_network(conv_lu=conv_lu).bond_flow, lr)
    assert (note is None) == (slow is None)
    if note is not None:
        assert f"conv_lu=1 of 16 channels may diverge at hp.lr={lr:g}" in note and f"give hp.lr={slow}" in note


@pytest.mark.parametrize(("changes", "word"), [({"fold": 3}, "bond_squeeze=3"), ({"conv_lu": 3}, "conv_lu=3")])
def test_impossible_sizes_are_refused_by_name(changes: dict[str, int], word: str) -> None:
    sizes = {"num_nodes": 4, "num_kinds": 4, "fold": 2, "num_flows": 1, "conv_lu": 2, **changes}
    with pytest.raises(UserError, match=word):
        BondFlow(hidden=(4, 4), **sizes)
