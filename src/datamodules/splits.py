"""Which items are held out: read from a file, drawn at random, or by classes, groups, time or a column."""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from jaxtyping import Int

from src.datamodules.numbers import Spelling
from src.errors import UserError
from src.system.reading import read_json

TRAIN = "train"  # the split of what is not held out
Rows = Int[np.ndarray, " _"]  # ascending, or in the random order that they were drawn in
Splits = dict[str, Rows]


def read_split(path: Path, total: int) -> Rows:
    """Returns the held-out rows, counted from 0, of a JSON file: a list of row numbers counted from 1.

    Raises UserError if the file is not a list of distinct row numbers between 1 and `total`.
    """
    numbers = read_json(path, "give a JSON list of row numbers")
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        raise UserError(f"the split file {path} is not a JSON list of whole numbers: give one, counted from 1")
    wrong = next((number for number in numbers if not 1 <= number <= total), None)
    if wrong is not None:
        raise UserError(f"the split file {path} has row {wrong}: give rows from 1 to {total}")
    if len(set(numbers)) < len(numbers):
        raise UserError(f"the split file {path} has a row twice: give each row once")
    return np.array(sorted(numbers), np.int64) - 1


def seeded_split(total: int, share: float, seed: int) -> Rows:
    """Returns a random `share` of the rows 0 to total - 1, drawn with `seed`, ascending."""
    return np.sort(np.random.default_rng(seed).permutation(total)[: round(total * share)])


def random_split(total: int, shares: Mapping[str, float], seed: int) -> Splits:
    """Returns the rows of each split of `shares`, drawn with `seed`, and as TRAIN the others."""
    return _cut(np.random.default_rng(seed).permutation(total), shares, total)


def stratified_split(classes: Sequence[Hashable], shares: Mapping[str, float], seed: int) -> Splits:
    """Returns splits that have, within one item, the same share of every class, drawn with `seed`.

    A class of one item is in TRAIN alone; one of two or more has one at least there.
    """
    order = np.random.default_rng(seed).permutation(len(classes))
    by_class: dict[Hashable, list[int]] = {}
    for row in order.tolist():
        by_class.setdefault(classes[row], []).append(row)
    parts: dict[str, list[int]] = {name: [] for name in (*shares, TRAIN)}
    owed = dict.fromkeys(shares, 0.0)  # fractions of items that rounding has kept from a split so far
    for rows in by_class.values():
        taken = 0
        for name, share in shares.items():
            owed[name] += share * len(rows)
            count = min(max(0, round(owed[name])), len(rows) - 1 - taken)
            owed[name] -= count
            parts[name] += rows[taken : taken + count]
            taken += count
        parts[TRAIN] += rows[taken:]
    return {name: np.sort(np.array(rows, np.int64)) for name, rows in parts.items()}


def grouped_split(groups: Sequence[Hashable], shares: Mapping[str, float], seed: int) -> Splits:
    """Returns splits that no group stands in two of, drawn with `seed`; the shares are of items, as near as groups go.

    Groups come in a random order, and each goes to the split that lacks the largest part of its share. A group of more
    than twice the items that a split lacks does not go there.
    """
    counts = Counter(groups)
    names = list(counts)
    total = len(groups)
    missing = {name: share * total for name, share in shares.items()}
    missing[TRAIN] = total - sum(missing.values())
    split_of: dict[Hashable, str] = {}
    for i in np.random.default_rng(seed).permutation(len(names)).tolist():
        size = counts[names[i]]
        fitting = [name for name in missing if missing[name] >= size / 2]
        split = max(
            fitting or [TRAIN], key=lambda name: (missing[name] / max(1e-9, _share(name, shares)), name == TRAIN)
        )
        split_of[names[i]] = split
        missing[split] -= size
    rows: dict[str, list[int]] = {name: [] for name in (*shares, TRAIN)}
    for row, group in enumerate(groups):
        rows[split_of[group]].append(row)
    return {name: np.array(numbers, np.int64) for name, numbers in rows.items()}


def split_by_time(times: Sequence[float | str], shares: Mapping[str, float]) -> Splits:
    """Returns splits in the order of time: TRAIN has the earliest items, the last split of `shares` the latest.

    Items of the same time stay together, in the earlier split.
    """
    order = np.argsort(np.array(times), kind="stable")
    ordered = [times[row] for row in order.tolist()]
    ends, end = {}, len(times)
    for name in reversed(list(shares)):
        begin = end - round(shares[name] * len(times))
        while 0 < begin < end and ordered[begin] == ordered[begin - 1]:
            begin += 1
        ends[name] = (begin, end)
        end = begin
    splits = {name: np.sort(order[slice(*ends[name])]) for name in shares}
    return splits | {TRAIN: np.sort(order[:end])}


def times_of(texts: Sequence[str], where: Callable[[int], str], spelling: Spelling | None = None) -> list[float]:
    """Returns the times of a column: numbers as they are, or dates of ISO 8601 in seconds, in UTC if not told.

    All are numbers, or all dates, as the first one is.

    Args:
        where: returns the file, line and column of an item, for messages.
        spelling: of numbers.

    Raises UserError for anything else.
    """
    number = (spelling or Spelling()).number
    parse, expected = number, "a number"
    try:
        number(texts[0] if texts else "")
    except ValueError:
        parse, expected = _seconds, "a date such as 2026-01-31 or 2026-01-31T12:00"
    times = []
    for item, text in enumerate(texts):
        try:
            time = parse(text)
        except (ValueError, OverflowError):
            time = None
        if time is None:
            raise UserError(f"{where(item)} is {text!r}; expected {expected}{' as in the first row' if item else ''}")
        times.append(time)
    return times


def _seconds(text: str) -> float:
    date = datetime.fromisoformat(text.strip())
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def split_by_column(values: Sequence[str], names: Mapping[str, str], where: str) -> Splits:
    """Returns the rows whose value is that of each split of `names` (split: value).

    Raises UserError for another value, with `where` (file and column) and the first row that has it.
    """
    split_of = {value: split for split, value in names.items()}
    other = next((row for row, value in enumerate(values) if value not in split_of), None)
    if other is not None:
        raise UserError(f"{where}: item {other + 1} has {values[other]!r}; expected {', '.join(split_of)}")
    column = np.array([split_of[value] for value in values])
    return {split: np.flatnonzero(column == split) for split in names}


def shared_with_train(groups: Sequence[Hashable], splits: Mapping[str, Rows]) -> int:
    """Returns how many items outside of TRAIN are of a group that TRAIN has too."""
    trained = {groups[row] for row in splits[TRAIN].tolist()}
    return sum(groups[row] in trained for name, rows in splits.items() if name != TRAIN for row in rows.tolist())


def _share(name: str, shares: Mapping[str, float]) -> float:
    return shares.get(name, 1 - sum(shares.values()))


def _cut(order: Rows, shares: Mapping[str, float], total: int) -> Splits:
    splits, begin = {}, 0
    for name, share in shares.items():
        end = begin + round(total * share)
        splits[name] = order[begin:end]
        begin = end
    return splits | {TRAIN: order[begin:]}
