"""Transposed copies, by a kernel in Triton's interpreter, and gradients of linear layers."""

import pytest
import torch

from src.gpu.products import input_gradient
from src.gpu.transpose import transposed


@pytest.mark.parametrize(("rows", "columns", "length"), [(1, 1, 1), (70, 65, 96), (64, 64, 64), (130, 3, 192)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_it_copies_the_transpose_and_pads_with_zeros(rows: int, columns: int, length: int, dtype: torch.dtype) -> None:
    matrix = torch.randn(rows, columns).to(dtype)
    copy = transposed(matrix, length)
    assert copy.is_contiguous() and copy.shape == (columns, length)
    assert torch.equal(copy[:, :rows], matrix.t()) and not copy[:, rows:].any()


@pytest.mark.parametrize("shape", [(70, 5), (64, 128), (3, 200)])
def test_columns_of_a_wider_matrix(shape: tuple[int, int]) -> None:
    part = torch.arange(shape[0] * (shape[1] + 3.0)).view(shape[0], -1)[:, 3:]
    assert torch.equal(transposed(part), part.t())


def test_the_input_gradient_is_that_of_autograd() -> None:
    x, weight = torch.randn(7, 5, requires_grad=True), torch.randn(3, 5)
    grad, rest = torch.randn(7, 3), torch.randn(7, 5)
    (expected,) = torch.autograd.grad(x @ weight.t(), x, grad)
    torch.testing.assert_close(input_gradient(grad, weight), expected)
    torch.testing.assert_close(input_gradient(grad, weight, rest.clone()), expected + rest)
