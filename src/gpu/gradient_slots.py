"""Gradient slots: memory that kernels may write a gradient to, of all-reduce buckets say, which saves a copy."""

from collections.abc import Iterable, Mapping
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

# By the parameter's address. Weak, because another tensor may be allocated there when the slot's owner is gone.
_offered: WeakValueDictionary[int, Tensor] = WeakValueDictionary()


def offer(slots: Mapping[nn.Parameter, Tensor]) -> None:
    """Offers each parameter a slot of its shape, layout and dtype, until it is taken or freed."""
    _offered.update((parameter.data_ptr(), slot) for parameter, slot in slots.items())


def withdraw(slots: Iterable[Tensor]) -> None:
    """Withdraws the slots that have not been taken, also where the parameters have moved since."""
    owned = {id(slot) for slot in slots}
    for address, slot in list(_offered.items()):
        if id(slot) in owned:
            del _offered[address]


def slot_of(parameter: Tensor) -> Tensor:
    """Returns memory for a parameter's gradient, with its layout, to be overwritten whole and returned to autograd.

    A slot is returned once a step; if a parameter is used several times in the loss, the others get new memory.
    """
    slot = _offered.pop(parameter.data_ptr(), None)
    if slot is None:
        return torch.empty_like(parameter)
    # The only reference to a new alias: autograd takes it as the gradient without a copy.
    return slot.detach()
