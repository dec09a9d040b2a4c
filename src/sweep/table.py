"""The states and results of a sweep's jobs, as lines for a terminal and as csv."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from src.report.digits import number, short_value
from src.report.job import STATES, SweepJob, differing_overrides, label
from src.report.record import Record
from src.sweep.outcome import record_of
from src.system.tables import csv_text

COLOURS = {"done": "green", "running": "cyan", "waiting": "dim", "interrupted": "yellow"}


def count_states(jobs: Sequence[SweepJob]) -> str:
    """Returns the number of jobs in each state, as in '12 jobs: 9 done, 1 failed, 2 oom'."""
    numbers = Counter(job.state for job in jobs)
    parts = ", ".join(f"{numbers[state]} {state}" for state in STATES if numbers[state])
    return f"{len(jobs)} job{'s' * (len(jobs) != 1)}: {parts}"


def coloured(state: str) -> str:
    return f"[{COLOURS.get(state, 'red')}]{state}[/]"


def result_rows(jobs: Mapping[Path, SweepJob]) -> list[dict[str, Any]]:
    """Returns one row per job: number, differing overrides, state, figures in the record's units, seconds, reason.

    The best job comes first and those without a final metric last, where all are judged by the same one.
    """
    ranks, rows = ranks_of(jobs), []
    every = zip(jobs.items(), differing_overrides([*jobs.values()]), strict=True)
    for (folder, job), differing in sorted(every, key=lambda entry: ranks.get(entry[0][0], float("inf"))):
        rows.append(
            {"job": folder.name, **differing, "state": job.state, **figures(record_of(folder))}
            | {"seconds": round(job.seconds, 1) if job.seconds is not None else None, "reason": job.reason}
        )
    keys = list(dict.fromkeys(key for row in rows for key in row if key not in ("seconds", "reason")))
    return [{key: row.get(key) for key in (*keys, "seconds", "reason")} for row in rows]


def ranks_of(jobs: Mapping[Path, SweepJob]) -> dict[Path, float]:
    """Returns a number for each job that is done, smaller for a better final metric; none unless all have the same."""
    done = {folder: record_of(folder) for folder, job in jobs.items() if job.state == "done"}
    metrics = {folder: record.final_metric for folder, record in done.items() if record and record.final_metric}
    if len({(metric.name, metric.direction) for metric in metrics.values()}) != 1:
        return {}
    values = {folder: metric.value for folder, metric in metrics.items() if metric.value is not None}
    sign = -1 if next(iter(metrics.values())).direction == "max" else 1
    return {folder: sign * value for folder, value in values.items()}


def best_line(jobs: Mapping[Path, SweepJob]) -> str | None:
    """Returns a line that names the best of several jobs and its folder, or those of an exact tie.

    None where fewer than two can be compared.
    """
    ranks = ranks_of(jobs)
    if len(ranks) < 2:
        return None
    folder, *others = [path for path in ranks if ranks[path] == min(ranks.values())]
    varied = dict(zip(jobs, differing_overrides([*jobs.values()]), strict=True))[folder]
    record = record_of(folder)
    assert record is not None and record.final_metric is not None and record.final_metric.value is not None
    metric = f"{record.final_metric.name} {number(record.final_metric.value)}"
    if others:
        return f"best: an exact tie of jobs {', '.join(path.name for path in (folder, *others))}, {metric}"
    return f"best: job {folder.name} ({label(varied)}), {metric}; {folder}"


def figures(record: Record | None) -> dict[str, float]:
    """Returns the figures to compare jobs by: final metric, rates, memory; only those that were measured."""
    if record is None:
        return {}
    metric, steady, memory = record.final_metric, record.steady, record.mem
    values = {
        metric.name if metric else "final": metric.value if metric else None,
        "p_train": record.p_train,
        "p_steady": steady.p_train if steady else None,
        "throughput": record.throughput,
        "mem_gib": memory.peak_reserved_gib if memory else None,
    }
    return {name: value for name, value in values.items() if value is not None}


def result_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Returns the rows as a table for a terminal, without the reasons, which are printed below it."""
    table = Table(box=None, pad_edge=False)
    names = [name for name in rows[0] if name != "reason"]
    for name in names:
        table.add_column(name, justify="left" if name == "state" else "right", overflow="fold")
    for row in rows:
        table.add_row(*(coloured(row[name]) if name == "state" else _shown(row[name]) for name in names))
    return table


def _shown(value: Any) -> str:
    return "" if value is None else number(value) if isinstance(value, float | int) else short_value(value)


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns rows of the same columns as csv, figures at full length."""
    return csv_text([[*rows[0]], *(list(row.values()) for row in rows)])
