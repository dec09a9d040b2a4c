"""Where a gradient may be written so that nobody has to copy it to where it travels from."""

from collections.abc import Iterable, Mapping
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

# By the parameter's address. Memory whose owner is gone must not be given to who comes to live at that address.
_offered: WeakValueDictionary[int, Tensor] = WeakValueDictionary()


def offer(places: Mapping[nn.Parameter, Tensor]) -> None:
    """For each parameter memory of its shape, layout and dtype, until somebody takes it or its owner lets it go."""
    _offered.update((parameter.data_ptr(), place) for parameter, place in places.items())


def withdraw(places: Iterable[Tensor]) -> None:
    """Takes back what has not been taken, wherever the parameters are by now."""
    owned = {id(place) for place in places}
    for address, place in list(_offered.items()):
        if id(place) in owned:
            del _offered[address]


def slot_of(parameter: Tensor) -> Tensor:
    """Memory for a parameter's gradient, laid out as it is. To be overwritten whole, returned to autograd, not kept.

    It is given once in a step: where a parameter has several parts in the loss, each has its own memory.
    """
    place = _offered.pop(parameter.data_ptr(), None)
    if place is None:
        return torch.empty_like(parameter)
    # Nobody else holds the alias: autograd takes it as the gradient, without a copy.
    return place.detach()
