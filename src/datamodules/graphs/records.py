"""The unparsed molecules of a person's file, and which of their values are targets."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from src.datamodules.numbers import Spelling
from src.errors import shortened

MOST = 1e30  # of a target: squares of larger ones have no mean
SHOWN = 10  # names in a note
EXPONENT = re.compile(r"(?<=[0-9.])(?:[dD]|\*\^)(?=[+-]?[0-9]+$)")  # of Fortran and Mathematica
SPELLING = Spelling()
MISSING = {"", "-", "?", *(word.lower() for word in SPELLING.missing)}
UNIT_OF = re.compile(r"(.+)_units?", re.IGNORECASE)


class Record(NamedTuple):
    """One unparsed molecule of a file."""

    where: str  # in the file: its frame, record or line
    format: str  # a key of src.datamodules.graphs.parse.FORMATS
    content: Any
    values: Mapping[str, str]  # of this molecule, as the file writes them


class Targets(NamedTuple):
    """The numbers of the molecules, their units by name in the order of the columns, and what else was found."""

    values: Float[np.ndarray, "molecules targets"]
    units: Mapping[str, str]
    notes: list[str]


def plain_number(text: str) -> float | None:
    """Returns a number as `Spelling` reads it, with Fortran's D and Mathematica's *^ too; None for any other text."""
    text = EXPONENT.sub("e", text.strip())
    try:
        return None if text[-1:].isalpha() else SPELLING.number(text)  # true is no number of a molecule
    except ValueError:
        return None


def targets_of(records: Sequence[Record]) -> Targets:
    """Returns as a target every key that has a plain number for a molecule; NaN where it has none."""
    numbers: dict[str, dict[int, float]] = {}
    others: dict[str, list[str]] = {}  # of each key: values that are no plain number, with the record
    units: dict[str, str] = {}
    for row, record in enumerate(records):
        for key, text in record.values.items():
            number = plain_number(text)
            if number is not None and abs(number) <= MOST:
                numbers.setdefault(key, {})[row] = number
            elif text.strip().lower() not in MISSING:
                others.setdefault(key, []).append(f"{shortened(text, 40)!r} ({record.where})")
            if number is None and (unit := UNIT_OF.fullmatch(key)) and text.strip():
                units.setdefault(unit[1], text.strip())
    values = np.full((len(records), len(numbers)), math.nan)
    for column, by_row in enumerate(numbers.values()):
        values[list(by_row), column] = list(by_row.values())
    return Targets(values, {key: units.get(key, "") for key in numbers}, list(_notes(numbers, others, len(records))))


def _notes(numbers: Mapping[str, Mapping[int, float]], others: Mapping[str, list[str]], total: int) -> Iterable[str]:
    if numbers:
        yield f"targets: {_listed(list(numbers))}"
    missing = [f"{key} ({len(rows):,})" for key, rows in numbers.items() if len(rows) < total]
    if missing:
        yield f"not every molecule has a value of {_listed(missing)}"
    for key in [key for key in numbers if key in others][:SHOWN]:
        yield f"{key}: {len(others[key]):,} values are no plain number and count as missing, as {others[key][0]}"
    texts = [f"{key} {examples[0]}" for key, examples in others.items() if key not in numbers]
    if texts:
        yield f"no target, since it has no plain number: {_listed(texts)}"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more:,} more" if more > 0 else "")
