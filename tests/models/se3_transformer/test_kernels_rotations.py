"""The kernel of the edges' Wigner matrices, interpreted on the CPU, against plain torch in float64."""

import pytest
import torch

from src.models.se3_transformer.fast.frames import edge_rotations, packed_size, wigner
from src.models.se3_transformer.fast.rotations import edge_matrices
from tests.support.kernel_differences import error, random

AXES = torch.cat([torch.eye(3), -torch.eye(3)])
CORNERS = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 3)
NEARLY = torch.tensor([[1e-9, 1, 0], [0, -1, 1e-12], [1, 1e-30, 1e-30], [0, 0, 0]])
VECTORS = torch.cat([AXES, CORNERS, NEARLY, random(60, 3, seed=0).float()])  # more than a tile


@pytest.mark.parametrize("max_degree", range(5))
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_matrices_equal_plain_torch(max_degree: int, scale: float) -> None:
    matrices = edge_matrices(scale * VECTORS, max_degree, torch.float32)
    expected = wigner(edge_rotations((scale * VECTORS).double()), max_degree)
    assert matrices.shape == (len(VECTORS), packed_size(max_degree)) and error(matrices, expected) < 2e-6


def test_float16_is_rounded_once() -> None:
    matrices = edge_matrices(VECTORS, 3, torch.float16)
    assert torch.equal(matrices, edge_matrices(VECTORS, 3, torch.float32).half())
    assert edge_matrices(VECTORS[:0], 3, torch.float16).shape == (0, packed_size(3))
