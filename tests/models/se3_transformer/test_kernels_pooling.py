"""The kernels of pooling by the maximum, interpreted on the CPU, against plain torch: equal to the last bit."""

import pytest
import torch
from torch import Tensor

from src.gpu import triton_helpers
from src.models.se3_transformer.fast.pooling import FastPool, maximum
from src.models.se3_transformer.pooling import Pool, pool
from tests.support.kernel_differences import outcome, random

SIZES = [3, 1, 0, 40, 2, 0, 64]  # more nodes than a tile's 32, and exactly two tiles
GRAPH_PTR = torch.tensor([0, *SIZES]).cumsum(0)


def features(dtype: torch.dtype, columns: int = 5) -> Tensor:
    """Returns negative numbers, so that a 0 would be the maximum, with many ties, and five padded nodes."""
    return (random(sum(SIZES) + 5, columns, seed=3).mul(2).round().div(2) - 4).to(dtype)


@pytest.mark.parametrize("columns", [1, 5, 130])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("pointer", [GRAPH_PTR, GRAPH_PTR.int()], ids=["int64", "int32"])
def test_maxima_and_gradients_equal_plain_torch(pointer: Tensor, dtype: torch.dtype, columns: int) -> None:
    value, (gradient,) = outcome(lambda x: maximum(x, pointer), [features(dtype, columns)])
    expected, (expected_gradient,) = outcome(lambda x: pool(x, pointer, "max"), [features(dtype, columns)])
    assert torch.equal(value, expected) and torch.equal(gradient, expected_gradient)
    assert gradient.count_nonzero() > columns and not gradient[-5:].any()


@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf])
def test_a_special_value_affects_its_molecule_as_in_plain_torch(special: float) -> None:
    x = features(torch.float32)
    x[10, 1], x[20, 1], x[38, 1], x[3, 2], x[105, 3] = special, special, torch.inf, special, special
    value, (gradient,) = outcome(lambda x: maximum(x, GRAPH_PTR), [x])
    expected, (expected_gradient,) = outcome(lambda x: pool(x, GRAPH_PTR, "max"), [x])
    assert torch.equal(value.nan_to_num(9), expected.nan_to_num(9)) and torch.equal(gradient, expected_gradient)


def test_gradients_can_be_differentiated_again() -> None:
    x = features(torch.float32).requires_grad_()
    results = []
    for function in (maximum, lambda x, pointer: pool(x, pointer, "max")):
        (first,) = torch.autograd.grad(function(x, GRAPH_PTR).pow(3).sum(), x, create_graph=True)
        results.append(torch.autograd.grad(first.square().sum(), x)[0])
    assert torch.equal(*results) and results[0].any()


@pytest.mark.parametrize("kind", ["max", "mean"])
def test_the_module_leaves_means_to_plain_torch(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_helpers, "devices", {"cpu"})
    module = Pool(kind)  # type: ignore[arg-type]
    expected = module(features(torch.float32), GRAPH_PTR)
    module.__class__ = FastPool
    x = features(torch.float32).requires_grad_()
    result = module(x, GRAPH_PTR)
    assert torch.equal(result, expected) and ("Maximum" in str(result.grad_fn)) == (kind == "max")
