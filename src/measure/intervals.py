"""Intervals of means of runs, and of differences between them."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

LEVEL = 0.95


def welch_interval(ours: Sequence[float], theirs: Sequence[float], level: float = LEVEL) -> tuple[float, float] | None:
    """Returns Welch's interval of the difference of means, ours minus theirs; None for fewer than two values each.

    Two groups without any spread have an interval without width.
    """
    if min(len(ours), len(theirs)) < 2:
        return None
    if len(set(ours)) == len(set(theirs)) == 1:
        return fmean(ours) - fmean(theirs), fmean(ours) - fmean(theirs)
    from scipy.stats import ttest_ind  # takes a second to import

    interval = ttest_ind(ours, theirs, equal_var=False).confidence_interval(level)
    return float(interval.low), float(interval.high)


def ratio_interval(ours: Sequence[float], theirs: Sequence[float], level: float = LEVEL) -> tuple[float, float] | None:
    """Returns the interval of the ratio of geometric means: Welch's of the difference of logarithms.

    None for fewer than two values each. Raises ValueError for values that are not positive.
    """
    interval = welch_interval([math.log(value) for value in ours], [math.log(value) for value in theirs], level)
    return None if interval is None else (math.exp(interval[0]), math.exp(interval[1]))


def mean_interval(values: Sequence[float], level: float = LEVEL) -> tuple[float, float] | None:
    """Returns Student's interval of the mean; None for fewer than two values."""
    if len(values) < 2:
        return None
    if len(set(values)) == 1:
        return values[0], values[0]
    from scipy.stats import t  # takes a second to import

    half = float(t.ppf((1 + level) / 2, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half
