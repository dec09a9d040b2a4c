"""Rows of a result table, from records and published rows, with figures as numbers."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from src.published import Correction, PublishedRow, is_of_case, nearest_rows
from src.report.keys import changed_hp, compared_config, environment
from src.report.record import Figure, Record

LATENCIES = ("mean", "p50", "p90", "p95", "p99")
FIGURES = (
    *("e2e_time_s", "train_time_s", "p_whole", "p_train", "p_core", "p_steady"),
    *("throughput", "with_loading", *(f"latency_s.{part}" for part in LATENCIES)),
    *("first_step_s", "final_metric", "final_target", "mem_used_gib", "mem_total_gib", "over_full"),
)
RATES = ("p_steady", "throughput", "p_core")  # the first that a row has is its speed
FULL = ("tf32", "fp32")  # precisions that a 16-bit rate is compared with, the first that there is


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row: the case, its figures by the names of FIGURES, and the corrections of wrong ones.

    `status` is the record's, or 'published'. `p_steady` is p_train after the warm-up steps; in a published training
    row it is a rate that its publisher defines differently. `note` is printed below the table. `comparable` is False
    for a published row that must not be compared with others. `case` tells runs of
    different configs or commits apart, whatever their precision and seed; '' for a published row. `url` is where a
    published row is from.
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
    case: str = ""
    url: str = ""


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
        "first_step_s": record.start.first_step_s if record.start else None,
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
        fix_hp=_fix_hp(record),
        batch=_batch(case.batch_size, case.batch_per),
        metric=metric.name if metric else None,
        figures={
            name: value if value is not None and math.isfinite(value) else None for name, value in figures.items()
        },
        note=f"{record.error.type}: {' '.join(record.error.message.split())}" if record.error else "",
        case=_case(record),
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
        note="; ".join(filter(None, (row.variant, row.note, row.environment, _command_note(row)))),
        comparable=row.comparable,
        url=row.url,
    )


def published_rows(records: list[Record]) -> list[Row]:
    """Returns the published rows to compare the records with, nearest first, each once.

    These are the rows with a record's trainer (nodes x devices), or all rows of its model if there are none.
    """
    published: list[PublishedRow] = []
    for record in records:
        every = nearest_rows(asdict(record.case), record.kind)
        published += [row for row in every if row.trainer == record.case.trainer] or every
    return [published_row(row) for i, row in enumerate(published) if row not in published[:i]]


def same_case_rows(records: Sequence[Record], most: int = 3) -> list[Row]:
    """Returns at most `most` published rows of the records' model, devices, batch and precision.

    These are the fastest row of each precision and batch, then the next fastest. Rows that are not comparable are left
    out, and notes have no command.
    """
    published: list[PublishedRow] = []
    for record in records:
        nearest = nearest_rows(asdict(record.case), record.kind)
        published += [row for row in nearest if row.comparable and is_of_case(row, asdict(record.case))]
    rows = [
        published_row(replace(row, command="", measured=False)) for i, row in enumerate(published)
        if row not in published[:i]
    ]  # fmt: skip
    rows.sort(key=lambda row: -(_rate(row) or ("", 0.0))[1])
    fastest = {(row.precision, row.batch): row for row in reversed(rows)}
    return sorted(rows, key=lambda row: row is not fastest[row.precision, row.batch])[:most]


def over_full(rows: Sequence[Row]) -> list[Row]:
    """Returns the rows of 16 bits with the ratio of their rate to that of the same case in TF32, or without that FP32.

    Where several rows are that case there is no ratio. Runs of one config and commit are compared; of published rows
    those of one source, by their rates as corrected.
    """
    by_case: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row.status in ("done", "published"):
            by_case.setdefault((_true_precision(row), *_case_key(row)), []).append(row)
    return [_with_ratio(row, by_case) for row in rows]


def _with_ratio(row: Row, every: Mapping[tuple[str, ...], Sequence[Row]]) -> Row:
    full = next((rows for name in FULL if (rows := every.get((name, *_case_key(row))))), [])
    rate, reference = _rate(row), _rate(full[0]) if len(full) == 1 else None
    if _true_precision(row) in FULL or rate is None or reference is None or rate[0] != reference[0]:
        return row
    return replace(row, figures={**row.figures, "over_full": rate[1] / reference[1]})


def _case_key(row: Row) -> tuple[str, ...]:
    origin = (row.source, row.note) if row.status == "published" else (row.case,)
    return (row.config, row.fix_hp, row.batch, *origin)


def _rate(row: Row) -> tuple[str, float] | None:
    """Returns the name and the value of a row's speed, corrected where it was wrong."""
    for name in RATES:
        value = row.corrected[name].value if name in row.corrected else row.figures.get(name)
        if value is not None:
            return name, float(value)
    return None


def _true_precision(row: Row) -> str:
    return str(row.corrected["precision"].value) if "precision" in row.corrected else row.precision


def _case(record: Record) -> str:
    config = compared_config(record)
    kept = {key: value for key, value in config.items() if not key.startswith("precision.")}
    return json.dumps([environment(record).get("commit"), kept], sort_keys=True)


def _fix_hp(record: Record) -> str:
    """Returns the changes of the default hyper-parameters, which an older record's case has of other ones."""
    try:
        return changed_hp(record.config, record.case.batch_size) if record.kind == "train" else "/"
    except (KeyError, TypeError):  # a record without its config
        return record.case.fix_hp or "/"


def _command_note(row: PublishedRow) -> str:
    """Returns a note with the command that repeats a measured reference; '' for a publication."""
    return f"by {row.command}" if row.measured else ""


def _config(hardware: str, trainer: str) -> str:
    return f"{hardware.replace('_', '-').upper()} {trainer}"


def _batch(size: int | None, per: str | None) -> str:
    return "/" if size is None else f"{size} global" if per == "global" else str(size)
