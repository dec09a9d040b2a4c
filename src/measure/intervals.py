"""Intervals of differences between runs."""

from collections.abc import Sequence
from statistics import fmean


def welch_interval(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float] | None:
    """Returns Welch's 95% interval of the difference of means, ours minus theirs; None for fewer than two values each.

    Two groups without any spread have an interval without width.
    """
    if min(len(ours), len(theirs)) < 2:
        return None
    if len(set(ours)) == len(set(theirs)) == 1:
        return fmean(ours) - fmean(theirs), fmean(ours) - fmean(theirs)
    from scipy.stats import ttest_ind  # takes a second to import

    interval = ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    return float(interval.low), float(interval.high)
