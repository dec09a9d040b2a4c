"""The Adagrad that a CUDA graph can hold is torch's."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from src.gpu import triton_helpers, weight_copies
from src.gpu.weight_copies import WeightCopies
from src.training import adagrad
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


def float32_steps(
    monkeypatch: pytest.MonkeyPatch, with_kernels: bool, options: dict[str, float], rate: float | torch.Tensor
) -> list[torch.Tensor]:
    """Returns weights, copies of two of them and state after steps, of which one is skipped, by kernels or without."""
    monkeypatch.setattr(triton_helpers, "devices", {"cpu"} if with_kernels else set())
    generator = torch.Generator().manual_seed(1)
    # The last one, of an odd size, is not the kernels'.
    weights = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((300, 8), (4,), (5,))]
    optimizer: Any = Adagrad(weights, lr=rate, eps=1e-3, capturable=True, **options)
    adagrad.use_kernels(optimizer)
    copies = [torch.empty_like(weight, dtype=torch.float16) for weight in weights[1:]]
    with WeightCopies().active():
        weight_copies.cast(weights[1:], torch.float16, lambda: (copies, copies))
        for overflow in (False, True, False, False):
            for weight in weights:
                weight.grad = torch.randn(weight.shape, generator=generator) * (torch.inf if overflow else 16)
            optimizer.grad_scale, optimizer.found_inf = torch.tensor(16.0), torch.tensor(float(overflow))
            optimizer.step()
    for weight, target in zip(weights[1:], copies, strict=True):
        assert torch.equal(target, weight.detach().half())
    states = [value for weight in weights for value in optimizer.state[weight].values()]
    return [*(weight.detach() for weight in weights), *states]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)])
def test_steps_by_kernels_are_those_without(
    options: dict[str, float], rate: float | torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    updated = list[int]()
    plain = adagrad.update
    monkeypatch.setattr(
        adagrad, "update", lambda table, rows, *rest: (updated.append(len(rows)), plain(table, rows, *rest))
    )
    ours, others = (float32_steps(monkeypatch, with_kernels, options, rate) for with_kernels in (True, False))
    torch.testing.assert_close(ours, others, rtol=2e-6, atol=2e-6)
    assert updated == [2] * 4 and [float(value) for value in ours[3:] if value.ndim == 0] == [3.0] * 3


def test_kernels_are_given_floats_where_settings_are_whole_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton would compile others, which no list has."""
    monkeypatch.setattr(triton_helpers, "devices", {"cpu"})
    arguments: list[Any] = []
    monkeypatch.setattr(adagrad, "launch", lambda kernel, grid, *others, **constants: arguments.append(others))
    weight = nn.Parameter(torch.ones(4))
    optimizer = Adagrad([weight], lr=1, lr_decay=0, weight_decay=0, eps=0)
    adagrad.use_kernels(optimizer)
    weight.grad = torch.ones(4)
    optimizer.step()
    assert [type(value) for value in arguments[0] if not isinstance(value, torch.Tensor | None)] == [float] * 4
    assert arguments[1][-1] == 1
