"""How a metric of a history is drawn: its unit, and whether on a logarithmic scale."""

from collections.abc import Sequence
from statistics import median

PERCENT = ("nuv", "validity", "uniqueness", "novelty", "reconstruction")  # also canonical_nuv and the like
SPREAD = 5.0  # a greatest value above this multiple of the middle one hides the others


def unit_of(metric: str, unit: str) -> str:
    """Returns the unit of a metric's values, '' for none; `unit` is that of the record's samples ('molecules')."""
    if metric.endswith("_per_s"):
        return f"{unit}/s"
    if "bits_" in metric:
        return "bits per dimension"
    return "%" if metric.rpartition("_")[2] in PERCENT else ""


def wants_log(values: Sequence[float]) -> bool:
    """Returns whether a few great values, as of the first steps, would hide the others on a linear scale."""
    return min(values) > 0 and max(values) > SPREAD * median(values)
