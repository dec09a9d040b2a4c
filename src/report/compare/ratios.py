"""What the spread over runs tells of groups: ratios of two groups, and the first group of a quantity.

Ratios are of geometric means, with Welch's 95% interval of the difference of logarithms. The first of several groups is
told apart from the others by Welch's intervals of differences at Bonferroni's level: 5% over all of them together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean

from src.measure.intervals import LEVEL, ratio_interval, welch_interval
from src.report.compare.structure import Group, Quantity
from src.report.digits import rounded

DECIMALS = 2  # of a ratio, or more


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A quantity of a group over that of another one, with its 95% interval; without one where a group has one run."""

    quantity: str
    group: int
    base: int
    ratio: float
    low: float | None = None
    high: float | None = None

    @property
    def is_told(self) -> bool:
        """Whether there is an interval, and it leaves out 1."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high

    @property
    def value(self) -> str:
        """The ratio, with the digits that its interval allows."""
        if self.low is None or self.high is None:
            return f"{self.ratio:,.0f}" if self.ratio >= 1000 else f"{self.ratio:.3g}"
        return rounded((self.ratio, self.low, self.high), 2 * (self.high - self.low), DECIMALS)[0]

    @property
    def interval(self) -> str:
        """'1.40 to 1.46'; '' without one."""
        if self.low is None or self.high is None:
            return ""
        return " to ".join(rounded((self.low, self.high), 2 * (self.high - self.low), DECIMALS))


@dataclass(frozen=True, kw_only=True)
class First:
    """The best groups of a quantity.

    Attributes:
        top: the groups whose mean is exactly the best one; several tie.
        not_told_apart: the groups that the spread does not tell apart from these.
        compared: all groups that have the quantity.
        single: those of them that are a single run, so that nothing is told apart from them.
    """

    top: Sequence[int]
    not_told_apart: Sequence[int]
    compared: Sequence[int]
    single: Sequence[int]

    @property
    def group(self) -> int | None:
        """The best group; None for an exact tie and where single runs cannot tell."""
        return self.top[0] if len(self.top) == 1 and not self.single else None


def ratio_of(groups: Sequence[Group], name: str, group: int, base: int) -> Ratio | None:
    """Returns the ratio of a quantity of two groups; None where one lacks it, or has a value that is not positive."""
    ours, theirs = (groups[i].estimates.get(name) for i in (group, base))
    if ours is None or theirs is None or min(*ours.values, *theirs.values) <= 0:
        return None
    low, high = ratio_interval(ours.values, theirs.values) or (None, None)
    ratio = exp(fmean(map(log, ours.values)) - fmean(map(log, theirs.values)))
    return Ratio(quantity=name, group=group, base=base, ratio=ratio, low=low, high=high)


def first_of(groups: Sequence[Group], quantity: Quantity) -> First | None:
    """Returns the best groups of a quantity; None where fewer than two groups have it, or no values are better."""
    estimates = {
        i: group.estimates[quantity.name] for i, group in enumerate(groups) if quantity.name in group.estimates
    }
    if len(estimates) < 2 or quantity.better is None:
        return None
    best = (max if quantity.better == "max" else min)(estimate.mean for estimate in estimates.values())
    top = [i for i, estimate in estimates.items() if estimate.mean == best]
    level = 1 - (1 - LEVEL) / (len(estimates) - 1)
    not_told_apart = []
    for i, estimate in estimates.items():
        interval = welch_interval(estimate.values, estimates[top[0]].values, level)
        if i not in top and interval is not None and interval[0] <= 0 <= interval[1]:
            not_told_apart.append(i)
    single = [i for i, estimate in estimates.items() if estimate.n < 2]
    return First(top=top, not_told_apart=not_told_apart, compared=list(estimates), single=single)
