"""Writes csv that is safe to open in a spreadsheet."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from src.system.files import written_atomically

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", *"\uff1d\uff0b\uff0d\uff20")  # a spreadsheet runs what begins so


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Returns a table as csv, None as an empty cell. Lines end in a line feed, those within a cell too."""
    out = io.StringIO()
    _write(out, (map(_shown, row) for row in rows), "\n")
    return out.getvalue()


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes a table in UTF-8, atomically. Raises UserError where it cannot be written."""
    with written_atomically(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        _write(file, [header], "\r\n")
        _write(file, rows, "\r\n")


def _write(file: Any, rows: Iterable[Iterable[Any]], line_end: str) -> None:
    csv.writer(file, lineterminator=line_end).writerows(map(_cell, row) for row in rows)


def _shown(value: Any) -> Any:
    # Python's writer does not quote a carriage return here, and a spreadsheet begins a row after it.
    return value.replace("\r\n", "\n").replace("\r", "\n") if isinstance(value, str) else value


def _cell(value: Any) -> Any:
    """Returns the value; a text that a spreadsheet would run has an apostrophe before it."""
    if not isinstance(value, str) or not value.startswith(FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
