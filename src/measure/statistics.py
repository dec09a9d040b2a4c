"""Percentiles of step times and latencies."""

from collections.abc import Sequence

import numpy as np


def percentiles(seconds: Sequence[float], *, mean: bool = False) -> dict[str, float] | None:
    """Returns p50, p90, p95 and p99 (linear interpolation), and the mean if `mean`; None without values."""
    if not len(seconds):
        return None
    values = np.asarray(seconds, dtype=np.float64)
    named = {f"p{q}": float(np.percentile(values, q)) for q in (50, 90, 95, 99)}
    return {"mean": float(values.mean()), **named} if mean else named


def welch_interval(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float] | None:
    """Returns Welch's 95% interval of the difference of means, ours minus theirs; None for fewer than two values each.

    Two groups without any spread have an interval without width.
    """
    if min(len(ours), len(theirs)) < 2:
        return None
    difference = float(np.mean(ours) - np.mean(theirs))
    if np.ptp(ours) == np.ptp(theirs) == 0:
        return difference, difference
    from scipy.stats import ttest_ind  # takes a second to import

    interval = ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    return float(interval.low), float(interval.high)
