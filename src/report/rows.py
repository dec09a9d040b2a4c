"""Rows of a result table, from records and published rows, with figures as numbers."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from src.published import Correction, PublishedRow, nearest_rows
from src.report.record import Figure, Record

LATENCIES = ("mean", "p50", "p90", "p95", "p99")
FIGURES = (
    *("e2e_time_s", "train_time_s", "p_whole", "p_train", "p_core", "p_steady"),
    *("throughput", "with_loading", *(f"latency_s.{part}" for part in LATENCIES)),
    *("final_metric", "final_target", "mem_used_gib", "mem_total_gib"),
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row: the case, its figures by the names of FIGURES, and the corrections of wrong ones.

    `status` is the record's, or 'published'. `p_steady` is p_train after the warm-up steps; in a published training
    row it is a rate that its publisher defines differently. `note` is printed below the table. `comparable` is False
    for a published row that must not be compared with others.
    """

    source: str
    status: str
    config: str
    precision: str
    fix_hp: str
    batch: str
    metric: str | None
    figures: Mapping[str, Figure]
    corrected: Mapping[str, Correction] = field(default_factory=dict)
    note: str = ""
    comparable: bool = True


def record_row(source: str, record: Record) -> Row:
    """Returns the row of a run; `source` is the path of its record."""
    case, metric, mem = record.case, record.final_metric, record.mem
    latency = asdict(record.latency_s) if record.latency_s else {}
    figures = {
        "e2e_time_s": record.e2e_time_s,
        "p_whole": record.p_whole,
        "p_train": record.p_train,
        "p_core": record.p_core,
        "p_steady": record.steady.p_train if record.steady else None,
        "throughput": record.throughput,
        "with_loading": record.with_loading.throughput if record.with_loading else None,
        **{f"latency_s.{part}": latency.get(part) for part in LATENCIES},
        "final_metric": metric.value if metric else None,
        "final_target": metric.target if metric else None,
        "mem_used_gib": mem.peak_reserved_gib if mem else None,
        "mem_total_gib": mem.total_gib if mem else None,
    }
    return Row(
        source=source,
        status=record.status,
        config=_config(case.hardware, case.trainer),
        precision=case.precision,
        fix_hp=case.fix_hp or "/",
        batch=_batch(case.batch_size, case.batch_per),
        metric=metric.name if metric else None,
        figures={
            name: value if value is not None and math.isfinite(value) else None for name, value in figures.items()
        },
        note=f"{record.error.type}: {' '.join(record.error.message.split())}" if record.error else "",
    )


def published_row(row: PublishedRow) -> Row:
    """Returns the row of a publication, with its figures as printed and their corrections."""
    # A training rate that its publisher gives without one of the three names is in the column p_steady.
    names = {"throughput": "p_steady"} if row.kind == "train" else {}
    plain = (
        "e2e_time_s",
        "train_time_s",
        "p_whole",
        "p_train",
        "p_core",
        "throughput",
        "mem_used_gib",
        "mem_total_gib",
    )
    return Row(
        source=row.source,
        status="published",
        config=_config(row.hardware, row.trainer),
        precision=row.precision,
        fix_hp=row.fix_hp or "/",
        batch=_batch(row.batch_size, row.batch_per),
        metric=row.final_metric.name if row.final_metric else None,
        figures={
            **{names.get(name, name): row.figure(name) for name in plain},
            **{f"latency_s.{part}": (row.latency_s or {}).get(part) for part in LATENCIES},
            "final_metric": row.figure("final_metric"),
            "final_target": row.final_metric.target if row.final_metric else None,
        },
        corrected={names.get(name, name): correction for name, correction in row.corrected.items()},
        note="; ".join(filter(None, (row.variant, row.note, _command_note(row)))),
        comparable=row.comparable,
    )


def published_rows(records: list[Record]) -> list[Row]:
    """Returns the published rows to compare the records with, nearest first, each once.

    These are the rows with a record's trainer (nodes x devices), or all rows of its model if there are none.
    """
    found: list[PublishedRow] = []
    for record in records:
        every = nearest_rows(asdict(record.case), record.kind)
        found += [row for row in every if row.trainer == record.case.trainer] or every
    return [published_row(row) for i, row in enumerate(found) if row not in found[:i]]


def _command_note(row: PublishedRow) -> str:
    """Returns a note with the command that repeats a measured reference, or that it is lost; '' for a publication."""
    if not row.measured:
        return ""
    return f"by {row.command}" if row.command else "its command was not kept, to be measured again"


def _config(hardware: str, trainer: str) -> str:
    return f"{hardware.replace('_', '-').upper()} {trainer}"


def _batch(size: int | None, per: str | None) -> str:
    return "/" if size is None else f"{size} global" if per == "global" else str(size)
