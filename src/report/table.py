"""The result table in FlagPerf's layout: a model's runs first, then the published rows of the same case.

A figure that was not reported is '/'. A wrong published figure is shown as printed, with a mark, the corrected figure
in parentheses, and the reason below the table.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from src.report.digits import number
from src.report.record import Record
from src.report.rows import FIGURES, LATENCIES, Row, over_full, published_rows, record_row
from src.system.tables import csv_text

MARKS = "*†‡§¶#"
TEXTS = ("config", "precision", "fix_hp", "source")  # columns of text, aligned left
START = "; first step is the time from the start of the command to the end of the first step"
STEADY = "; p_steady is p_train after warm-up, or the rate of a publisher who gives one only"


@dataclass(frozen=True)
class Table:
    """The rows of one model and one kind of run; `unit` is that of its samples ('molecules')."""

    model: str
    kind: str
    unit: str
    rows: Sequence[Row]


@dataclass(frozen=True)
class Column:
    """A printed column: the figures that it joins by '/', and the factor from the record's unit to the printed one."""

    header: str
    figures: tuple[str, ...]
    factor: float = 1.0
    optional: bool = False  # left out if no row has a value


METRIC = Column("final", ("final_metric", "final_target"))
MEMORY = Column("mem", ("mem_used_gib", "mem_total_gib"))
OVER_FULL = Column("over full", ("over_full",), optional=True)
COLUMNS = {
    "train": (
        Column("e2e_time", ("e2e_time_s",)),
        Column("train_time", ("train_time_s",), optional=True),
        Column("first step", ("first_step_s",), optional=True),
        Column("p_whole", ("p_whole",)),
        Column("p_train", ("p_train",)),
        Column("p_core", ("p_core",)),
        Column("p_steady", ("p_steady",), optional=True),
        OVER_FULL,
        METRIC,
        MEMORY,
    ),
    "predict": (
        Column("throughput", ("throughput",)),
        Column("with loading", ("with_loading",), optional=True),
        OVER_FULL,
        *(Column(f"{part} ms", (f"latency_s.{part}",), factor=1e3) for part in LATENCIES),
        MEMORY,
    ),
}
LEGEND = {
    "train": "Rates in {unit}/s, times in s, mem in GiB of one device (used/total)",
    "predict": "Throughput in {unit}/s, latency of one batch in ms (mean and percentiles), mem in GiB (used/total)",
}


def tables(runs: Sequence[tuple[str, Record]], published: bool = True) -> list[Table]:
    """Returns one table per model and kind of the runs, in their order; a run is (path of its record, record)."""
    groups: dict[tuple[str, str], list[tuple[str, Record]]] = {}
    for source, record in runs:
        groups.setdefault((record.case.model, record.kind), []).append((source, record))
    return [
        Table(
            model,
            kind,
            members[0][1].unit,
            [
                *over_full([record_row(source, record) for source, record in members]),
                *(over_full(published_rows([record for _, record in members])) if published else []),
            ],
        )
        for (model, kind), members in groups.items()
    ]


def cells(table: Table) -> tuple[list[list[str]], list[str]]:
    """Returns the lines of the table, the headers first, and the notes below it, each with its mark."""
    notes = _Notes()
    metrics = list(dict.fromkeys(row.metric for row in table.rows if row.metric))
    columns = _columns(table)
    final = f"final_{metrics[0]}" if len(metrics) == 1 else "final_metric"
    headers = ["config", "precision", "fix_hp", "batch"]
    lines = [[*headers, *(final if column is METRIC else column.header for column in columns), "source"]]
    for row in table.rows:
        line = [row.config, notes.marked(row, "precision", row.precision), row.fix_hp, row.batch]
        for column in columns:
            text = _cell(row, column, notes)
            needs_name = column is METRIC and len(metrics) > 1 and text != "/"
            line.append(f"{row.metric} {text}" if needs_name else text)
        lines.append([*line, notes.source(row)])
    if table.kind == "predict":
        lines = [[*line[:2], *line[3:]] for line in lines]  # nothing is trained: no hyper-parameters to fix
    return lines, notes.lines()


def markdown(all_tables: Sequence[Table]) -> str:
    """Returns the tables as Markdown with aligned columns."""
    parts = []
    for table in all_tables:
        parts.append(f"### {table.model}, {table.kind}\n\n{section(table)}")
    return "\n".join(parts)


def section(table: Table) -> str:
    """Returns one table as Markdown, without a heading: the rows, the units, the notes."""
    lines, notes = cells(table)
    ratio = (
        f"; {OVER_FULL.header} is the rate over that in TF32, or FP32 where there is none"
        if OVER_FULL.header in lines[0]
        else ""
    )
    out = aligned(lines, [header in TEXTS for header in lines[0]])
    legend = LEGEND[table.kind].format(unit=table.unit)
    words = "".join(text for header, text in (("first step", START), ("p_steady", STEADY)) if header in lines[0])
    out += ["", f"{legend}{words}{ratio}; '/' is not reported."]
    return "\n".join([*out, *([""] if notes else []), *(f"- {note}" for note in notes)]) + "\n"


def aligned(lines: Sequence[Sequence[str]], left: Sequence[bool]) -> list[str]:
    """Returns the lines of a Markdown table, the first of `lines` as its header; `left` says which columns are text."""
    lines = [[" ".join(text.split()).replace("|", "\\|") for text in line] for line in lines]
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]  # a rule has three characters
    rule = ["-" * width if text else "-" * (width - 1) + ":" for width, text in zip(widths, left, strict=True)]
    align = [str.ljust if text else str.rjust for text in left]
    return [
        f"| {' | '.join(a(cell, w) for a, cell, w in zip(align, line, widths, strict=True))} |"
        for line in [lines[0], rule, *lines[1:]]
    ]


def as_csv(all_tables: Sequence[Table]) -> str:
    """Returns all rows as one csv: figures at full length in the record's units, corrections as 'name=value'.

    What was not reported is empty, as null is in `as_json`.
    """
    head = ("model", "kind", "unit", "source", "status", "config", "precision", "fix_hp", "batch", "metric")
    lines: list[list[Any]] = [[*head, *FIGURES, "corrected", "note"]]
    for table in all_tables:
        for row in table.rows:
            figures = [row.figures.get(name) for name in FIGURES]
            corrected = "; ".join(f"{name}={correction.value}" for name, correction in row.corrected.items())
            labels = (_given(getattr(row, name)) for name in head[3:])
            lines.append([table.model, table.kind, table.unit, *labels, *figures, corrected or None, row.note or None])
    return csv_text(lines)


def as_json(all_tables: Sequence[Table]) -> str:
    """Returns the tables as a JSON list: {model, kind, unit, rows: [{..., figures, corrected, note}]}."""
    plain = [asdict(table) for table in all_tables]
    for table in plain:
        for row in table["rows"]:
            del row["case"]  # of use to compare rows alone
            row |= {name: _given(row[name]) for name in ("fix_hp", "batch")}
    return json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _given(text: str | None) -> str | None:
    """Returns the text of a row, None for the '/' of what it has not got."""
    return None if text == "/" else text


def _columns(table: Table) -> list[Column]:
    return [
        column
        for column in COLUMNS[table.kind]
        if not column.optional or any(row.figures.get(column.figures[0]) is not None for row in table.rows)
    ]


def _cell(row: Row, column: Column, notes: "_Notes") -> str:
    if row.figures.get(column.figures[0]) is None:
        return "/"
    texts = []
    for name in column.figures:
        value: Any = row.figures.get(name)
        if value is not None:
            as_printed = row.status == "published" and column is not OVER_FULL
            printed = f"{value * column.factor:.12g}" if as_printed else number(value * column.factor)
            texts.append(notes.marked(row, name, printed, column.factor))
    return "/".join(texts)


class _Notes:
    """The notes below a table: why a figure is wrong (*, †, ...), and the source of a row ([1], [2], ...)."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.sources: list[str] = []

    def marked(self, row: Row, name: str, printed: str, factor: float = 1.0) -> str:
        """Returns the printed figure; a wrong one with a mark and the corrected figure in parentheses."""
        if name not in row.corrected:
            return printed
        correction = row.corrected[name]
        value = correction.value if isinstance(correction.value, str) else number(correction.value * factor)
        return f"{printed}{_mark(_index(correction.why, self.reasons))} ({value})"

    def source(self, row: Row) -> str:
        """Returns the short name of the row's source, and the number of the note with the rest."""
        if row.status == "published":
            name, details = re.split(r", | \(", row.source)[0], ": ".join(filter(None, (row.source, row.note)))
            name += "" if row.comparable else " **not comparable**"
        else:
            name, details = row.source + ("" if row.status == "done" else f" **{row.status}**"), row.note
        return f"{name} [{_index(details, self.sources) + 1}]" if details else name

    def lines(self) -> list[str]:
        """Returns the notes in the order of their marks."""
        reasons = [f"`{_mark(i)}` {text}" for i, text in enumerate(self.reasons)]
        return reasons + [f"[{i + 1}] {text}" for i, text in enumerate(self.sources)]


def _index(text: str, texts: list[str]) -> int:
    if text not in texts:
        texts.append(text)
    return texts.index(text)


def _mark(index: int) -> str:
    return MARKS[index % len(MARKS)] * (index // len(MARKS) + 1)
