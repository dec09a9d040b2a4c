"""Memory that CUDA graphs write the gradients of parameters to, and that autograd keeps as `.grad` without a copy.

It is outside of the graphs' pool, in which other graphs' replays overwrite what a graph has left.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

ALIGN = 256  # bytes

_use_count: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)


class Place(NamedTuple):
    """A parameter's gradient in the memory of its dtype."""

    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int  # in elements


class GradientMemory:
    """One gradient of each parameter that needs one, in the parameter's layout.

    While nobody has tensors of it, the gradients of a backward pass are such tensors. Where somebody still has them
    (gradients are accumulated, or kept), their values stay, and gradients are copies from then on.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        sizes: dict[torch.dtype, int] = {}
        self.places: list[Place | None] = []
        for parameter in parameters:
            if not parameter.requires_grad:
                self.places.append(None)
                continue
            # The layout that autograd wants: the parameter's, if that leaves no gaps.
            stride = torch.empty_like(parameter, device="meta").stride()
            offset = sizes.get(parameter.dtype, 0)
            self.places.append(Place(parameter.dtype, parameter.shape, stride, offset))
            unit = ALIGN // parameter.element_size()
            sizes[parameter.dtype] = offset + -(-parameter.numel() // unit) * unit
        device = parameters[0].device
        self.flat = {dtype: torch.empty(size, dtype=dtype, device=device) for dtype, size in sizes.items()}
        self.slots = self.views(self.flat)
        self.gives = _use_count is not None  # whether it gives its own memory away
        self._storages = [flat.untyped_storage() for flat in self.flat.values()]
        self._own_uses = self.uses()

    def uses(self) -> int:
        """Returns how many tensors and storages there are of the memory."""
        return sum(_use_count(storage._cdata) for storage in self._storages) if _use_count else 0

    @property
    def is_used(self) -> bool:
        """Returns whether somebody else has a tensor of the memory."""
        return self.uses() != self._own_uses

    def views(self, flat: dict[torch.dtype, Tensor]) -> list[Tensor | None]:
        return [
            None if place is None else flat[place.dtype].as_strided(place.shape, place.stride, place.offset)
            for place in self.places
        ]

    def gradients(self, write: Callable[[], None], is_used: Sequence[bool]) -> list[Tensor | None]:
        """Returns what `write` writes to `slots`, as tensors for autograd; None for parameters that are not used."""
        kept = self.copies() if self.is_used else None
        write()
        if kept is None and self.gives:
            # Each the only reference to a new alias: autograd takes it as the gradient without a copy.
            return [
                slot.detach() if used and slot is not None else None
                for slot, used in zip(self.slots, is_used, strict=True)
            ]
        self.gives = False
        new = self.copies()
        if kept is not None:
            for dtype, flat in self.flat.items():
                flat.copy_(kept[dtype])
        return [view if used else None for view, used in zip(self.views(new), is_used, strict=True)]

    def copies(self) -> dict[torch.dtype, Tensor]:
        return {dtype: flat.clone() for dtype, flat in self.flat.items()}
