"""The keys that groups vary, as axes of charts: their values as numbers, and places on parallel axes."""

import json
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from src.report.compare.axes import log_ticks, round_ticks, short
from src.report.compare.quantities import RATES
from src.report.compare.structure import Axis, Coordinate, Difference, Group, Quantity

FEWEST = 3  # groups: with two there is no course to draw
MOST = 6  # keys: of more, only those that tell the groups apart
LEVELS = 8  # values that are labelled one by one
NEAR = 4  # times the least value: where all are below it their ratios matter little
APART = 0.06  # of an axis: labels that are closer cover each other


def axes(config: Sequence[Difference], naming: Sequence[Difference], groups: Sequence[Group]) -> list[Axis]:
    """Returns an axis for each varied key; none for fewer than three groups.

    Args:
        config: the keys that the groups differ in.
        naming: those of them that tell every group from the others.
    """
    keys = config if len(config) <= MOST else naming
    if not keys or len(keys[0].values) < FEWEST:
        return []
    metric = [group.estimates["metric"].mean if "metric" in group.estimates else None for group in groups]
    return [_axis(key, [other for other in keys if other is not key], metric) for key in keys]


def parallel(key_axes: Sequence[Axis], groups: Sequence[Group], quantities: Sequence[Quantity]) -> list[Coordinate]:
    """Returns the axes of parallel coordinates: the keys, then the final metric and the rate; none for a single key."""
    shown = responses(quantities)
    if len(key_axes) < 2 or not shown:
        return []
    keys = [_coordinate(axis.key, axis.numbers, axis.labels, axis.log) for axis in key_axes]
    for quantity in shown:
        means = [group.estimates[quantity.name].mean * quantity.factor if quantity.name in group.estimates else None
                 for group in groups]  # fmt: skip
        keys.append(_measured(quantity.title, means))
    return keys


def responses(quantities: Sequence[Quantity]) -> list[Quantity]:
    """Returns the quantities that are drawn against varied keys: the final metric and the first rate there is."""
    by_name = {quantity.name: quantity for quantity in quantities}
    rate = next((by_name[name] for name in RATES if name in by_name), None)
    return [quantity for quantity in (by_name.get("metric"), rate) if quantity is not None]


def _axis(key: Difference, others: Sequence[Difference], metric: Sequence[float | None]) -> Axis:
    numbers = [as_number(value) for value in key.values]
    finite = [value for value in numbers if value is not None]
    lines = [
        " ".join(f"{other.key.rpartition('.')[2]}={value}" for other, value in zip(others, values, strict=True))
        for values in zip(*(other.values for other in others), strict=True)
    ] or ["" for _ in key.values]
    is_number = len(finite) == len(numbers)
    return Axis(
        key=key.key,
        labels=key.values,
        numbers=finite if is_number else None,
        log=is_number and _log(finite),
        lines=lines,
        rank_correlation=_rank_correlation(finite, metric) if is_number else None,
    )


def _rank_correlation(numbers: Sequence[float], metric: Sequence[float | None]) -> float | None:
    """Returns Spearman's rank correlation over the groups that have the metric; None for too few and for constants."""
    pairs = [(number, mean) for number, mean in zip(numbers, metric, strict=True) if mean is not None]
    if len(pairs) < FEWEST or any(len(set(values)) < 2 for values in zip(*pairs, strict=True)):
        return None
    from scipy.stats import spearmanr  # takes a second to import

    result: Any = spearmanr(pairs)
    return float(result.statistic)


def as_number(value: str) -> float | None:
    """Returns the number that a value is, as the config writes it; None for other values."""
    try:
        parsed = json.loads(value)
    except ValueError:
        return None
    is_number = isinstance(parsed, int | float) and not isinstance(parsed, bool) and math.isfinite(parsed)
    return float(parsed) if is_number else None


def _log(values: Sequence[float]) -> bool:
    """Returns whether the values are of several sizes, and spread more evenly on a logarithmic scale."""
    levels = sorted(set(values))
    if len(levels) < 2 or levels[0] <= 0:
        return False
    if len(levels) == 2 or levels[-1] < NEAR * levels[0]:
        return levels[-1] >= 10 * levels[0]
    return _largest_gap([math.log(value) for value in levels]) < _largest_gap(levels)


def _largest_gap(levels: Sequence[float]) -> float:
    """Returns the largest gap between neighbours as a share of the whole range."""
    return max(b - a for a, b in pairwise(levels)) / (levels[-1] - levels[0])


def _coordinate(title: str, numbers: Sequence[float] | None, labels: Sequence[str], log: bool) -> Coordinate:
    """Returns the parallel axis of a key: numbers at their places, with few labelled one by one; words in order."""
    levels = list(dict.fromkeys(labels))
    if numbers is None:
        place = {label: i / max(1, len(levels) - 1) for i, label in enumerate(levels)}
        shown = levels[:: max(1, -(-len(levels) // LEVELS))]
        return Coordinate(title=title, places=[place[x] for x in labels], ticks=[(place[x], x) for x in shown])
    axis = _measured(title, numbers, log)
    if len(levels) > LEVELS:
        return axis
    ticks: list[tuple[float, str]] = []
    for place, value in sorted(zip((place or 0.0 for place in axis.places), numbers, strict=True)):
        if not ticks or place - ticks[-1][0] > APART:
            ticks.append((place, short(value)))
    return Coordinate(title=title, places=axis.places, ticks=ticks)


def _measured(title: str, values: Sequence[float | None], log: bool = False) -> Coordinate:
    """Returns the parallel axis of numbers, from the least to the greatest."""
    present = [value for value in values if value is not None]
    low, high = min(present), max(present)
    if low == high:
        places = [None if value is None else 0.5 for value in values]
        return Coordinate(title=title, places=places, ticks=[(0.5, short(low))])
    to = math.log if log else float
    width = to(high) - to(low)

    def place(value: float) -> float:
        return (to(value) - to(low)) / width

    labelled = log_ticks(low, high) if log else round_ticks(low, high)
    labelled = labelled[:: -(-len(labelled) // LEVELS)] if labelled else [low, high]
    ticks = [(place(value), short(value)) for value in labelled]
    return Coordinate(title=title, places=[None if value is None else place(value) for value in values], ticks=ticks)
