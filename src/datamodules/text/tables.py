"""Reads sentences and labels from tables with named columns."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from src.batches.tokens import UNLABELLED
from src.datamodules.tables import rows_of
from src.errors import UserError

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
        path: a table as `open_table` reads it.
        text, label: columns, or keys of the objects.

    Raises UserError that names file and row for a missing column or a row that cannot be read.
    """
    rows = rows_of(path, (text, label), () if labelled else (label,))
    texts: list[str] = []
    labels: list[str | None] = []
    lines: list[int] = []
    empty = unlabelled = 0
    for line, row in rows:
        sentence, name = (row[text] or "").strip(), (row.get(label) or "").strip()
        if not sentence:
            empty += 1
        elif labelled and not name:
            unlabelled += 1
        else:
            texts.append(sentence)
            labels.append(name or None)
            lines.append(line)
    return LabelledSentences(str(path), texts, labels, lines, empty, unlabelled)
