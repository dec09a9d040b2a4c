"""Ranges of config values, as types: a field or argument `lr: NotNegative` says what a config may hold there.

`src.config.values` checks every config against these types, before anything is read or made. What else they say: a
`Literal` lists the choices of a name, every number is finite, and no text is empty that is not `Text`.
"""

import math
from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class Range:
    """An interval of numbers: from `least` to `most`, both included, `above` and `below` a bound excluded.

    also: a number outside of the interval, and what it means.
    """

    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    also: tuple[int, str] | None = None

    def __contains__(self, value: float) -> bool:
        inside = self.least <= value <= self.most and self.above < value < self.below
        return inside or (self.also is not None and value == self.also[0])

    def __str__(self) -> str:
        if math.isfinite(self.least) and math.isfinite(self.most):
            words = f"of {self.least} to {self.most}"
        else:
            limits = {f"of {self.least} or more": self.least, f"above {self.above}": self.above}
            limits |= {f"at most {self.most}": self.most, f"below {self.below}": self.below}
            words = " and ".join(text for text, bound in limits.items() if math.isfinite(bound))
        return words if self.also is None else f"{words}, or {self.also[0]} for {self.also[1]}"


MAY_BE_EMPTY = "may be empty"

# The largest numbers of a key whose type has no upper end. Every one that a run can use is below.
MOST_WHOLE, MOST_NUMBER = 2**31 - 1, 1e38

Text = Annotated[str, MAY_BE_EMPTY]
Count = Annotated[int, Range(1)]
Number = Annotated[int, Range(0)]
ManyRows = Annotated[int, Range(1, 2**53)]
Limit = Annotated[int, Range(1, also=(-1, "no limit"))]
Seed = Annotated[int, Range(0, 2**32 - 1)]
Seconds = Annotated[float, Range(above=0, most=10**9)]
Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]
ShareBelow1 = Annotated[float, Range(0, below=1)]  # of what some must be left, as with dropout
OpenShare = Annotated[float, Range(above=0, below=1)]
