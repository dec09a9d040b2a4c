"""The angular basis and its coefficients at the polar axis, against e3nn."""

import pytest
import torch
from e3nn import o3
from torch import Tensor
from torch.testing import assert_close

from src.models.se3_transformer.basis import num_frequencies, pair_basis, polar_coefficients, wigner_3j
from tests.support.se3_small import ANGLES, seeded, wigner_matrix

PAIRS = [(d_in, d_out) for d_in in range(5) for d_out in range(5)]
POLAR = torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64)


def directions(count: int = 5) -> Tensor:
    return 3 * torch.randn(count, 3, dtype=torch.float64, generator=seeded(0))


@pytest.mark.parametrize("pair", PAIRS)
def test_every_map_is_equivariant(pair: tuple[int, int]) -> None:
    d_in, d_out = pair
    rel_pos = directions()
    basis = pair_basis(rel_pos, [pair])[pair]
    assert basis.shape == (5, 2 * d_in + 1, num_frequencies(pair), 2 * d_out + 1)
    rotated = pair_basis(rel_pos @ o3.angles_to_matrix(*ANGLES).T, [pair])[pair]
    expected = torch.einsum("li,eijo,ko->eljk", wigner_matrix(d_in), basis, wigner_matrix(d_out))
    assert_close(rotated, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("pair", PAIRS)
def test_maps_of_different_frequencies_are_orthogonal(pair: tuple[int, int]) -> None:
    """Their squared norm is 1 / 4 pi: 3j symbols have unit norm, |Y_J|^2 = (2J + 1) / 4 pi."""
    basis = pair_basis(directions(), [pair])[pair].transpose(1, 2).flatten(2)
    products = basis @ basis.transpose(1, 2)
    expected = torch.eye(num_frequencies(pair), dtype=torch.float64) / (4 * torch.pi)
    assert_close(products, expected.expand_as(products), rtol=0, atol=1e-12)


@pytest.mark.parametrize("pair", [(0, 0), (0, 2), (1, 0), (1, 2), (3, 1)])
def test_frequencies_ascend_and_components_equal_e3nns(pair: tuple[int, int]) -> None:
    """Against e3nn's tensor product, whose output is sqrt(2 degree + 1) times the contraction with the 3j symbol."""
    d_in, d_out = pair
    rel_pos = directions()
    basis = pair_basis(rel_pos, [pair])[pair]
    features = torch.randn(len(rel_pos), 2 * d_in + 1, dtype=torch.float64, generator=seeded(1))
    for number, j in enumerate(range(abs(d_in - d_out), d_in + d_out + 1)):
        parity = (-1) ** (j + d_in)
        product = o3.TensorProduct(
            f"1x{j}{'e' if j % 2 == 0 else 'o'}", f"1x{d_in}{'e' if d_in % 2 == 0 else 'o'}",
            f"1x{d_out}{'e' if parity > 0 else 'o'}", [(0, 0, 0, "uuu", False)],
            irrep_normalization="none", path_normalization="none",
        ).double()  # fmt: skip
        harmonics = o3.spherical_harmonics(j, rel_pos, normalize=True, normalization="integral")
        message = torch.einsum("ei,eio->eo", features, basis[:, :, number])
        assert_close(message, product(harmonics, features), rtol=1e-6, atol=1e-6)  # e3nn's symbols here are float32


def test_degree_zero_to_one_is_the_direction() -> None:
    rel_pos = directions()
    basis = pair_basis(rel_pos, [(0, 1)])[0, 1]
    assert_close(basis[:, 0, 0], rel_pos / rel_pos.norm(dim=1, keepdim=True) / (4 * torch.pi) ** 0.5)


def test_degree_one_to_one_has_a_scalar_a_cross_and_a_traceless_product() -> None:
    """In that order; the cross product changes its sign with the direction, the others do not."""
    rel_pos = directions()
    basis, opposite = (pair_basis(sign * rel_pos, [(1, 1)])[1, 1] for sign in (1, -1))
    scalar, cross, traceless = basis.unbind(2)
    scale = (4 * torch.pi) ** -0.5
    unit = rel_pos / rel_pos.norm(dim=1, keepdim=True)
    identity = torch.eye(3, dtype=torch.float64)
    assert_close(scalar, (identity * scale / 3**0.5).expand(5, 3, 3))
    assert_close(cross, -cross.transpose(1, 2))
    assert_close(torch.einsum("eio,eo->ei", cross, unit), torch.zeros(5, 3, dtype=torch.float64), rtol=0, atol=1e-15)
    outer = unit[:, :, None] * unit[:, None, :] - identity / 3
    assert_close(traceless, outer * scale * 1.5**0.5)
    assert_close(opposite[:, :, 1], -cross)
    assert_close(opposite[:, :, [0, 2]], basis[:, :, [0, 2]])


@pytest.mark.parametrize("pair", [(0, 0), (1, 1), (2, 2), (1, 2), (3, 3)])
def test_an_edge_of_length_zero_has_only_the_constant_map(pair: tuple[int, int]) -> None:
    basis = pair_basis(torch.zeros(2, 3, dtype=torch.float64), [pair])[pair]
    first = int(pair[0] == pair[1])  # pairs of different degrees have no J = 0
    size = 2 * pair[0] + 1
    if first:
        constant = torch.eye(size, dtype=torch.float64) / (size * 4 * torch.pi) ** 0.5
        assert_close(basis[:, :, 0], constant.expand(2, -1, -1))
    assert not basis[:, :, first:].any()


@pytest.mark.slow
def test_the_basis_does_not_depend_on_the_length_and_is_differentiable() -> None:
    rel_pos = directions().requires_grad_()
    pairs = [(0, 1), (2, 2)]
    assert_close(pair_basis(rel_pos, pairs), pair_basis(1e-3 * rel_pos, pairs))
    assert torch.autograd.gradcheck(lambda x: pair_basis(x, pairs)[2, 2], rel_pos)


@pytest.mark.parametrize("pair", PAIRS)
def test_polar_coefficients_give_the_basis_at_the_polar_axis(pair: tuple[int, int]) -> None:
    d_in, d_out = pair
    basis = pair_basis(POLAR, [pair])[pair][0]  # component in, J, component out
    coefficients = polar_coefficients(pair)
    assert coefficients.shape == (2 * min(pair) + 1, num_frequencies(pair))
    expected = torch.zeros_like(basis)
    expected[d_in, :, d_out] = coefficients[0]
    for m in range(1, min(pair) + 1):
        a, b = coefficients[2 * m - 1], coefficients[2 * m]
        expected[d_in + m, :, d_out + m], expected[d_in - m, :, d_out + m] = a, b
        expected[d_in + m, :, d_out - m], expected[d_in - m, :, d_out - m] = -b, a
    assert_close(basis, expected, rtol=0, atol=1e-14)
    assert coefficients[:, 0].any() and coefficients.abs().amax(1).min() > 1e-3  # every term and J occurs


@pytest.mark.parametrize("pair", PAIRS)
def test_coefficients_are_orthonormal_up_to_a_scale_if_m_counts_twice(pair: tuple[int, int]) -> None:
    """So mixing is invertible, with its transpose as inverse."""
    scaled = polar_coefficients(pair).clone() * (4 * torch.pi) ** 0.5
    scaled[1:] *= 2**0.5
    assert_close(scaled @ scaled.T, torch.eye(len(scaled), dtype=torch.float64), rtol=0, atol=1e-13)


def test_what_a_prediction_caches_can_be_part_of_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    wigner_3j.cache_clear()
    monkeypatch.setattr("src.models.se3_transformer.basis._on_device", {})
    with torch.inference_mode():
        pair_basis(POLAR, [(1, 1)])
    rel_pos = directions().requires_grad_()
    pair_basis(rel_pos, [(1, 1)])[1, 1].sum().backward()
    assert rel_pos.grad is not None
