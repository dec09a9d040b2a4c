"""Fiber, as NVIDIA's package has it: a dictionary of channels by degree, iterated from few channels to many."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from src.dropin.runtime.utils import degree_to_dim
from src.errors import UserError
from src.models.se3_transformer.fiber import Fiber as PlainFiber


class FiberEl(NamedTuple):
    degree: int
    channels: int


class Fiber(dict):
    """The channels of each degree.

    `structure` has the degrees in the order of their channels, which is the order of parameters in modules that are
    built from it; a list of FiberEl keeps its own. Degrees that are absent have 0 channels.
    """

    def __init__(self, structure: dict[int, int] | Iterable[tuple[int, int]]) -> None:
        pairs: list[Any] = [*(structure.items() if isinstance(structure, dict) else structure)]
        if not all(isinstance(pair, tuple) and len(pair) == 2 and min(pair) >= 0 for pair in pairs):
            raise UserError(f"Fiber({structure}) is not allowed; expected channels by degree, such as {{0: 8, 1: 3}}")
        elements = [FiberEl(int(degree), int(channels)) for degree, channels in pairs]
        is_ordered = bool(pairs) and isinstance(pairs[0], FiberEl)
        self.structure = elements if is_ordered else sorted(elements, key=lambda element: element.channels)
        super().__init__(self.structure)

    @property
    def degrees(self) -> list[int]:
        return sorted(element.degree for element in self.structure)

    @property
    def channels(self) -> list[int]:
        return [self[degree] for degree in self.degrees]

    @property
    def num_features(self) -> int:
        """The length of all features in one vector."""
        return sum(channels * degree_to_dim(degree) for degree, channels in self.structure)

    @staticmethod
    def create(num_degrees: int, num_channels: int) -> "Fiber":
        """Returns a fiber of equal channels in degrees 0 .. num_degrees - 1."""
        return Fiber(dict.fromkeys(range(num_degrees), num_channels))

    @staticmethod
    def from_features(feats: Mapping[str, Tensor]) -> "Fiber":
        """Returns the fiber of features {str(degree): [rows, channels, 2 degree + 1]}."""
        for degree, feature in feats.items():
            if feature.dim() != 3 or feature.shape[2] != degree_to_dim(int(degree)):
                shape = f"[rows, channels, {degree_to_dim(int(degree))}]"
                raise UserError(f"the features of degree {degree} are {list(feature.shape)}; expected {shape}")
        return Fiber({int(degree): feature.shape[1] for degree, feature in feats.items()})

    def __getitem__(self, degree: int) -> int:
        return self.get(degree, 0)

    def __iter__(self) -> Iterator[FiberEl]:  # type: ignore[override]
        return iter(self.structure)

    def __mul__(self, other: "Fiber | int") -> "Fiber | product[tuple[FiberEl, FiberEl]]":
        """Returns the pairs of both fibers' elements, or the fiber with as many times the channels."""
        if isinstance(other, Fiber):
            return product(self.structure, other.structure)
        return Fiber({degree: channels * other for degree, channels in self.structure})

    def __add__(self, other: "Fiber | int") -> "Fiber":
        """Returns the fiber with the other's channels of the same degrees added, or so many to each degree."""
        more = other if isinstance(other, Fiber) else dict.fromkeys(self.degrees, other)
        return Fiber({degree: channels + more[degree] for degree, channels in self.structure})

    def __repr__(self) -> str:
        return str(self.structure)

    @staticmethod
    def combine_max(f1: "Fiber", f2: "Fiber") -> "Fiber":
        """Returns the larger number of channels of each degree of either fiber."""
        degrees = dict.fromkeys([degree for degree, _ in (*f1.structure, *f2.structure)])
        return Fiber({degree: max(f1[degree], f2[degree]) for degree in degrees})

    @staticmethod
    def combine_selectively(f1: "Fiber", f2: "Fiber") -> "Fiber":
        """Returns the first fiber with the second's channels of the same degrees added."""
        return f1 + f2

    def to_attention_heads(self, tensors: Mapping[str, Tensor], num_heads: int) -> Tensor:
        """Returns features [rows, channels, components] by degree as [rows, heads, features of a head]."""
        features = [tensors[str(degree)] for degree in self.degrees]
        return torch.cat([feature.reshape(*feature.shape[:-2], num_heads, -1) for feature in features], -1)


def plain(fiber: Fiber) -> PlainFiber:
    """Returns the fiber as our layers take it, without degrees of 0 channels."""
    return PlainFiber({degree: channels for degree, channels in fiber if channels})
