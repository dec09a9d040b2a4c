"""What became of data that a person brought: how much was read, kept as written, kept changed, dropped and held out.

Every datamodule of own data fills one `Reading`; the terminal, the record and the report page show it alike.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

EXAMPLES = 3  # kept of each remark
SHOWN = 10  # classes and values named in a line
SHORT = 160  # characters of an example


@dataclass
class Remark:
    """What happened to `count` items, such as "charge removed", with the first of them ("line 5: 'C[O-]' -> 'CO'")."""

    what: str
    count: int = 0
    examples: list[str] = field(default_factory=list)


@dataclass
class Reading:
    """The report of a reading.

    Attributes:
        source: name of the file or folder.
        unit: what is counted, in the plural: rows, molecules, images.
        read: items that the source has, the dropped ones included.
        changed_items: items kept otherwise than they were written, each counted once.
        changed, dropped: how and why, most frequent first once `finish` was called.
        splits: items by split. `split` says how they were chosen.
        shared: items outside of the training split whose group, or whole content, is in it too.
        classes: items of each class by split.
        notes: what else the reader decided: delimiter, encoding, vocabulary.
    """

    source: str
    unit: str
    read: int = 0
    changed_items: int = 0
    changed: list[Remark] = field(default_factory=list)
    dropped: list[Remark] = field(default_factory=list)
    splits: dict[str, int] = field(default_factory=dict)
    split: str = ""
    shared: int = 0
    classes: dict[str, dict[str, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of_dict(cls, plain: Mapping[str, Any]) -> "Reading":
        """Returns the report that `dataclasses.asdict` made plain."""
        remarks = {key: [Remark(**remark) for remark in plain[key]] for key in ("changed", "dropped")}
        return cls(**{**plain, **remarks})

    def change(self, whats: Iterable[str], example: str, count: int = 1) -> None:
        """Notes that `count` items were kept changed in each of these ways; none of them if `whats` is empty."""
        whats = list(whats)
        self.changed_items += count if whats else 0
        for what in whats:
            _note(self.changed, what, example, count)

    def drop(self, why: str, example: str, count: int = 1) -> None:
        """Notes that `count` items were left out."""
        _note(self.dropped, why, example, count)

    @property
    def dropped_items(self) -> int:
        return sum(remark.count for remark in self.dropped)

    @property
    def as_written(self) -> int:
        """Items kept exactly as the source has them."""
        return self.read - self.changed_items - self.dropped_items

    def finish(self) -> "Reading":
        """Returns itself with the most frequent remarks first."""
        for remarks in (self.changed, self.dropped):
            remarks.sort(key=lambda remark: -remark.count)
        return self

    def lines(self) -> list[str]:
        """Returns the report as lines of text, in the order of the reading."""
        kept = [f"{self.as_written:,} kept as written"]
        kept += [f"{self.changed_items:,} kept changed"] if self.changed else []
        kept += [f"{self.dropped_items:,} dropped"] if self.dropped else []
        lines = [f"{self.source}: {self.read:,} {self.unit} read, {', '.join(kept)}"]
        for verb, remarks in (("changed", self.changed), ("dropped", self.dropped)):
            lines += [f"  {verb} {remark.count:,}: {remark.what}{_shown(remark.examples)}" for remark in remarks]
        if self.splits:
            sizes = ", ".join(f"{count:,} {name}" for name, count in self.splits.items())
            shared = f"; {self.shared:,} outside of train are in train too" if self.shared else ""
            lines.append(f"  split: {sizes}{f' ({self.split})' if self.split else ''}{shared}")
        lines += [f"  classes of {split}: {named(counts)}" for split, counts in self.classes.items()]
        lines += [f"  note: {note}" for note in self.notes]
        return [line.replace("\n", "\\n") for line in lines]  # file names and values may have line breaks


def named(counts: Mapping[str, int]) -> str:
    """Returns the first SHOWN classes with their counts, and how many more there are."""
    shown = [f"{name} {count:,}" for name, count in list(counts.items())[:SHOWN]]
    more = len(counts) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def _note(remarks: list[Remark], what: str, example: str, count: int) -> None:
    remark = next((remark for remark in remarks if remark.what == what), None)
    if remark is None:
        remarks.append(remark := Remark(what))
    remark.count += count
    if len(remark.examples) < EXAMPLES:
        remark.examples.append(example if len(example) <= SHORT else example[: SHORT - 1] + "…")


def _shown(examples: Sequence[str]) -> str:
    return f", as {examples[0]}" if examples else ""
