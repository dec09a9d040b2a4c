"""How many digits of a figure are printed."""

import re
from collections.abc import Sequence
from math import floor, log10

DIGITS = 6  # of a figure, however small its spread: float32 has seven
LONG_NUMBER = re.compile(r"-?\d+\.\d{5,}(e[-+]\d+)?")


def number(value: float | int) -> str:
    """Returns a figure as text with at least four significant digits, and no decimals from 1,000 on."""
    if abs(value) < 1e15 and value == int(value):
        return str(int(value))
    size = abs(value)
    return f"{value:.0f}" if size >= 1000 else f"{value:.1f}" if size >= 100 else f"{value:.4g}"


def shown(value: float | int) -> str:
    """Returns a figure as `number` does, with commas between thousands."""
    return f"{value:,.0f}" if abs(value) >= 1000 else number(value)


def rounded(values: Sequence[float], spread: float | None, least: int | None = None) -> list[str]:
    """Returns figures with the digits that their spread tells: to its second one, of the largest DIGITS at most.

    Args:
        spread: standard deviation, or twice the width of an interval; 0 and None tell nothing.
        least: decimals that are shown in any case.
    """
    largest = max(map(abs, values))
    if not spread or not largest:
        return [shown(value) for value in values]
    decimals = min(1 - floor(log10(spread)), DIGITS - 1 - floor(log10(largest)))
    decimals = decimals if least is None else max(least, decimals)
    texts = [f"{round(value, decimals) + 0.0:,.{max(0, decimals)}f}" for value in values]
    # of a figure that is all lost in the spread the first digit is shown
    lost = [shown(float(f"{value:.1g}")) for value in values]
    return [text if text.strip("-0.") else first for text, first in zip(texts, lost, strict=True)]


def short_value(text: str) -> str:
    """Returns a value of the config as it is shown: of a number that a search drew, four digits."""
    return f"{float(text):.4g}" if LONG_NUMBER.fullmatch(text) else text
