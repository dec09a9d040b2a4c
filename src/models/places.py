"""Where a gradient may be written so that nobody has to copy it to where it travels from."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

_offered: dict[int, Tensor] = {}  # by the parameter's address


def offer(places: Mapping[nn.Parameter, Tensor]) -> None:
    """For each parameter memory of its shape, layout and dtype, until somebody takes it."""
    _offered.update((parameter.data_ptr(), place) for parameter, place in places.items())


def withdraw(parameters: Iterable[nn.Parameter]) -> None:
    """Takes back what has not been taken."""
    for parameter in parameters:
        _offered.pop(parameter.data_ptr(), None)


def place_of(parameter: Tensor) -> Tensor:
    """Memory for a parameter's gradient, laid out as it is. To be overwritten whole, returned to autograd, not kept.

    It is given once in a step: where a parameter has several parts in the loss, each has its own memory.
    """
    place = _offered.pop(parameter.data_ptr(), None)
    if place is None:
        return torch.empty_like(parameter)
    # Nobody else holds the alias: autograd takes it as the gradient, without a copy.
    return place.detach()
