"""The Adagrad that a CUDA graph can hold is torch's."""

import copy

import pytest
import torch
from torch import nn

from src.training.adagrad import Adagrad

OPTIONS = [{}, {"weight_decay": 0.1}, {"lr_decay": 0.3, "initial_accumulator_value": 0.2}]


def gradients(step: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((3, 4), (5,))]


def stepped(
    optimizer_class: type, options: dict[str, float], scales: list[float], overflows: list[bool]
) -> list[nn.Parameter]:
    """Returns the weights after a step for each scale; torch's own takes unscaled gradients, and no overflow."""
    weights = [nn.Parameter(torch.full(shape, 0.5, dtype=torch.float64)) for shape in ((3, 4), (5,))]
    optimizer = optimizer_class(weights, lr=0.1, eps=1e-3, **options)
    for step, (scale, overflow) in enumerate(zip(scales, overflows, strict=True)):
        ours = optimizer_class is Adagrad
        for weight, gradient in zip(weights, gradients(step), strict=True):
            weight.grad = gradient * scale * (torch.inf if overflow else 1) if ours else gradient
        if ours:
            optimizer.grad_scale = torch.tensor(scale, dtype=torch.float64)
            optimizer.found_inf = torch.tensor(float(overflow))
        if ours or not overflow:
            optimizer.step()
    return weights


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("overflows", [[False] * 4, [True, False, False, True], [False, True, False, False]])
def test_its_steps_are_torchs(options: dict[str, float], overflows: list[bool]) -> None:
    scales = [1.0, 8.0, 64.0, 0.5]
    ours, torchs = (stepped(kind, options, scales, overflows) for kind in (Adagrad, torch.optim.Adagrad))
    torch.testing.assert_close(ours, torchs, rtol=1e-7, atol=0)  # a rate that falls is float32


def test_its_state_goes_on_in_torchs_and_back() -> None:
    weights = [nn.Parameter(torch.ones(3))]
    mine, theirs = Adagrad(weights, lr_decay=0.5, capturable=True), torch.optim.Adagrad(weights, lr_decay=0.5)
    weights[0].grad = torch.ones(3)
    mine.step()
    theirs.load_state_dict(copy.deepcopy(mine.state_dict()))
    for name, value in mine.state[weights[0]].items():
        assert torch.equal(theirs.state[weights[0]][name], value)
    mine.load_state_dict(theirs.state_dict())
    assert float(mine.state[weights[0]]["step"]) == 1
