"""The axes of charts: from zero, or marked as cut; short labels of numbers."""

from collections.abc import Sequence
from math import ceil, floor, inf, log10
from typing import Any

from src.report.axes import unit_of
from src.report.compare.structure import Quantity

CUT = 0.5  # of the largest value: where all values are above it, an axis from zero would hide their differences
HIGH = 36  # letters beside a plot
SHARES = ("acc", "accuracy", "auc", "f1", "top1", "top5")  # of 1, the last words of metrics' names
# Labels of powers of ten and their like: 1.3e-3, 0.05, 128, 65,536.
SHORT = (
    "abs(datum.value) >= 1000 ? format(datum.value, ',.0f') : "
    "datum.value && abs(datum.value) < 0.01 ? format(datum.value, '.1~e') : format(datum.value, '.3~g')"
)


def bounded(interval: tuple[float, float] | None, quantity: Quantity) -> tuple[float, float] | None:
    """Returns the interval as far as the quantity has values: shares end at 1 or 100%, and few figures are negative."""
    if interval is None:
        return None
    is_share = quantity.name == "metric" and quantity.title.rpartition("_")[2] in SHARES
    most = 100.0 if unit_of(quantity.title, "") == "%" else 1.0 if is_share else inf
    least = 0.0 if quantity.name != "metric" or most < inf else -inf
    return max(least, interval[0]), min(most, interval[1])


def short(value: float) -> str:
    """Returns a number as axes label it: '1.3e-3', '0.05', '65,536'."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if value and abs(value) < 0.01:
        digits, _, power = f"{value:.1e}".partition("e")
        return f"{digits.removesuffix('.0')}e{int(power)}"
    return f"{value:.3g}"


def log_ticks(low: float, high: float) -> list[float]:
    """Returns the labelled values of a logarithmic axis: powers of ten; of few, 3 or 2 and 5 times these too."""
    powers = range(floor(log10(low)), floor(log10(high)) + 1)
    steps = (1, 2, 5) if len(powers) < 3 else (1, 3) if len(powers) == 3 else (1,)
    return [tick for power in powers for step in steps if low <= (tick := float(f"{step}e{power}")) <= high]


def round_ticks(low: float, high: float) -> list[float]:
    """Returns round values between two ends, two to six: multiples of 1, 2, 2.5 or 5 times a power of ten."""
    power = 10.0 ** floor(log10((high - low) / 5))
    step = next(power * part for part in (1, 2, 2.5, 5, 10) if (high - low) / (power * part) <= 5)
    return [float(f"{i * step:.12g}") for i in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]


def value_axis(field: str, title: str, values: Sequence[float], quantity: Quantity | None = None) -> dict[str, Any]:
    """Returns the encoding of values on an axis from zero; one that is cut says so in its title.

    Only an axis of metrics is cut, where all values are above half of the largest one. Rates, seconds, memory and
    shares in percent always begin at zero.

    Args:
        quantity: of the values; None for a metric of a history by the name `field`.
    """
    low, high = min(values), max(values)
    if low < 0:
        return number_axis(field, title)
    is_metric = quantity is None or quantity.name == "metric"
    is_share = unit_of(quantity.title if quantity else title.partition(",")[0], "") == "%"
    if not is_metric or is_share or low <= CUT * high or low == high:
        scale = {"zero": True, "domainMax": high * 1.04 or 1.0}
        return {"field": field, "type": "quantitative", "title": title, "scale": {**scale, "nice": False}}
    room = (high - low) * 0.06 or high * 0.02
    scale = {"domain": [low - room, high + room], "nice": False}
    return {"field": field, "type": "quantitative", "title": f"{title} (axis cut, not from 0)", "scale": scale}


def in_lines(encoding: dict[str, Any]) -> dict[str, Any]:
    """Returns the encoding of a vertical axis; a title that is longer than the axis is in two lines."""
    words, _, note = encoding["title"].partition(" (")
    return encoding if len(encoding["title"]) <= HIGH or not note else {**encoding, "title": [words, f"({note}"]}


def number_axis(field: str, title: str) -> dict[str, Any]:
    """Returns the encoding of a number on an axis that need not begin at zero: samples, and values of a key."""
    scale = {"zero": False, "nice": False, "padding": 8}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale}
