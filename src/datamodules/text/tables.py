"""Reads sentences and labels from .csv, .tsv, .jsonl and text files with named columns."""

import csv
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from src.batches.tokens import UNLABELLED
from src.datamodules.text_files import decoded
from src.errors import UserError
from src.system.reading import parsed_json

SUFFIXES = (".csv", ".tsv", ".jsonl")
SHOWN = 10  # labels in a message


@dataclass(frozen=True)
class LabelledSentences:
    """The rows of a file that have a sentence; `labels` has None where a label is missing or unknown."""

    where: str
    texts: list[str]
    labels: list[str | None]
    lines: list[int]  # of each row in the file, from 1
    empty: int = 0  # rows dropped for want of a sentence
    unlabelled: int = 0  # rows dropped for want of a label

    def part(self, rows: list[int]) -> "LabelledSentences":
        """Returns some of the rows; the counts of dropped ones stay those of the file."""
        texts, labels, lines = ([column[row] for row in rows] for column in (self.texts, self.labels, self.lines))
        return replace(self, texts=texts, labels=labels, lines=lines)

    def numbers(self, names: Sequence[str]) -> Int64[np.ndarray, " rows"]:
        """Returns the labels by their place in `names`, UNLABELLED where there is none.

        Raises UserError that names the row of another label.
        """
        number_of = {name: number for number, name in enumerate(names)}
        for label, line in zip(self.labels, self.lines, strict=True):
            if label is not None and label not in number_of:
                shown = ", ".join(list(names)[:SHOWN])
                raise UserError(f"{self.where} line {line}: the label {label!r} is none of those trained on ({shown})")
        return np.array([UNLABELLED if label is None else number_of[label] for label in self.labels], np.int64)


def read_table(path: Path, text: str, label: str, *, labelled: bool) -> LabelledSentences:
    """Returns the rows of a file. A row without a sentence is dropped, and if `labelled` one without a label.

    Args:
        path: .csv (quoting as spreadsheets write it), .tsv (no quoting) or .jsonl (an object a line).
        text, label: columns, or keys of the objects. Labels are strings or integers.

    Raises UserError that names file and row for a missing column or a row that cannot be read.
    """
    if path.suffix not in SUFFIXES:
        raise UserError(f"{path} is no table: give a file that ends in {', '.join(SUFFIXES)}")
    columns = (text, label) if labelled else (text,)
    rows = _objects(path) if path.suffix == ".jsonl" else rows_of(path, columns)
    texts: list[str] = []
    labels: list[str | None] = []
    lines: list[int] = []
    empty = unlabelled = 0
    for line, row in rows:
        missing = next((name for name in columns if name not in row), None)
        if missing is not None:
            raise UserError(f"{path} line {line}: there is no key '{missing}', only {', '.join(map(repr, row))}")
        sentence, name = row[text], row.get(label)
        if not isinstance(sentence, str | None):
            raise UserError(f"{path} line {line}: {text} is {sentence!r}; it must be a string")
        if not isinstance(name, str | int | None) or isinstance(name, bool):
            raise UserError(f"{path} line {line}: {label} is {name!r}; it must be a string or an integer")
        sentence, name = (sentence or "").strip(), "" if name is None else str(name).strip()
        if not sentence:
            empty += 1
        elif labelled and not name:
            unlabelled += 1
        else:
            texts.append(sentence)
            labels.append(name or None)
            lines.append(line)
    return LabelledSentences(str(path), texts, labels, lines, empty, unlabelled)


def _objects(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    for line, written in enumerate(decoded(path).removesuffix("\n").split("\n"), 1):
        row = parsed_json(written, f"{path} line {line}", "write an object a line")
        if not isinstance(row, dict):
            raise UserError(f"{path} line {line} is not a JSON object: write an object a line")
        yield line, row


def rows_of(
    path: Path, columns: tuple[str, ...], optional: Collection[str] = ()
) -> Iterator[tuple[int, dict[str, object]]]:
    """Yields line and values by column of a .csv or .tsv. Raises UserError for a missing column or a bad row.

    A column of `optional` may be missing; its values are then "".
    """
    # Without line ends of other kinds than \n, since they are part of a sentence.
    lines = (f"{line}\n" for line in decoded(path).replace("\r\n", "\n").removesuffix("\n").split("\n"))
    quoting = csv.QUOTE_NONE if path.suffix == ".tsv" else csv.QUOTE_MINIMAL
    reader = csv.reader(lines, delimiter="\t" if path.suffix == ".tsv" else ",", quoting=quoting, strict=True)
    try:
        header = next(reader, [])
        for column in columns:
            if column not in header and column not in optional:
                raise UserError(
                    f"{path} line 1: there is no column '{column}', only {', '.join(map(repr, header))}; "
                    f"name your columns in datamodule.source"
                )
        line = reader.line_num + 1
        for row in reader:
            if row and len(row) != len(header):
                raise UserError(f"{path} line {line} has {len(row)} columns, the header {len(header)}: correct it")
            values: dict[str, object] = dict.fromkeys(optional, "")
            yield line, values | dict(zip(header, row or [""] * len(header), strict=True))
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path} line {reader.line_num} is no row of a table ({error}): correct it") from None
