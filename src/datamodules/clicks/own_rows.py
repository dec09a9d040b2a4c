"""Reads the rows of your own clicks, and chooses those that are held out."""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, NamedTuple
from zlib import crc32

import numpy as np

from src.config.ranges import Count, Range, Seed
from src.datamodules.clicks.feature_spec import SPLITS
from src.datamodules.numbers import MISSING, Spelling, text_of
from src.datamodules.splits import (
    TRAIN,
    Splits,
    grouped_split,
    random_split,
    shared_with_train,
    split_by_column,
    split_by_time,
    stratified_split,
    times_of,
)
from src.datamodules.tables import SUFFIXES, is_table, rows_of
from src.errors import UserError
from src.measure.reading import Reading

TEST = "test"
NO_VALUE = -1  # in the place of the hash of a category that is missing
BY_COLUMN = ("grouped", "by_time", "column")  # splits that need a column
Split = Literal["random", "stratified", "grouped", "by_time", "column"]
DRAWN = ("random", "stratified", "grouped")
SEPARATORS = (",", ".", " ", "'")


@dataclass(frozen=True)
class ClickColumns:
    """The file of clicks and what its columns are.

    The defaults are those of checkpoints that were trained before a key was there; conf/datamodule/click_file.yaml has
    those of today.

    Attributes:
        label: column of 0 and 1 (or 0.0, 1.0, false, true).
        numerical: columns of numbers x, which become sign(x) ln(1 + |x|), a missing one 0.
        categorical: columns of values, which are hashed to 1 .. `buckets`, a missing one is 0.
        held_out_share: of the rows, for the test. If it is 1, all are to be predicted, with or without a label.
        split: how they are chosen; by `split_column` where that is grouped, by_time or column (values train and test).
        seed: of the rows drawn.
        decimal, thousands, missing: see `Spelling`.
        delimiter, encoding: of a text file, where they are not found; see src.datamodules.tables.
        form: of the features. 2: `1` and `1.0` are one category, float32 numbers; 1: as they are written, float16.
    """

    file: str
    label: str = "label"
    numerical: Sequence[str] = field(default_factory=list)
    categorical: Sequence[str] = field(default_factory=list)
    buckets: Count = 1000
    held_out_share: Annotated[float, Range(above=0, most=1)] = 0.1
    seed: Seed = 0
    split: Split = "random"
    split_column: str | None = None
    decimal: Literal[".", ","] = "."
    thousands: str | None = None
    missing: Sequence[str] = MISSING
    delimiter: str | None = None
    encoding: str | None = None
    form: Literal[1, 2] = 1

    def __post_init__(self) -> None:
        if not self.numerical or not self.categorical:
            raise UserError("give datamodule.source.numerical=[COLUMN,...] and datamodule.source.categorical=[...]")
        if not is_table(Path(self.file)):
            raise UserError(f"datamodule.source.file={self.file}: give a file that ends in {', '.join(SUFFIXES)}")
        twice = [name for name, count in Counter(self.columns).items() if count > 1]
        if twice:
            raise UserError(
                f"datamodule.source names column {twice[0]!r} twice: a column is the label, a numerical or a "
                f"categorical one"
            )
        if (self.split in BY_COLUMN) != (self.split_column is not None):
            raise UserError(
                f"datamodule.source.split={self.split}, split_column={self.split_column}: give a split_column for "
                f"{', '.join(BY_COLUMN)}, and for no other split"
            )
        if self.thousands is not None and self.thousands not in SEPARATORS:
            raise UserError(
                f"datamodule.source.thousands={self.thousands!r} is not allowed; expected null or one of "
                f"{' '.join(map(repr, SEPARATORS))}"
            )
        Spelling(self.decimal, self.thousands)

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.label, *self.numerical, *self.categorical)

    @property
    def only_predicted(self) -> bool:
        return self.held_out_share == 1


@dataclass
class Rows:
    """What was read of a file, row by row."""

    labels: list[int] = field(default_factory=list)  # -1 if unknown
    numbers: list[list[float]] = field(default_factory=list)
    hashes: list[list[int]] = field(default_factory=list)  # of the categories; NO_VALUE for a missing one
    chosen_by: list[str] = field(default_factory=list)  # the values of `split_column`
    lines: list[int] = field(default_factory=list)


def read_clicks(source: ClickColumns) -> tuple[Rows, Reading]:
    """Returns the rows that have a label, all rows if they are only predicted, and the report of the reading.

    Raises UserError that names file, line and value for another label, a value that is no number, a missing column.
    """
    rows, reading = Rows(), Reading(source.file, "rows")
    parser = _Parser(source, reading)
    chooser = source.split_column if not source.only_predicted else None
    more = () if chooser is None or chooser in source.columns else (chooser,)
    columns = (*source.columns, *more)
    optional = (source.label,) if source.only_predicted else ()
    how = {"delimiter": source.delimiter, "encoding": source.encoding}
    for line, row in rows_of(Path(source.file), columns, optional, reading=reading, **how):
        values = {name: text_of(row[name]) for name in columns}
        reading.read += 1
        label = parser.label(values[source.label], line)
        if label is None and not source.only_predicted:
            reading.drop(f"no label in column {source.label}", f"line {line}")
            continue
        numbers = [parser.number(values[name], name, line) for name in source.numerical]
        hashes = [parser.hashed(values[name], name, line) for name in source.categorical]
        parser.end_row(line)
        rows.labels.append(-1 if label is None else label)
        rows.numbers.append(numbers)
        rows.hashes.append(hashes)
        rows.lines.append(line)
        if chooser:
            rows.chosen_by.append(values[chooser])
    parser.end(len(rows.labels))
    return rows, reading


class _Parser:
    """Parses fields, and remembers what to report of a row."""

    def __init__(self, source: ClickColumns, reading: Reading) -> None:
        self.source, self.reading = source, reading
        self.spelling = Spelling(source.decimal, source.thousands, frozenset(source.missing))
        self.missing: Counter[str] = Counter()  # values by column
        self.rounded: dict[str, str] = {}  # the first identifier of a column that a float has rounded
        self.categories: dict[str, Category] = {}  # by text
        self._changes: dict[str, str] = {}  # of the row: in which way, with the first value

    def label(self, text: str, line: int) -> int | None:
        try:
            value = self.spelling.number(text)
        except ValueError:
            value = -1.0
        if value not in (0, 1, None):
            source = self.source
            raise UserError(
                f"{source.file} line {line}: {source.label} is {text!r}; it must be 0 or 1 (0.0, 1.0, false and true "
                f"are read too)"
            )
        return None if value is None else int(value)

    def number(self, text: str, column: str, line: int) -> float:
        try:
            value = self.spelling.number(text)
        except ValueError:
            raise UserError(
                f"{self.source.file} line {line}: {column} is {text!r}; it must be a number, or empty "
                f"(datamodule.source.decimal, thousands and missing say how the file writes them)"
            ) from None
        if value is None:
            self.missing[column] += 1
            if text:
                self._changes.setdefault("a word for no value read as missing", f"{column} {text!r}")
            return 0.0
        if text[-1:].isalpha():
            self._changes.setdefault("true and false read as 1 and 0", f"{column} {text!r}")
        return value

    def hashed(self, text: str, column: str, line: int) -> int:
        category = self.categories.get(text) or self.categories.setdefault(text, self._category(text))
        if category.hashed == NO_VALUE:
            self.missing[column] += 1
        if category.change:
            self._changes.setdefault(category.change, f"{column} {text!r}")
        if category.is_rounded:
            self.rounded.setdefault(column, f"line {line}: {text!r}")
        return category.hashed

    def _category(self, text: str) -> "Category":
        form = text if self.source.form == 1 else self.spelling.category(text)
        if not form:
            return Category(NO_VALUE, "a word for no value read as missing" if text else "")
        is_number = form.lstrip("-").isdigit()
        change = "a category read as the whole number that it is" if is_number else "True and TRUE read as true"
        return Category(crc32(form.encode()), change if form != text else "", self.spelling.is_rounded(text))

    def end_row(self, line: int) -> None:
        self.reading.change(self._changes, f"line {line}: {', '.join(self._changes.values())}")
        self._changes.clear()

    def end(self, total: int) -> None:
        """Adds the shares of missing values, and identifiers that have lost digits, to the notes."""
        if self.missing:
            shares = ", ".join(f"{column} {count / total:.1%}" for column, count in self.missing.items())
            self.reading.notes.append(f"missing values, as number 0 and category id 0: {shares}")
        for column, example in self.rounded.items():
            self.reading.notes.append(
                f"{column} has whole numbers of more than 15 digits that were rounded ({example}): write identifiers "
                f"as text or as whole numbers"
            )


class Category(NamedTuple):
    """A categorical value: its hash, in which way it was changed ("" for not), whether it has lost digits."""

    hashed: int
    change: str
    is_rounded: bool = False


def splits_of(source: ClickColumns, rows: Rows, reading: Reading) -> Splits:
    """Returns the rows of `train` and `test`; the reading gets their numbers and how they were chosen.

    Raises UserError where a value of `split_column` says nothing, and where one of them would have no row.
    """
    total, column = len(rows.labels), str(source.split_column)
    shares = {TEST: source.held_out_share}
    groups: Sequence[Hashable] = [
        (*numbers, *hashes) for numbers, hashes in zip(rows.numbers, rows.hashes, strict=True)
    ]
    if source.only_predicted:
        splits = {TEST: np.arange(total), TRAIN: np.arange(0)}
    elif source.split == "stratified":
        splits = stratified_split(rows.labels, shares, source.seed)
    elif source.split == "grouped":
        groups = _groups(source, rows)
        splits = grouped_split(groups, shares, source.seed)
    elif source.split == "by_time":
        spelling = Spelling(source.decimal, source.thousands, frozenset(source.missing))
        times = times_of(rows.chosen_by, lambda row: f"{source.file} line {rows.lines[row]}: {column}", spelling)
        splits = split_by_time(times, shares)
    elif source.split == "column":
        where = f"{source.file} column {column}"
        for value, line in zip(rows.chosen_by, rows.lines, strict=True):
            if value not in SPLITS:
                raise UserError(f"{source.file} line {line}: {column} is {value!r}; it must be {' or '.join(SPLITS)}")
        splits = split_by_column(rows.chosen_by, {split: split for split in SPLITS}, where)
    else:
        splits = random_split(total, shares, source.seed)
    splits = {split: np.sort(splits[split]) for split in SPLITS}
    if not len(splits[TEST]) or not (source.only_predicted or len(splits[TRAIN])):
        if source.only_predicted:
            raise UserError(f"{source.file} has a header and no rows; add rows to predict")
        by = f" by column {column}" if source.split_column else ""
        raise UserError(f"{source.file} has {total} rows with a label, too few for training and test{by}; add rows")
    reading.splits = {split: len(splits[split]) for split in SPLITS}
    drawn = f", {source.held_out_share:.0%} held out" + (f", seed {source.seed}" if source.split in DRAWN else "")
    by = source.label if source.split == "stratified" else column if source.split in BY_COLUMN else ""
    chosen = f"{source.split}{f' ({by})' if by else ''}{drawn if source.split != 'column' else ''}"
    reading.split = "all rows are to be predicted" if source.only_predicted else chosen
    reading.shared = 0 if source.only_predicted else shared_with_train(groups, splits)
    for split, chosen_rows in splits.items():
        counts = Counter(rows.labels[row] for row in chosen_rows.tolist())
        names = {"0": counts[0], "1": counts[1]} | ({"no label": counts[-1]} if counts[-1] else {})
        if counts:
            reading.classes[split] = names
    return splits


def _groups(source: ClickColumns, rows: Rows) -> list[Hashable]:
    """Returns the group of each row; a row without one is a group of its own."""
    spelling = Spelling(source.decimal, source.thousands, frozenset(source.missing))
    names = map(spelling.category, rows.chosen_by)
    return [name or row for row, name in enumerate(names)]
