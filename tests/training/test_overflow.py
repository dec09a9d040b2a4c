"""The search for gradients that are not finite, in Triton's interpreter."""

from typing import Any

import pytest
import torch
from torch import Tensor

from src.gpu import triton_helpers
from src.training import overflow
from src.training.overflow import Overflow

SHAPES = (40, 300), (8,), (33, 33), (3, 4, 5)  # the third has an odd number of elements


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_helpers, "devices", {"cuda", "cpu"})


def gradients() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(shape, generator=generator) for shape in SHAPES]
    values[0] = values[0].T
    values[1][0], values[1][1] = torch.finfo(torch.float32).max, torch.finfo(torch.float32).min
    return values


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("number", range(len(SHAPES)))
@pytest.mark.parametrize("place", [0, -1])
def test_one_number_is_found(value: float, number: int, place: int) -> None:
    values = gradients()
    before = [gradient.clone() for gradient in values]
    values[number][(place,) * values[number].ndim] = value
    assert float(Overflow()(values)) == 1
    others = [i for i in range(len(SHAPES)) if i != number]
    assert all(torch.equal(values[i], before[i]) for i in others)


def test_finite_gradients_are_left_as_they_are() -> None:
    values, before = gradients(), gradients()
    found_inf = Overflow()(values)
    assert float(found_inf) == 0 and found_inf.shape == ()
    assert all(map(torch.equal, values, before))


def test_what_the_search_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    values: list[Any] = gradients()
    assert overflow.supported(values) and not overflow.supported([])
    assert not overflow.supported([*values, values[0].double()])
    assert not overflow.supported([values[0].half()])
    assert not overflow.supported([torch.eye(3).to_sparse()])
    monkeypatch.setattr(triton_helpers, "devices", {"cuda"})
    assert not overflow.supported(values)
