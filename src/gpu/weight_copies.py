"""Copies of weights in the dtype of products that last from one training step to the next.

A forward pass that casts its weights reads them all once more. An optimiser whose kernels write the copies next to the
weights spares that (`src.training.tables`). Only passes within `WeightCopies.active` are given kept copies: others,
such as evaluations, cast.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from src.gpu.training_graphs import version_of

T = TypeVar("T")


@dataclass
class Entry:
    """Copies that a forward pass reads together, as `value`."""

    value: object
    weights: list[Tensor]
    targets: list[Tensor]
    addresses: list[int]  # of the weights, when they were copied
    version: int  # of the weights, which kernels do not change


class WeightCopies:
    """The copies of one training run, of the first dtype that is asked for."""

    def __init__(self) -> None:
        self.dtype: torch.dtype | None = None
        self._entries: dict[tuple[int, ...], Entry] = {}  # by the ids of the weights, which it holds

    @contextmanager
    def active(self) -> Iterator[None]:
        """Has `cast` keep copies and give them again, and `kept` name them."""
        global _active
        before, _active = _active, self
        try:
            yield
        finally:
            _active = before

    def refresh(self) -> None:
        """Copies weights again that something else than kernels has changed in place; to be called before each step.

        A change by way of `.data`, which counts no version, is in the copies from the optimiser's next step on.
        """
        for entry in self._entries.values():
            if version_of(entry.weights) != entry.version:
                copy(entry.weights, entry.targets)
                entry.version = version_of(entry.weights)

    def value_of(self, weights: Sequence[Tensor], dtype: torch.dtype, make: Callable[[], tuple[T, list[Tensor]]]) -> T:
        """See `cast`. Copies that a kernel could not write are not kept."""
        self.dtype = self.dtype or dtype
        key, addresses = tuple(map(id, weights)), [weight.data_ptr() for weight in weights]
        entry = self._entries.get(key) if dtype == self.dtype else None
        if entry is not None and entry.addresses == addresses:
            return entry.value  # type: ignore[return-value]
        value, targets = make()
        copy(weights, targets)
        if dtype == self.dtype and all(map(is_writable, weights, targets)):
            self._entries[key] = Entry(value, list(weights), targets, addresses, version_of(weights))
        return value


_active: WeightCopies | None = None


def cast(weights: Sequence[Tensor], dtype: torch.dtype, make: Callable[[], tuple[T, list[Tensor]]]) -> T:
    """Returns what a forward pass reads in the weights' place in `dtype`: kept copies of them, or new ones.

    Args:
        make: returns memory of new ones, and the tensors of it that the weights are copied to.
    """
    return (_active or WeightCopies()).value_of(weights, dtype, make)


def are_kept() -> bool:
    """Returns whether `cast` keeps copies."""
    return _active is not None


def cast_each(weights: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Returns weights in `dtype`: kept copies, or cast in one launch; weights of that dtype as they are."""
    if all(weight.dtype == dtype for weight in weights):
        return list(weights)

    def make() -> tuple[list[Tensor], list[Tensor]]:
        copies = [torch.empty_like(weight, dtype=dtype) for weight in weights]
        return copies, copies

    return list(cast(weights, dtype, make))


def kept() -> dict[int, Tensor]:
    """Returns the copies that a step must write with its weights, by the weight's address; of one dtype."""
    entries = _active._entries.values() if _active is not None else []
    pairs = [pair for entry in entries for pair in zip(entry.weights, entry.targets, strict=True)]
    return {weight.data_ptr(): target for weight, target in pairs}


def renew(weights: Sequence[Tensor]) -> None:
    """Writes the kept copies of weights that a step has updated without kernels."""
    copies = kept()
    copied = [weight for weight in weights if weight.data_ptr() in copies]
    copy(copied, [copies[weight.data_ptr()] for weight in copied])


def copy(weights: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    if weights:
        with torch.no_grad():
            torch._foreach_copy_(list(targets), list(weights))  # pyright: ignore[reportPrivateImportUsage]


def is_writable(weight: Tensor, target: Tensor) -> bool:
    """Returns whether a kernel that updates the weight's elements can write the same ones of a copy."""
    return weight.stride() == target.stride() and not target.data_ptr() % 16
