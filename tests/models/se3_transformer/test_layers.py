"""LinearSE3 and NormSE3 against their formulas, per degree and node."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from src.models.se3_transformer import Fiber, LinearSE3, NormSE3
from tests.support.se3_small import ByDegree, random_features, rotated_flat, seeded

EQUAL, UNEQUAL = Fiber.create(4, 6), Fiber({0: 4, 1: 3, 3: 5})


def randomised(module: torch.nn.Module) -> torch.nn.Module:
    """Returns the module in float64 with random parameters."""
    generator = seeded(7)
    for parameter in module.double().parameters():
        parameter.data = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
    return module


@pytest.mark.parametrize(
    ("fiber_in", "fiber_out"),
    [(EQUAL, Fiber.create(4, 2)), (UNEQUAL, Fiber({0: 2, 1: 5})), (EQUAL, Fiber({1: 3, 2: 2}))],
)
def test_linear_multiplies_each_degree_by_its_matrix(fiber_in: Fiber, fiber_out: Fiber) -> None:
    layer, features = LinearSE3(fiber_in, fiber_out).double(), random_features(fiber_in, 5)
    expected = {d: torch.einsum("oi,nim->nom", layer.weights[str(d)], features[d]) for d in fiber_out}
    assert_close(layer(fiber_in.flatten(features)), fiber_out.flatten(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("other", [Fiber.create(4, 3), Fiber({0: 6}), UNEQUAL])
def test_linear_of_two_sources_concatenates_their_channels(other: Fiber) -> None:
    layer = LinearSE3(EQUAL + other, Fiber.create(4, 5), sources=(EQUAL, other)).double()
    first, second = random_features(EQUAL, 3), random_features(other, 3, seed=2)
    joined = {d: torch.cat([first[d], second[d]], 1) if d in other else first[d] for d in EQUAL}
    expected = {d: torch.einsum("oi,nim->nom", layer.weights[str(d)], joined[d]) for d in EQUAL}
    result = layer(EQUAL.flatten(first), other.flatten(second))
    assert_close(result, layer.fiber_out.flatten(expected), rtol=0, atol=1e-12)


def test_linear_output_degrees_without_input_are_zero() -> None:
    layer = LinearSE3(Fiber({0: 2}), Fiber({0: 3, 1: 2}))
    result = layer(torch.ones(4, 2))
    assert list(layer.weights) == ["0"] and result[:, :3].any() and not result[:, 3:].any()


def test_linear_weights_have_variance_1_over_input_channels() -> None:
    torch.manual_seed(0)
    layer = LinearSE3(Fiber({0: 400, 1: 100}), Fiber({0: 300, 1: 300}))
    for degree, scale in (("0", 1 / 20), ("1", 1 / 10)):
        assert layer.weights[degree].std().item() == pytest.approx(scale, rel=0.02)


def norm_of_each_node(norm: NormSE3, features: ByDegree) -> ByDegree:
    """Computes the norm nonlinearity, one node and degree at a time."""
    result, first = {}, 0
    for degree, feature in features.items():
        channels = norm.fiber.channels(degree)
        weight, bias = norm.weight[first : first + channels], norm.bias[first : first + channels]
        rows = []
        for node in feature:
            lengths = node.norm(dim=1).clamp(min=2**-24)
            normed = (lengths - lengths.mean()) / (lengths.var(correction=0) + 1e-5).sqrt()
            rows.append(node / lengths[:, None] * F.relu(normed * weight + bias)[:, None])
        result[degree] = torch.stack(rows)
        first += channels
    return result


@pytest.mark.parametrize("fiber", [EQUAL, UNEQUAL])
def test_norm_equals_its_formula(fiber: Fiber) -> None:
    norm, features = NormSE3(fiber), random_features(fiber, 4)
    randomised(norm)
    features[1][2] = 0
    expected = norm_of_each_node(norm, features)
    assert_close(norm(fiber.flatten(features)), fiber.flatten(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("fiber", [EQUAL, UNEQUAL])
def test_norm_of_zero_is_zero_with_a_finite_gradient(fiber: Fiber) -> None:
    norm = NormSE3(fiber)
    torch.nn.init.ones_(norm.bias)
    features = torch.zeros(3, fiber.num_features, requires_grad=True)
    result = norm(features)
    result.sum().backward()
    assert not result.any() and features.grad is not None and features.grad.isfinite().all()


@pytest.mark.parametrize("fiber", [EQUAL, UNEQUAL])
def test_norm_of_float16_has_statistics_in_float32(fiber: Fiber) -> None:
    """Squares of 300 overflow float16, squares of 1e-4 underflow."""
    norm = NormSE3(fiber)
    torch.nn.init.ones_(norm.bias)
    for scale in (300.0, 1e-4):
        features = (scale * fiber.flatten(random_features(fiber, 4, torch.float32))).half()
        result = norm(features)
        assert result.dtype == torch.float16
        assert_close(result.float(), norm(features.float()), rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("fiber", [EQUAL, UNEQUAL])
@pytest.mark.parametrize("kind", [LinearSE3, NormSE3])
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_layers_are_equivariant(kind: type, fiber: Fiber, dtype: torch.dtype, atol: float) -> None:
    layer = randomised(LinearSE3(fiber, fiber) if kind is LinearSE3 else NormSE3(fiber)).to(dtype)
    features = fiber.flatten(random_features(fiber, 6, dtype))
    result = layer(features)
    assert result.abs().max() > 0.1
    assert_close(layer(rotated_flat(features, fiber)), rotated_flat(result, fiber), rtol=0, atol=atol)


@pytest.mark.parametrize("fiber", [pytest.param(EQUAL, marks=pytest.mark.slow), UNEQUAL])
@pytest.mark.parametrize("kind", [LinearSE3, NormSE3])
def test_gradients_equal_numerical_ones(kind: type, fiber: Fiber) -> None:
    layer = randomised(LinearSE3(fiber, fiber) if kind is LinearSE3 else NormSE3(fiber))
    features = fiber.flatten(random_features(fiber, 2)).requires_grad_()
    names = [name for name, _ in layer.named_parameters()]

    def function(features: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (features,))

    assert torch.autograd.gradcheck(function, (features, *layer.parameters()))
