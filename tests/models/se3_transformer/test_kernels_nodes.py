"""The kernels of norm, linear layers and radial networks, interpreted on the CPU, against plain torch in float64."""

from typing import Any

import pytest
import torch
from torch import nn

from src.models.se3_transformer import Fiber, fast
from src.models.se3_transformer.fast.linear import FastLinearSE3  # noqa: F401  # imports the kernels
from src.models.se3_transformer.fast.norm import FastNormSE3  # noqa: F401
from src.models.se3_transformer.fast.radial import FastHiddenLayers  # noqa: F401
from src.models.se3_transformer.linear import multiply
from src.models.se3_transformer.radial import Group, RadialGroup
from tests.support.kernel_differences import difference, random
from tests.support.se3_kernels import hidden_layer, multiplying, normalising

fused: Any = fast
SINGLE, HALF = 5e-6, 2e-3  # relative to the largest number; float16 rounds at 5e-4


@pytest.mark.parametrize("fiber", [Fiber({0: 8}), Fiber.create(2, 3), Fiber.create(4, 16), Fiber.create(5, 12)])
@pytest.mark.parametrize("nodes", [1, 4, 11])
def test_norm_equals_the_reference(fiber: Fiber, nodes: int) -> None:
    difference = normalising(fused, fiber, nodes, torch.float32)
    assert max(difference.output, *difference.gradients[1:]) < SINGLE
    assert difference.gradients[0] < 3e-5  # cancellation for scalars near 0


def test_norm_over_more_nodes_than_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program then computes several tiles, of which the last may be empty."""
    monkeypatch.setattr(fused.norm, "PROGRAMS", 2)
    monkeypatch.setattr(fused.norm, "ELEMENTS", 16)
    assert normalising(fused, Fiber.create(3, 8), 9, torch.float32).largest < SINGLE


def test_lengths_are_clamped_to_the_smallest() -> None:
    """Clamped lengths have no gradient; 1.5 clamps about half of them."""
    fiber = Fiber.create(3, 8)
    assert normalising(fused, fiber, 9, torch.float32, smallest=1.5).largest < SINGLE


def test_norm_of_float16_is_computed_in_float32() -> None:
    difference = normalising(fused, Fiber.create(3, 8), 9, torch.float16)
    assert difference.largest < HALF
    assert max(difference.gradients[1:]) < SINGLE


def test_norm_of_zero_is_zero_with_a_finite_gradient() -> None:
    fiber = Fiber.create(3, 8)
    features = torch.zeros(5, fiber.num_features, requires_grad=True)
    result = fused.norm.norm(features, torch.ones(24), torch.ones(24), fiber, 2.0**-24, 1e-5)
    result.sum().backward()
    assert not result.any() and features.grad is not None and features.grad.isfinite().all()


def test_norm_supports_rectangles_that_fit_a_tile() -> None:
    assert fused.norm.supported(Fiber.create(5, 64)) and fused.norm.supported(Fiber.create(2, 128))
    for fiber in (Fiber.create(6, 4), Fiber.create(2, 513), Fiber({0: 4, 1: 8}), Fiber({0: 4, 2: 4}), Fiber({1: 4})):
        assert not fused.norm.supported(fiber)


@pytest.mark.parametrize(
    ("degrees", "inner", "outer", "nodes"),
    [
        (1, (6,), 16, 1),
        (2, (4, 20), 33, 67),
        (3, (2, 3), 1, 65),
        pytest.param(4, (8,), 4, 67, marks=pytest.mark.slow),
        pytest.param(3, (5,), 7, 64, marks=pytest.mark.slow),
        pytest.param(2, (16, 16), 16, 5, marks=pytest.mark.slow),
        pytest.param(2, (3, 128), 128, 3, marks=pytest.mark.slow),
    ],
)
def test_linear_equals_the_reference(degrees: int, inner: tuple[int, ...], outer: int, nodes: int) -> None:
    assert multiplying(fused, degrees, inner, outer, nodes, torch.float32).largest < SINGLE


def test_the_gradient_of_the_input_adds_that_of_its_other_uses() -> None:
    fiber = Fiber.create(3, 5)
    inputs = [random(3, 6, 5, seed=0).float(), random(67, fiber.num_features, seed=1).float()]

    def both(out: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        return torch.cat([out, 2 * features], 1)

    def plain(weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return both(multiply((x,), weights, Fiber.create(3, 6)), x)

    assert difference(lambda w, x: both(*fused.linear.linear((x,), w)), plain, inputs).largest < SINGLE
    weights, features = (x.requires_grad_() for x in inputs)
    _, other = fused.linear.linear((features,), weights)
    assert (torch.autograd.grad(2 * other.sum(), features)[0] == 2).all()
    assert not fused.linear.linear((features.detach(),), weights)[1].requires_grad


def test_linear_over_more_nodes_than_tiles_of_all_splits() -> None:
    """With 64 nodes per tile and 32 splits, a split computes several tiles and the last splits none."""
    assert multiplying(fused, 1, (2, 3), 4, 2200, torch.float32).largest < SINGLE


def test_float16_linear_sums_in_float32() -> None:
    difference = multiplying(fused, 2, (8, 4), 8, 70, torch.float16)
    assert difference.largest < HALF
    assert difference.gradients[0] < SINGLE


def test_linear_skips_the_gradient_of_an_input_that_needs_none() -> None:
    weights = random(2, 4, 6, seed=0).float().requires_grad_()
    first, second = random(3, 16, seed=1).float(), random(3, 8, seed=2).float().requires_grad_()
    fused.linear.linear((first, second), weights)[0].sum().backward()
    assert first.grad is None and second.grad is not None and weights.grad is not None
    expected = weights.detach()[[0, 1, 1, 1], :, 4:].sum(1).flatten().expand(3, -1)
    torch.testing.assert_close(second.grad, expected)


def test_linear_supports_one_or_two_inputs_that_fit_a_tile() -> None:
    assert fused.linear.supported((128, 128), 128)
    assert not fused.linear.supported((4, 4, 4), 4)
    assert not fused.linear.supported((129,), 4) and not fused.linear.supported((4, 4), 129)


@pytest.mark.parametrize("wants_inputs", [False, True])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(("scalars", "mid"), [(5, 32), (1, 16), (16, 64)])
@pytest.mark.parametrize("edges", [1, 70])
def test_radial_network_equals_plain_torch(scalars: int, mid: int, norm: bool, edges: int, wants_inputs: bool) -> None:
    assert hidden_layer(fused, scalars, mid, norm, edges, wants_inputs).largest < SINGLE


def test_radial_network_over_more_edges_than_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program then computes several tiles, of which the last may be empty."""
    monkeypatch.setattr(fused.radial, "PROGRAMS", 2)
    assert hidden_layer(fused, 5, 16, True, 4 * 64 + 3, True).largest < SINGLE


def test_radial_network_of_float16_is_computed_in_float32() -> None:
    """Inputs may have any dtype; the hidden layer is float32."""
    network = RadialGroup(Group(Fiber({0: 1}), Fiber({0: 1})), 4, 16, True).hidden
    inputs = random(9, 4, seed=0).half()
    result = fused.radial.hidden(inputs, network)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, network(inputs.float()))


@pytest.mark.parametrize(
    ("scalars", "mid", "supported"), [(16, 32, True), (17, 32, False), (5, 24, False), (5, 128, False)]
)
def test_radial_networks_of_other_widths_are_not_supported(scalars: int, mid: int, supported: bool) -> None:
    network = RadialGroup(Group(Fiber({0: 1}), Fiber({0: 1})), scalars, mid, True).hidden
    assert fused.radial.supported(network) is supported
    assert not fused.radial.supported(nn.Sequential(nn.ReLU()))
