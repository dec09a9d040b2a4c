"""Comparisons with other code in one run, as text; `benchmarks.beside` measures them: docs/guides/beside.md."""

import re
from collections.abc import Sequence
from pathlib import Path

from src.errors import shortened
from src.report.in_turn import NOT_FINITE, VERBS, Comparison, Range, Side
from src.system.tables import csv_text

HEADER = """\
| case | side | per second | ours / it | over rounds | GiB | SM MHz | degrees C |
|---|---|--:|--:|--:|--:|--:|--:|
"""
SUMMARY = """\
| batch | Reprise | fastest other code | its rate | ours / it | over rounds |
|---|--:|---|--:|--:|--:|
"""
PRECISIONS = {"amp": "AMP", "tf32": "TF32"}  # how a precision is printed, where not as it is
EXPLANATION = (
    "A rate is the median of the turns. A ratio is formed within each round; the table has the median of the rounds, "
    "and their least and greatest. GiB is the peak of memory that torch reserved; clock and temperature are the least "
    "and greatest during the turns."
)


def in_order(path: Path) -> list[str | int]:
    """Returns a key by which names are in the order of the numbers in them: batch 64 before batch 512."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.stem)]


def page(comparisons: Sequence[Comparison]) -> str:
    """Returns table, commands and what each side includes, of cases of one model."""
    lines = [table(comparisons), EXPLANATION, ""]
    if any(comparison.tiny for comparison in comparisons):
        lines += ["A rehearsal with tiny networks: the figures mean nothing.", ""]
    commands: dict[str, list[str]] = {}
    for comparison in comparisons:
        commands.setdefault(origin(comparison), []).append(comparison.command)
    for where, of_cases in commands.items():
        lines += [f"{where}:", "", *(f"    {command}" for command in dict.fromkeys(of_cases)), ""]
    lines += dict.fromkeys(
        included(side, comparison.case.verb) for comparison in comparisons for side in comparison.sides if side.includes
    )
    rates = [
        f"{comparison.case.name} {rate:,.0f} {comparison.case.unit}"
        for comparison in comparisons
        if (rate := comparison.sides[0].own_rate)
    ]
    if rates:
        ours = comparisons[0].sides[0].side
        lines += ["", f"{ours} per second, by the median step of its own record: {', '.join(rates)}."]
    return "\n".join(lines) + "\n"


def table(comparisons: Sequence[Comparison]) -> str:
    """Returns a Markdown table of cases, a line for each side."""
    lines = HEADER
    for comparison in comparisons:
        for side in comparison.sides:
            rate = f"{side.status}: {shortened(str(side.error), 120)}"
            if side.throughput:
                rate = f"{side.throughput:,.0f} {comparison.case.unit}"
            ratio, gpu = side.ours_over_it, side.gpu
            cells = [
                comparison.case.name,
                side.side,
                rate,
                f"{ratio.median:.3f}" if ratio else "",
                f"{ratio.least:.3f} to {ratio.greatest:.3f}" if ratio else "",
                f"{side.reserved_gib:.1f}" if side.reserved_gib is not None else "",
                _range(gpu.sm_mhz if gpu else None),
                _range(gpu.celsius if gpu else None),
            ]
            lines += f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |\n"
    return lines


def as_csv(comparisons: Sequence[Comparison]) -> str:
    """Returns a row for each side: rates in samples per second, memory in GiB, clocks in MHz, degrees Celsius."""
    head = (
        "model", "case", "side", "status", "throughput", "unit", "ours_over_it", "least", "greatest",
        "peak_reserved_gib", "sm_mhz_min", "sm_mhz_max", "celsius_min", "celsius_max", "own_rate", "measured_at", "gpu",
        "commit", "command", "includes", "differs", "error",
    )  # fmt: skip
    lines: list[Sequence[object]] = [head]
    for comparison in comparisons:
        for side in comparison.sides:
            ratio, gpu = side.ours_over_it, side.gpu
            clock, heat = (gpu.sm_mhz, gpu.celsius) if gpu else (None, None)
            lines.append([
                comparison.case.model, comparison.case.name, side.side, side.status, side.throughput,
                comparison.case.unit, *((ratio.median, ratio.least, ratio.greatest) if ratio else (None,) * 3),
                side.reserved_gib, *((clock.min, clock.max) if clock else (None,) * 2),
                *((heat.min, heat.max) if heat else (None,) * 2), side.own_rate, comparison.measured_at,
                ", ".join(comparison.gpus), comparison.git.commit, comparison.command, side.includes,
                "; ".join(side.differs) or None, side.error,
            ])  # fmt: skip
    return csv_text(lines)


def summary(comparisons: Sequence[Comparison]) -> str:
    """Returns Markdown tables of cases, each with the fastest side that is not ours: one for each kind of case."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for comparison in sorted(comparisons, key=lambda comparison: VERBS.index(comparison.case.verb)):
        ours, best, case = comparison.sides[0], comparison.fastest, comparison.case
        if best is None or best.ours_over_it is None:
            continue
        ratio = best.ours_over_it
        name = f"{case.batch_size:,}, {PRECISIONS.get(case.precision, case.precision)}"
        over_rounds = f"{ratio.least:.2f} to {ratio.greatest:.2f}"
        cells = [name, rate_text(ours), best.side, rate_text(best), f"{ratio.median:.2f}", over_rounds]
        groups.setdefault((case.verb, case.unit, case.note), []).append(f"| {' | '.join(cells)} |")
    tables = []
    for (verb, unit, note), rows in groups.items():
        words = "; ".join(filter(None, (f"**{verb.capitalize()}**, {unit} per second", note)))
        tables += [f"{words}:", "", SUMMARY + "\n".join(rows), ""]
    return "\n".join(tables).rstrip()


def rate_text(side: Side) -> str:
    """Returns how a rate is printed; '/' where there is none."""
    return "/" if side.throughput is None else f"{side.throughput:,.0f}"


def origin(comparison: Comparison) -> str:
    """Returns when, where and at which commit a case was measured."""
    machine = ", ".join(comparison.gpus) or "a CPU"
    changed = ", with changes" if comparison.git.dirty else ""
    return f"Measured {comparison.measured_at[:10]} on {machine}, commit {short(comparison)}{changed}"


def short(comparison: Comparison) -> str:
    """Returns its commit as it is printed."""
    return (comparison.git.commit or "unknown")[:7]


def included(side: Side, verb: str) -> str:
    """Returns what a turn of a side includes and how it differs from what its authors run."""
    words = [f"- {side.side} ({verb}): a turn includes {side.includes}", *side.differs]
    words += ["ITS LOSS WAS NOT FINITE"] if side.final_loss == NOT_FINITE else []
    return "; ".join(words) + "."


def _range(quantity: Range | None) -> str:
    return f"{quantity.min:.0f} to {quantity.max:.0f}" if quantity else ""
