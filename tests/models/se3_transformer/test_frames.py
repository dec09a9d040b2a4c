"""Edge frames: rotations to the polar axis, their Wigner matrices, and the layout of features in the frames."""

import pytest
import torch
from e3nn import o3
from torch import Tensor
from torch.testing import assert_close

from src.models.se3_transformer import Fiber
from src.models.se3_transformer.fast.frames import (
    EdgeLayout,
    edge_rotations,
    packed_offset,
    packed_size,
    rotation_table,
    wigner,
    wigner_of,
)
from tests.support.se3_small import random_features, seeded

FIBERS = [Fiber.create(4, 3), Fiber({0: 2, 1: 3, 3: 4}), Fiber({2: 5})]
AXES = torch.cat([torch.eye(3), -torch.eye(3)]).double()
CORNERS = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 3)
NEARLY = torch.tensor([[1e-9, 1, 0], [0, -1, 1e-12], [1, 1e-200, 1e-200]], dtype=torch.float64)
RANDOM = torch.randn(20, 3, dtype=torch.float64, generator=seeded(0))
VECTORS = torch.cat([AXES, CORNERS, NEARLY, RANDOM])


def assert_rotations(matrices: Tensor, atol: float) -> None:
    identity = torch.eye(3, dtype=matrices.dtype).expand_as(matrices)
    assert_close(matrices @ matrices.transpose(1, 2), identity, rtol=0, atol=atol)
    assert_close(torch.linalg.det(matrices), torch.ones_like(matrices[:, 0, 0]), rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("dtype", "scale", "atol"),
    [
        (torch.float64, 1.0, 1e-14),
        (torch.float64, 1e-290, 1e-14),
        (torch.float64, 1e290, 1e-14),
        (torch.float32, 1.0, 1e-6),
        (torch.float32, 1e-30, 1e-6),
        (torch.float32, 1e30, 1e-6),
    ],
)
def test_every_direction_is_rotated_to_the_polar_axis(dtype: torch.dtype, scale: float, atol: float) -> None:
    """Also for vectors whose squares underflow or overflow."""
    vectors = (scale * VECTORS).to(dtype)
    rotations = edge_rotations(vectors)
    assert_rotations(rotations, atol)
    unit = VECTORS / VECTORS.norm(dim=1, keepdim=True)
    polar = torch.tensor([0.0, 1.0, 0.0], dtype=dtype).expand(len(vectors), 3)
    assert_close((rotations @ unit.to(dtype)[:, :, None])[:, :, 0], polar, rtol=0, atol=atol)


def test_a_vector_of_length_zero_has_a_rotation() -> None:
    assert_rotations(edge_rotations(torch.zeros(2, 3)), 1e-6)


def test_without_edges_there_are_no_rotations() -> None:
    assert wigner(edge_rotations(torch.zeros(0, 3)), 3).shape == (0, packed_size(3))


@pytest.fixture
def double(request: pytest.FixtureRequest) -> None:
    """Sets the default dtype to float64, in which e3nn creates its generators."""
    default = torch.get_default_dtype()
    request.addfinalizer(lambda: torch.set_default_dtype(default))
    torch.set_default_dtype(torch.float64)


@pytest.mark.parametrize("degree", range(5))
def test_wigner_matrices_equal_e3nns(degree: int, double: None) -> None:
    rotations = edge_rotations(RANDOM) @ edge_rotations(RANDOM.roll(1, 0)).transpose(1, 2)
    expected = o3.wigner_D(degree, *o3.matrix_to_angles(rotations))
    assert_close(wigner_of(wigner(rotations, 4), degree), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("max_degree", range(5))
def test_packed_matrices_are_consecutive(max_degree: int) -> None:
    packed = wigner(edge_rotations(RANDOM), max_degree)
    assert packed.shape == (20, packed_size(max_degree))
    assert_close(packed, wigner(edge_rotations(RANDOM), 4)[:, : packed_size(max_degree)])
    assert [packed_offset(degree) for degree in range(5)] == [0, 1, 10, 35, 84]


@pytest.mark.parametrize("fiber", FIBERS)
@pytest.mark.parametrize("max_m", range(4))
def test_rows_are_ordered_by_m_without_gaps(fiber: Fiber, max_m: int) -> None:
    layout = EdgeLayout(fiber, max_m)
    rows = list(layout.rows())
    assert rows == sorted(rows, key=lambda row: (abs(row[1]), row[1] < 0, row[0]))
    assert {*rows} == {(d, m) for d in fiber for m in range(-d, d + 1) if abs(m) <= max_m}
    column = 0
    for degree, m in rows:
        assert layout.offsets[degree, m] == column
        column += fiber.channels(degree)
    assert layout.num_features == column


@pytest.mark.parametrize("fiber", FIBERS)
@pytest.mark.parametrize("max_m", range(4))
def test_to_edge_rotates_features(fiber: Fiber, max_m: int) -> None:
    layout, packed = EdgeLayout(fiber, max_m), wigner(edge_rotations(RANDOM), 3)
    features = random_features(fiber, len(RANDOM))
    in_frame = layout.to_edge(fiber.flatten(features), packed)
    assert in_frame.shape == (20, layout.num_features)
    for (degree, m), begin in layout.offsets.items():
        row = wigner_of(packed, degree)[:, degree + m]
        expected = torch.einsum("ec,enc->en", row, features[degree])
        assert_close(in_frame[:, begin : begin + fiber.channels(degree)], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("fiber", FIBERS)
@pytest.mark.parametrize("max_m", range(4))
def test_from_edge_is_the_transpose_of_to_edge(fiber: Fiber, max_m: int) -> None:
    """And the inverse if every m is kept."""
    layout, packed = EdgeLayout(fiber, max_m), wigner(edge_rotations(RANDOM), 3)
    features = fiber.flatten(random_features(fiber, len(RANDOM)))
    columns = torch.randn(20, layout.num_features, dtype=torch.float64, generator=seeded(3))
    forth, back = layout.to_edge(features, packed), layout.from_edge(columns, packed)
    assert_close((forth * columns).sum(1), (features * back).sum(1), rtol=0, atol=1e-12)
    assert back.shape == features.shape
    if max_m == 3:
        assert_close(layout.from_edge(forth, packed), features, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("fiber", "channels"),
    [(Fiber.create(3, 5), 5), (Fiber({0: 4}), 4), (Fiber({0: 4, 1: 5}), None), (Fiber({0: 4, 2: 4}), None)],
)
def test_a_layout_has_channels_only_for_equal_channels_in_all_lower_degrees(fiber: Fiber, channels: int | None) -> None:
    assert EdgeLayout(fiber, 2).channels == channels


@pytest.mark.parametrize("max_m", range(4))
def test_the_rotation_table_indexes_the_packed_matrices(max_m: int) -> None:
    layout, packed = EdgeLayout(Fiber.create(4, 2), max_m), wigner(edge_rotations(RANDOM), 3)
    table = rotation_table(layout, 16, torch.device("cpu")).long()
    matrix = torch.where(table >= 0, packed[:, table.clamp_min(0)], 0.0)
    features = torch.randn(20, 16, 2, dtype=torch.float64, generator=seeded(4))
    in_frame = (matrix @ features)[:, : layout.num_features // 2].flatten(1)
    assert_close(in_frame, layout.to_edge(features.flatten(1), packed), rtol=0, atol=1e-12)
    assert table.shape == (16, 16) and (table[layout.num_features // 2 :] == -1).all()
