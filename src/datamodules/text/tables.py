"""Reads sentences and labels from tables with named columns."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from src.batches.tokens import UNLABELLED
from src.datamodules.tables import rows_of
from src.errors import UserError
from src.measure.reading import Reading

SHOWN = 10  # labels in a message
NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
WHOLE = re.compile(r"(-?[0-9]+)\.0+")  # as pandas writes whole numbers of a column with gaps
TRUTHS = {"true": "1", "false": "0"}
GAPS = {"nan", "null", "none", "na", "n/a", "#n/a"}  # what programs write for a missing value


@dataclass(frozen=True)
class LabelledSentences:
    """The rows of a file that have a sentence; `labels` has None where a label is missing or unknown.

    Attributes:
        lines: of each row in the file, from 1.
        others: values of the column that splits the rows; empty without one.
        changes: in which ways each row was changed.
    """

    where: str
    texts: list[str]
    labels: list[str | None]
    lines: list[int]
    others: list[str]
    changes: list[list[str]]

    def part(self, rows: Sequence[int]) -> "LabelledSentences":
        """Returns some of the rows."""
        columns = {
            name: [values[row] for row in rows] if (values := getattr(self, name)) else []
            for name in ("texts", "labels", "lines", "others", "changes")
        }
        return replace(self, **columns)

    def numbers(self, names: Sequence[str]) -> Int64[np.ndarray, " rows"]:
        """Returns the labels by their place in `names`, UNLABELLED where there is none.

        Names are also found in another case, and truth values as 0 and 1. Raises UserError that names the row of
        another label.
        """
        number_of = numbers_by_spelling(names)
        for label, line in zip(self.labels, self.lines, strict=True):
            if label is not None and label not in number_of and _folded(label) not in number_of:
                shown = ", ".join(list(names)[:SHOWN])
                raise UserError(f"{self.where} line {line}: the label {label!r} is none of those trained on ({shown})")
        numbers = [
            UNLABELLED if label is None else number_of.get(label, number_of.get(_folded(label), UNLABELLED))
            for label in self.labels
        ]
        return np.array(numbers, np.int64)


def read_table(
    path: Path,
    text: str,
    label: str,
    *,
    labelled: bool,
    reading: Reading | None = None,
    column: str | None = None,
    **options: Any,
) -> LabelledSentences:
    """Returns the rows of a file. If `labelled`, rows without a sentence or a label are dropped, else none.

    Args:
        path: a table as `open_table` reads it.
        text, label: columns, or keys of the objects.
        reading: gets what was read and dropped, and the notes.
        column: another one, whose values are kept as `others`; of labelled rows each must have one.
        options: of `open_table`.

    Raises UserError that names file and row for a missing column or a row that cannot be read.
    """
    reading = Reading(str(path), "rows") if reading is None else reading
    columns = [text, label, *([column] if column not in (None, text, label) else [])]
    texts: list[str] = []
    labels: list[str | None] = []
    lines: list[int] = []
    others: list[str] = []
    changes: list[list[str]] = []
    options |= {"reading": reading, "keep_empty": not labelled}
    for line, row in rows_of(path, columns, () if labelled else (label,), **options):
        reading.read += 1
        written, name = row[text] or "", row.get(label) or ""
        sentence = "" if is_blank(written) else written.strip()
        if not sentence:
            reading.drop(f"no text in column {text}", f"{path.name} line {line}")
        if labelled and not sentence:
            continue
        if labelled and not name.strip():
            reading.drop(f"no label in column {label}", f"{path.name} line {line}: {sentence!r}")
        else:
            other = (row[column] or "").strip() if column else ""
            if column and not other:
                raise UserError(f"{path} line {line}: {column} is empty, but it splits the rows: fill it in")
            texts.append(sentence)
            labels.append(canonical(name.strip()) or None)
            lines.append(line)
            others += [other] if column else []
            changes.append(["white space around the text removed"] * (sentence != written))
            changes[-1] += [f"label {name!r} read as {labels[-1]!r}"] * (bool(name) and labels[-1] != name)
    return LabelledSentences(str(path), texts, labels, lines, others, changes)


def is_blank(text: str) -> bool:
    """Returns whether a tokenizer leaves nothing of a text: white space, control characters, lone accents."""
    if text[:1].isalnum():
        return False
    return all(c.isspace() or c == "\ufffd" or unicodedata.category(c)[0] == "C" or _is_accent(c) for c in text)


def _is_accent(character: str) -> bool:
    return unicodedata.category(character) == "Mn"


def canonical(label: str) -> str:
    """Returns a label as all programs may write it: 1 for 1.0, true for True, and letters composed."""
    label = unicodedata.normalize("NFC", label)
    if match := WHOLE.fullmatch(label):
        return match[1] if match[1] != "-0" else "0"
    return label.lower() if label.lower() in TRUTHS else label


def as_numbers(tables: Sequence[LabelledSentences]) -> None:
    """Gives the labels true and false the numbers 1 and 0 where those are labels too."""
    names = {label for table in tables for label in table.labels}
    if names & {*TRUTHS} and names & {"0", "1"} and names <= {*TRUTHS, "0", "1", None}:
        for table in tables:
            for row, label in enumerate(table.labels):
                if label in TRUTHS:
                    table.labels[row] = TRUTHS[label]
                    written = next((what for what in table.changes[row] if what.startswith("label ")), None)
                    if written is not None:
                        table.changes[row].remove(written)
                    what = written.rpartition(" read as ")[0] if written else f"label {label!r}"
                    table.changes[row].append(f"{what} read as {TRUTHS[label]!r}")


def sorted_labels(names: set[str]) -> list[str]:
    """Returns labels in the order of numbers where all are, else of text."""
    is_number = all(map(NUMBER.fullmatch, names))
    return sorted(names, key=lambda name: (float(name) if is_number else 0.0, name))


def label_notes(names: Sequence[str]) -> list[str]:
    """Returns what about labels may be a mistake of writing."""
    by_folded: dict[str, list[str]] = defaultdict(list)
    for name in names:
        by_folded[" ".join(name.casefold().split())].append(name)
    notes = [
        f"labels that differ in case or spaces alone are classes of their own: {', '.join(map(repr, alike[:SHOWN]))}"
        for alike in by_folded.values()
        if len(alike) > 1
    ]
    gaps = [name for name in names if name.casefold() in GAPS]
    return notes + [f"the label {name!r} is a class of its own, though it may stand for none" for name in gaps]


def numbers_by_spelling(names: Sequence[str]) -> dict[str, int]:
    """Returns the numbers of labels by name, by name in lower case, and of 0 and 1 by truth value or inversely."""
    exact = {canonical(name): number for number, name in enumerate(names)}
    exact |= {name: number for number, name in enumerate(names)}
    folded: dict[str, int] = {}
    double = set()
    for name, number in exact.items():
        double |= {_folded(name)} if folded.setdefault(_folded(name), number) != number else set()
    spellings = {name: number for name, number in folded.items() if name not in double} | exact
    if {*exact} in ({"0", "1"}, {*TRUTHS}):
        for truth, digit in TRUTHS.items():
            spellings.setdefault(truth, spellings.get(digit, 0))
            spellings.setdefault(digit, spellings[truth])
    return spellings


def _folded(label: str) -> str:
    return label.casefold()
