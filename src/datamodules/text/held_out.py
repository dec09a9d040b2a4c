"""Which of one's own sentences are held out for evaluation."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

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
from src.datamodules.text.tables import LabelledSentences
from src.errors import UserError
from src.measure.reading import Reading

Way = Literal["stratified", "random", "grouped", "by_time", "column"]
NEED_COLUMN = ("grouped", "by_time", "column")
DEV = "dev"
SHOWN = 5


def check_way(way: Way, column: str | None) -> None:
    """Raises UserError for a way that is none, and where `column` is missing or of no use."""
    if way not in get_args(Way):
        raise UserError(f"datamodule.source.split={way} is not allowed; expected {', '.join(get_args(Way))}")
    if way in NEED_COLUMN and column is None:
        raise UserError(f"datamodule.source.split={way} needs datamodule.source.split_column=COLUMN")
    if way not in NEED_COLUMN and column is not None:
        raise UserError(
            f"datamodule.source.split_column={column} is for split={', '.join(NEED_COLUMN)}; give one, or leave it out"
        )


def held_out(
    table: LabelledSentences, way: Way, share: float, seed: int, column: str | None, reading: Reading
) -> dict[str, LabelledSentences]:
    """Returns the rows of `train` and `dev`; says in `reading` how they were chosen.

    A class that would be held out as a whole stays in training: nothing could learn it otherwise.
    """
    labels, shares, total = table.labels, {DEV: share}, len(table.texts)
    if way == "stratified":
        splits = stratified_split(labels, shares, seed)
    elif way == "random":
        splits = random_split(total, shares, seed)
    elif way == "grouped":
        splits = grouped_split(table.others, shares, seed)
    elif way == "by_time":
        splits = split_by_time(
            times_of(table.others, lambda row: f"{table.where} line {table.lines[row]}: {column}"), shares
        )
    else:
        splits = _by_column(table, column)
    if way in ("random", "grouped"):
        splits = _with_all_classes(splits, labels, table.others, reading)
    elif way == "by_time":
        splits = _without_new_classes(splits, table, reading)
    said = {"stratified": f"drawn by class with seed {seed}", "random": f"drawn with seed {seed}"}
    said |= {"grouped": f"drawn by groups of {column} with seed {seed}", "by_time": f"the latest by {column}"}
    reading.split = said.get(way, f"as column {column} says")
    alone = [str(label) for label, count in Counter(labels).items() if count == 1]
    if alone and way in ("stratified", "random"):
        more = f" and {len(alone) - SHOWN} more" if len(alone) > SHOWN else ""
        reading.notes.append(f"classes of one example, which is in train: {', '.join(alone[:SHOWN])}{more}")
    parts: dict[str, LabelledSentences] = {}
    for name in (TRAIN, DEV):
        parts[name] = table.part(np.sort(splits[name]).tolist())
    return parts


def tell_splits(tables: dict[str, LabelledSentences], names: Sequence[str], reading: Reading) -> None:
    """Says in `reading` how many rows of each class are in which split, and which sentences are in both."""
    groups, splits, begin = [], {}, 0
    for split, table in tables.items():
        reading.splits[split] = len(table.texts)
        counts = Counter(table.labels)
        reading.classes[split] = {name: counts[name] for name in names}
        groups += [" ".join(text.casefold().split()) for text in table.texts]
        splits[split] = np.arange(begin, len(groups))
        begin = len(groups)
    reading.shared = shared_with_train(groups, splits)


def _with_all_classes(splits: Splits, labels: Sequence[str | None], groups: Sequence[str], reading: Reading) -> Splits:
    """Returns splits whose training rows have every class: rows of others, with their groups, go there."""
    trained = {labels[row] for row in splits[TRAIN].tolist()}
    moved = [row for row in splits[DEV].tolist() if labels[row] not in trained]
    if not moved:
        return splits
    names = {groups[row] for row in moved} if groups else set()
    is_moved = np.array([row in {*moved} or (bool(groups) and groups[row] in names) for row in splits[DEV].tolist()])
    classes = ", ".join(sorted({str(labels[row]) for row in moved})[:SHOWN])
    reading.notes.append(f"held out by chance as a whole, and now in train: {int(is_moved.sum())} rows of {classes}")
    return {TRAIN: np.concatenate([splits[TRAIN], splits[DEV][is_moved]]), DEV: splits[DEV][~is_moved]}


def _without_new_classes(splits: Splits, table: LabelledSentences, reading: Reading) -> Splits:
    """Returns splits without the later rows of classes that no earlier row has, which are dropped."""
    trained = {table.labels[row] for row in splits[TRAIN].tolist()}
    rows = [row for row in splits[DEV].tolist() if table.labels[row] in trained]
    for row in sorted({*splits[DEV].tolist()} - {*rows}):
        reading.drop("a class that no row of train has", f"line {table.lines[row]}: {table.labels[row]!r}")
    return splits | {DEV: np.array(rows, np.int64)}


def _by_column(table: LabelledSentences, column: str | None) -> Splits:
    values = [value.casefold() for value in table.others]
    for value, line in zip(values, table.lines, strict=True):
        if value not in (TRAIN, DEV):
            raise UserError(f"{table.where} line {line}: {column} is {value!r}; expected {TRAIN} or {DEV}")
    return split_by_column(values, {TRAIN: TRAIN, DEV: DEV}, f"{table.where}, {column}")
