"""How far a kernel is from the same function in float64, forward and backward."""

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

if os.environ.get("TRITON_INTERPRET") == "1":
    from tests.support import interpreter  # noqa: F401


class Difference(NamedTuple):
    """The largest error of the kernel beside the largest number there is, and its gradients in the inputs' order."""

    output: float
    gradients: tuple[float, ...]

    @property
    def largest(self) -> float:
        return max(self.output, *self.gradients)


def random(*shape: int, seed: int, device: str = "cpu") -> Tensor:
    """Normal numbers in float64, the same on every device."""
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(device)


def error(actual: Tensor, expected: Tensor) -> float:
    """Returns the largest difference, beside the largest number expected. Not a number counts as infinitely wrong."""
    assert actual.shape == expected.shape
    distance = (actual.double() - expected.double()).abs().nan_to_num(nan=torch.inf).amax()
    return float(distance / expected.abs().amax().clamp_min(1e-30)) if distance else 0.0


def outcome(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Returns the function's value and the gradients of a random linear function of it, exact in every dtype."""
    inputs = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    value = function(*inputs)
    weights = random(*value.shape, seed=99).mul(16).round().div(16).to(value)
    return value.detach(), torch.autograd.grad(value, inputs, weights)


def difference(kernel: Callable[..., Tensor], plain: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Difference:
    """Between the kernel on these inputs and plain torch on the same numbers in float64."""
    value, gradients = outcome(kernel, inputs)
    expected, expected_gradients = outcome(plain, [tensor.double() for tensor in inputs])
    assert all(gradient.dtype == tensor.dtype for gradient, tensor in zip(gradients, inputs, strict=True))
    return Difference(
        error(value, expected),
        tuple(error(gradient, exact) for gradient, exact in zip(gradients, expected_gradients, strict=True)),
    )
