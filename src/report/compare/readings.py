"""What became of a person's own data, as a section of a comparison's page."""

from collections.abc import Sequence

from src.measure.reading import Reading, Remark
from src.report.compare.html import folded, listed, table, text
from src.report.compare.structure import Comparison

MOST_CLASSES = 100  # of a reading that are counted


def readings(comparison: Comparison) -> str:
    """Returns what became of a person's own data, folded; runs that read the same share a section."""
    readers: dict[str, tuple[Reading, list[str]]] = {}
    for group in comparison.groups:
        for run in group.runs:
            if run.reading is not None:
                readers.setdefault(repr(run.reading), (run.reading, []))[1].append(run.source)
    return "".join(_reading(reading, sources) for reading, sources in readers.values())


def _reading(reading: Reading, sources: Sequence[str]) -> str:
    """Returns the parts of `Reading.lines` with all examples; counts of splits and classes are tables."""
    kept = [("read", reading.read), ("kept as written", reading.as_written), ("kept changed", reading.changed_items)]
    counts = [*kept, ("dropped", reading.dropped_items)]
    whole = f"What became of the {reading.unit}"
    parts = [table([[name for name, _ in counts], [f"{number:,}" for _, number in counts]], 0, whole)]
    parts += [_remarks("Kept changed", reading.changed), _remarks("Dropped", reading.dropped)]
    splits = list(dict.fromkeys([*reading.splits, *reading.classes]))
    if splits:
        classes = list(dict.fromkeys(name for split in reading.classes.values() for name in split))
        lines = [["", *splits], [reading.unit, *(_count(reading.splits.get(split)) for split in splits)]]
        per_class = [
            [
                name,
                *(
                    _count(reading.classes[split].get(name, 0) if split in reading.classes else None)
                    for split in splits
                ),
            ]
            for name in classes[:MOST_CLASSES]
        ]
        more = len(classes) - len(per_class)
        shared = [f"{reading.shared:,} outside of train are in train too"] if reading.shared else []
        notes = [reading.split, *shared, *([f"{more:,} more classes"] if more else [])]
        parts.append(table([*lines, *per_class], 1, "; ".join(["Splits", *filter(None, notes)])))
    parts.append(listed(reading.notes))
    summary = f"{reading.source}: {reading.read:,} {reading.unit} read, {reading.as_written:,} kept as written"
    runs = f"<p>Runs: {text(', '.join(sources))}</p>"
    return folded("Data that was read", f"{runs}{''.join(parts)}", summary)


def _remarks(title: str, remarks: Sequence[Remark]) -> str:
    if not remarks:
        return ""
    lines = [[remark.what, "\n".join(remark.examples), f"{remark.count:,}"] for remark in remarks]
    return table([["what" if title != "Dropped" else "why", "examples", "count"], *lines], 2, title)


def _count(number: int | None) -> str:
    return "/" if number is None else f"{number:,}"
