"""A fused SGD whose first step is skipped for an overflow goes on as if that step had not been."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from src.errors import UserError
from src.training.task import begin_momentum

OPTIONS = {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-2}


@pytest.fixture
def visible_garbage() -> Iterator[None]:
    """Memory that was not initialised holds NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def stepped(overflows: list[bool], fused: bool) -> list[torch.Tensor]:
    """Returns the weights after each step; a plain SGD does not take steps that overflow."""
    weight = nn.Parameter(torch.linspace(-1, 1, 7))
    optimizer: Any = torch.optim.SGD([weight], **OPTIONS, fused=fused)
    if fused:
        begin_momentum(optimizer)
    weights = []
    for step, overflow in enumerate(overflows):
        weight.grad = torch.full((7,), torch.inf) if overflow else torch.arange(7.0) - step
        if fused:
            optimizer.grad_scale, optimizer.found_inf = torch.ones(()), torch.tensor(float(overflow))
        if fused or not overflow:
            optimizer.step()
        weights.append(weight.detach().clone())
    return weights


@pytest.mark.usefixtures("visible_garbage")
@pytest.mark.parametrize("overflows", [[False] * 3, [True, False, False], [True, True, False, True, False]])
def test_a_skipped_step_leaves_no_trace(overflows: list[bool]) -> None:
    torch.testing.assert_close(stepped(overflows, fused=True), stepped(overflows, fused=False), rtol=1e-6, atol=1e-7)


def test_dampening_is_refused() -> None:
    weight = nn.Parameter(torch.ones(1))
    with pytest.raises(UserError, match=r"dampening=0\.5 is not for a GPU"):
        begin_momentum(torch.optim.SGD([weight], lr=0.1, momentum=0.9, dampening=0.5))
