"""Reads the SMILES of a person's file: one a line, or a column of a table."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from src.datamodules.molecules.encoded import Row
from src.datamodules.tables import SUFFIXES, is_table, open_table
from src.datamodules.text_files import lines_of
from src.errors import UserError

EXTENSION = re.compile(r"(\S+)(\s+\|[^|]*\|)?")  # a SMILES and, of a CXSMILES, what stands between bars


@dataclass(frozen=True)
class SmilesRows:
    """The rows of a file; `marks` are those of the split column, in the same order, and empty without one."""

    rows: list[Row]
    marks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_rows(path: Path, column: str = "smiles", split_column: str | None = None) -> SmilesRows:
    """Returns the rows of a file of lines, or of a table. Raises UserError for a missing column."""
    if is_table(path):
        return _of_table(path, column, split_column)
    if split_column is not None:
        raise UserError(f"datamodule.source.split=column needs a table: {path} is none of {', '.join(SUFFIXES)}")
    return _of_lines(path)


def rows_of(path: Path) -> list[Row]:
    """Returns the SMILES of a file of lines. Raises UserError where it is not text in UTF-8."""
    return _of_lines(path).rows


def _of_lines(path: Path) -> SmilesRows:
    """A SMILES a line; text after a blank is its name. Empty lines are ignored, and so is a header."""
    lines = [(number, line) for number, line in enumerate(lines_of(path), 1) if line.strip()]
    notes: list[str] = []
    if lines and (names := [name.strip(" \"'").lower() for name in re.split(r"[,;\t ]", lines[0][1].strip())]):
        place = next((i for i, name in enumerate(names) if _is_heading(name)), None)
        if place is not None and (place or re.search(r"[,;]", lines[0][1])):
            raise UserError(f"{path} line {lines[0][0]} is the header of a table: rename the file to .csv or .tsv")
        if place == 0:
            notes.append(f"line {lines[0][0]} is a header: {lines[0][1].strip()!r}")
            lines = lines[1:]
    return SmilesRows([Row(smiles_in(line), path, number) for number, line in lines], notes=notes)


def _of_table(path: Path, column: str, split_column: str | None) -> SmilesRows:
    table = open_table(path, [])
    name = _column(path, table.columns, column, "column")
    split_name = None if split_column is None else _column(path, table.columns, split_column, "split_column")
    rows: list[Row] = []
    marks: list[str] = []
    for line, values in table.rows:
        rows.append(Row(smiles_in(values.get(name) or ""), path, line))
        if split_name is not None:
            marks.append((values.get(split_name) or "").strip())
    return SmilesRows(rows, marks, table.notes)


def smiles_in(text: str) -> str:
    """Returns the SMILES at the beginning of a text, with its CXSMILES extension; without the name."""
    matched = EXTENSION.match(text.strip())
    return matched[0] if matched else ""


def _is_heading(name: str) -> bool:
    return name in ("smiles", "smi") or name.endswith(("_smiles", "-smiles"))


def _column(path: Path, names: list[str], wanted: str, key: str) -> str:
    """Returns the column of this name, or else the only one of it in other cases. Raises UserError where none is."""
    alike = [name for name in names if name.strip().lower() == wanted.strip().lower()]
    if wanted in names:
        return wanted
    if len(alike) != 1:
        shown = ", ".join(map(repr, names))
        raise UserError(f"{path} line 1: there is no column '{wanted}', only {shown}; give datamodule.source.{key}")
    return alike[0]
