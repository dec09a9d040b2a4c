"""One row of a result table, made of a record or of a published row, with its figures still as numbers."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from src.published import Correction, PublishedRow, beside
from src.report.record import Figure, Record

LATENCIES = ("mean", "p50", "p90", "p95", "p99")
FIGURES = (
    *("e2e_time_s", "train_time_s", "p_whole", "p_train", "p_core", "p_steady"),
    *("throughput", "with_loading", *(f"latency_s.{part}" for part in LATENCIES)),
    *("final_metric", "final_target", "mem_used_gib", "mem_total_gib"),
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row: what was run, its figures by the names of FIGURES, and the corrections of those known to be wrong.

    `status` is the record's, or 'published'. `p_steady` is p_train after the warm-up steps; of a published training
    row it is a rate that its publisher defines otherwise. `note` says what a reader must know of the row. `comparable`
    is False for a published row that nothing is to be compared with.
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


def of_record(source: str, record: Record) -> Row:
    """Returns the row of a run; `source` says where its record lies."""
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


def of_published(row: PublishedRow) -> Row:
    """Returns the row of a publication, its figures as printed and its corrections beside them."""
    steady = row.kind == "train"  # the rate a publisher gives without one of the three names
    names = {"throughput": "p_steady"} if steady else {}
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
        note="; ".join(filter(None, (row.variant, row.note, _repeated_by(row)))),
        comparable=row.comparable,
    )


def published_beside(records: list[Record]) -> list[Row]:
    """Returns the published rows of the records' cases, nearest first, each once.

    Those of a record's own trainer (nodes x devices); all rows of its model where none was published for the trainer.
    """
    found: list[PublishedRow] = []
    for record in records:
        every = beside(asdict(record.case), record.kind)
        found += [row for row in every if row.trainer == record.case.trainer] or every
    return [of_published(row) for i, row in enumerate(found) if row not in found[:i]]


def _repeated_by(row: PublishedRow) -> str:
    """Returns the command that repeats a measured reference, or that there is none; nothing for a publication."""
    if not row.measured:
        return ""
    return f"by {row.command}" if row.command else "its command was not kept, to be measured again"


def _config(hardware: str, trainer: str) -> str:
    return f"{hardware.replace('_', '-').upper()} {trainer}"


def _batch(size: int | None, per: str | None) -> str:
    return "/" if size is None else f"{size} global" if per == "global" else str(size)
