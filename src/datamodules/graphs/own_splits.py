"""Splits of a person's molecules: by molecule, scaffold, time or a column of the file, or at random."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from src.config.ranges import Seed, ShareBelow1
from src.datamodules.splits import (
    Splits,
    grouped_split,
    shared_with_train,
    split_by_column,
    split_by_time,
    times_of,
)
from src.errors import UserError
from src.measure.reading import Reading

Way = Literal["grouped", "random", "scaffold", "by_time", "column"]
KEYS = "datamodule.source.split", "datamodule.source.split_column"
NAMES = {"train": "train", "val": "val", "test": "test"}
OTHER_NAMES = {"training": "train", "valid": "val", "validation": "val", "dev": "val", "testing": "test"}


@dataclass(frozen=True)
class OwnSplit:
    """How molecules are held out.

    Args:
        way: `grouped` keeps all conformers of a molecule in one split; None means the same, or random where there are
            too few molecules for it, as in a trajectory.
        column: of `by_time` and `column`: the key of the file that has times, or train, val and test.
        val_share, test_share: shares of the molecules to hold out, drawn with `seed`.
    """

    way: Way | None = None
    column: str | None = None
    val_share: ShareBelow1 = 0.1
    test_share: ShareBelow1 = 0.1
    seed: Seed = 0

    def __post_init__(self) -> None:
        if self.val_share + self.test_share >= 1:
            raise UserError(
                f"val_share={self.val_share} and test_share={self.test_share}: give shares of 0 or more with a sum "
                "below 1"
            )
        if (self.column is None) == (self.way in ("by_time", "column")):
            raise UserError(
                f"{KEYS[0]}={self.way} and {KEYS[1]}={self.column}: split=by_time and split=column need a split_column,"
                " the others take none"
            )

    @property
    def shares(self) -> dict[str, float]:
        return {"val": self.val_share, "test": self.test_share}

    def of(self, groups: Sequence[str], scaffolds: Sequence[str], values: Sequence[str], reading: Reading) -> Splits:
        """Returns the rows of each split, in a random order, and notes them in the report.

        Args:
            groups, scaffolds, values: of each molecule: which it is, its scaffold, and its value of `column`.
        """
        total, order = len(groups), np.random.default_rng(self.seed)
        is_shuffled = False
        if self.way in ("by_time", "column"):
            splits, how = self._by_values(values, reading.source)
        elif self.way == "scaffold":
            splits = self._kept_together(scaffolds, "scaffold")
            how = f"scaffold: no ring system in two of them, seed {self.seed}"
        elif self.way != "random" and len(set(groups)) < total and (self.way or self._can_group(groups)):
            splits = self._kept_together(groups, "molecule")
            how = f"grouped: no molecule in two of them, seed {self.seed}"
        else:
            splits, is_shuffled = shared_split(total, self.val_share, self.test_share, self.seed), True
            is_single = len(set(groups)) == total
            how = "grouped: every molecule is there once" if is_single and self.way != "random" else "random"
            how += f", seed {self.seed}"
            if not is_single and self.way is None:
                reading.notes.append(
                    f"{total:,} items are of {len(set(groups)):,} molecules, too few to hold whole ones out: drawn at "
                    f"random, so that conformers of one stand on both sides; {KEYS[0]}=grouped refuses that"
                )
        if not is_shuffled:  # evaluation batches in a random order have similar sizes, and so share one shape
            splits = {name: order.permutation(rows) for name, rows in splits.items()}
        reading.splits = {name: len(splits[name]) for name in NAMES}
        reading.split, reading.shared = how, shared_with_train(groups, splits)
        return {name: splits[name] for name in NAMES}

    def _can_group(self, groups: Sequence[str]) -> bool:
        """Returns whether whole molecules can be held out in about the shares asked for."""
        splits = grouped_split(groups, self.shares, self.seed)
        return all(len(splits[name]) >= share * len(groups) / 2 for name, share in self.shares.items())

    def _kept_together(self, groups: Sequence[str], what: str) -> Splits:
        splits = grouped_split(groups, self.shares, self.seed)
        empty = [name for name, share in self.shares.items() if share and not len(splits[name]) and len(groups) > 2]
        if empty:
            raise UserError(
                f"{KEYS[0]}={self.way}: the file has {len(groups):,} items of {len(set(groups)):,} {what}s, too few to "
                f"hold whole ones out for {' and '.join(empty)}; give {KEYS[0]}=random, or other shares"
            )
        return splits

    def _by_values(self, values: Sequence[str], source: str) -> tuple[Splits, str]:
        where = f"{source}, {KEYS[1]}={self.column}"
        missing = next((row for row, value in enumerate(values) if not value.strip()), None)
        if missing is not None:
            raise UserError(f"{where}: item {missing + 1} has no value, and {KEYS[0]}={self.way} needs one of each")
        if self.way == "column":
            words = [value.strip().lower() for value in values]
            splits = split_by_column([OTHER_NAMES.get(word, word) for word in words], NAMES, where)
            return splits, f"column {self.column}"
        times = times_of(values, lambda item: f"{where}: item {item + 1}")
        return split_by_time(times, self.shares), f"by time: the latest by {self.column} held out"


def shared_split(total: int, val_share: float, test_share: float, seed: int) -> Splits:
    """Rows of train, val and test, drawn with `seed`."""
    order = np.random.default_rng(seed).permutation(total)
    val, test = round(total * val_share), round(total * test_share)
    return {"train": order[val + test :], "val": order[:val], "test": order[val : val + test]}


def column_of(records: Sequence[Mapping[str, str]], column: str | None, source: str) -> list[str]:
    """Returns the values of a column, "" where it is missing. Raises UserError for one that the file lacks."""
    if column is None:
        return []
    names = list(dict.fromkeys(name for values in records for name in values))
    if column not in names:
        raise UserError(f"{KEYS[1]}={column}: {source} has no such key; choose from {', '.join(names) or 'none'}")
    return [values.get(column, "") for values in records]
