"""Gradients of parameters that a loss uses several times, added by few launches.

autograd adds the second gradient of a parameter by a launch of its own. With hundreds of small parameters that takes
several times as long as the memory traffic.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def separate_uses(network: nn.Module, count: int) -> list[AbstractContextManager[None]]:
    """Returns a context for each use of the network's trained parameters; within, its modules have aliases of them.

    The parameters get the sum of the gradients, all of them once the last use has its own: with several ranks the
    first gradients could not be averaged during the backward pass.
    """
    places: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    for module in network.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.requires_grad:
                places.setdefault(parameter, []).append((module, name))
    aliases = Aliases.apply(count, *places)
    uses = [aliases[use * len(places) : (use + 1) * len(places)] for use in range(count)]  # type: ignore[index]
    return [replaced(list(places.values()), use) for use in uses]


@contextmanager
def replaced(places: Sequence[Sequence[tuple[nn.Module, str]]], tensors: Sequence[Tensor]) -> Iterator[None]:
    """Puts tensors in the place of parameters, each of which has one or several modules and names."""
    pairs = [(module._parameters, name, t) for of, t in zip(places, tensors, strict=True) for module, name in of]
    before = [parameters[name] for parameters, name, _ in pairs]
    try:
        for parameters, name, tensor in pairs:
            parameters[name] = tensor  # type: ignore[assignment]
        yield
    finally:
        for (parameters, name, _), parameter in zip(pairs, before, strict=True):
            parameters[name] = parameter


class Aliases(torch.autograd.Function):
    """Returns `count` aliases of every tensor: the first ones of all, then the second ones."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.count = count
        ctx.set_materialize_grads(False)
        return tuple(tensor.detach() for _ in range(count) for tensor in tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        size = len(grads) // ctx.count
        sums, *others = (list(grads[begin : begin + size]) for begin in range(0, len(grads), size))
        for other in others:
            both = [i for i in range(size) if sums[i] is not None and other[i] is not None]
            sums = [b if a is None else a for a, b in zip(sums, other, strict=True)]
            if both:
                added: Any = torch._foreach_add([sums[i] for i in both], [other[i] for i in both])  # type: ignore[misc]  # pyright: ignore
                for i, gradient in zip(both, added, strict=True):
                    sums[i] = gradient
        return None, *sums
