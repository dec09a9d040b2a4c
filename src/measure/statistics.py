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
