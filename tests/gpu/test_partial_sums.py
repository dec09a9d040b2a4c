"""Partial sums of kernels, added by one launch, beside float64."""

import pytest
import torch

from src.gpu.partial_sums import sum_partials


@pytest.mark.parametrize("shape", [(7, 300, 33), (264, 437), (1056, 2, 128), (1, 3), (0, 5), (4, 0)])
def test_sums_are_those_of_float64(shape: tuple[int, ...]) -> None:
    partials = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    total = sum_partials(partials)
    assert total.shape == shape[1:] and total.dtype == torch.float32
    torch.testing.assert_close(total.double(), partials.double().sum(0), rtol=1e-6, atol=5e-5)
