"""Fiber: the channels of a feature in each degree, and their layout in one flat tensor."""

from collections.abc import Iterator, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from src.errors import UserError


class Fiber:
    """An ordered map from degree to channels; a channel of degree d has 2d + 1 components. Immutable.

    Features of a fiber are one tensor [nodes, num_features], ordered by degree, then component (e3nn's order), then
    channel. With equal channels C in degrees 0 .. L that is [nodes, (L + 1)^2, C].

    Raises UserError for a negative degree or fewer than one channel.
    """

    def __init__(self, channels: Mapping[int, int]) -> None:
        for degree, count in channels.items():
            if degree < 0 or count < 1:
                raise UserError(f"fiber: degree {degree} with {count} channels; give degrees >= 0 with channels >= 1")
        self._channels = {degree: channels[degree] for degree in sorted(channels)}
        self._offsets: dict[int, int] = {}
        self.num_features = 0
        for degree, count in self._channels.items():
            self._offsets[degree] = self.num_features
            self.num_features += count * (2 * degree + 1)

    @classmethod
    def create(cls, num_degrees: int, channels: int) -> "Fiber":
        """Returns a fiber of equal channels in degrees 0 .. num_degrees - 1."""
        return cls(dict.fromkeys(range(num_degrees), channels))

    @property
    def degrees(self) -> tuple[int, ...]:
        return tuple(self._channels)

    @property
    def max_degree(self) -> int:
        """The highest degree; -1 without any."""
        return max(self._channels, default=-1)

    @property
    def equal_channels(self) -> int | None:
        """The channels of every degree; None if they differ or there is no degree."""
        counts = set(self._channels.values())
        return counts.pop() if len(counts) == 1 else None

    def channels(self, degree: int) -> int:
        """Returns the channels of this degree, 0 if it is absent."""
        return self._channels.get(degree, 0)

    def items(self) -> tuple[tuple[int, int], ...]:
        return tuple(self._channels.items())

    def restricted(self, degrees: "Fiber") -> "Fiber":
        """Returns this fiber restricted to the degrees of the other."""
        return Fiber({degree: count for degree, count in self.items() if degree in degrees})

    def divided(self, divisor: int) -> "Fiber":
        """Returns the fiber with channels floor-divided. Raises UserError if a degree would have none."""
        return Fiber({degree: count // divisor for degree, count in self.items()})

    def part(
        self, features: Float[Tensor, "nodes features"], degree: int
    ) -> Float[Tensor, "nodes components channels"]:
        """Returns a view of one degree."""
        count = self._channels[degree]
        columns = features.narrow(1, self._offsets[degree], count * (2 * degree + 1))
        return columns.unflatten(1, (2 * degree + 1, count))

    def check(self, features: Mapping[int, Float[Tensor, "_ _ _"]], what: str) -> None:
        """Raises UserError unless features {degree: [rows, channels, 2 degree + 1]} have this fiber's shapes."""
        shapes = {degree: tuple(features[degree].shape[1:]) for degree in sorted(features)}
        expected = {degree: (count, 2 * degree + 1) for degree, count in self.items()}
        if shapes != expected:
            raise UserError(f"{what} have shapes {shapes} by degree; {self} needs {expected}")

    def flatten(self, features: Mapping[int, Float[Tensor, "nodes _ _"]]) -> Float[Tensor, "nodes features"]:
        """Returns features by degree as one flat tensor. Raises UserError if they are not of this fiber."""
        self.check(features, "features")
        return torch.cat([features[degree].transpose(1, 2).flatten(1) for degree in self], 1)

    def unflatten(self, features: Float[Tensor, "nodes features"]) -> dict[int, Float[Tensor, "nodes _ _"]]:
        """Inverts `flatten`; returns views."""
        return {degree: self.part(features, degree).transpose(1, 2) for degree in self}

    def __add__(self, other: "Fiber") -> "Fiber":
        degrees = {*self, *other}
        return Fiber({degree: self.channels(degree) + other.channels(degree) for degree in degrees})

    def __iter__(self) -> Iterator[int]:
        return iter(self._channels)

    def __contains__(self, degree: object) -> bool:
        return degree in self._channels

    def __len__(self) -> int:
        return len(self._channels)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fiber) and self._channels == other._channels

    def __hash__(self) -> int:
        return hash(self.items())

    def __repr__(self) -> str:
        return f"Fiber({self._channels})"
