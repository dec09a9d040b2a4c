"""A comparison as Markdown, csv, JSON and LaTeX."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from src.report.compare.answer import answer
from src.report.compare.axes import short
from src.report.compare.hindrances import verdict
from src.report.compare.quantities import header, spread
from src.report.compare.structure import Comparison, Difference, Estimate, Group, Quantity
from src.report.compare.varied import as_number
from src.report.digits import short_value
from src.report.table import Table, aligned, section
from src.system.tables import csv_text

KEYS, VALUES = 6, 8  # that a line of differing keys names
# The columns of a printed table; csv, JSON and the page have all quantities.
PRINTED = (
    *("metric", "seconds_to_target", "samples_to_target", "p_steady", "p_train", "throughput", "with_loading"),
    *("latency_p50", "latency_p99", "e2e_time_s", "first_step_s", "mem", "of_peak_flops"),
)
COMPARED = (
    *("metric", "seconds_to_target", "p_steady", "p_train", "throughput", "latency_p50", "e2e_time_s"),
    *("first_step_s", "mem"),
)
LEGEND = "Mean ± standard deviation over the n runs that ended normally; '/' was not measured."
RULE = (
    "Of the same model, number of devices, batch and precision, three at most: the fastest of each precision and "
    "batch, then the next fastest."
)
INTERVALS = (
    "Difference of the means in percent of the first group's mean, with Welch's 95% interval in brackets where both "
    "groups have several runs."
)


def markdown(comparison: Comparison) -> str:
    """Returns the comparison as Markdown: the answer, whether it is fair, what differs, notes, then the sections."""
    runs = best_runs(comparison)
    parts = [f"# {comparison.title}", opening(comparison), *([f"Best by the mean: {runs}"] if runs else [])]
    parts += ["\n".join(f"- **Note:** {text}" for text in comparison.warnings)] if comparison.warnings else []
    return "\n\n".join([*parts, *(f"## {title}\n\n{text}" for title, text in sections(comparison))]) + "\n"


def opening(comparison: Comparison) -> str:
    """Returns the Markdown that a comparison begins with: its answer, whether it is fair, the keys that differ."""
    return "\n\n".join(filter(None, [f"**{answer(comparison).sentence}**", verdict(comparison), keys_line(comparison)]))


def sections(comparison: Comparison) -> list[tuple[str, str]]:
    """Returns title and Markdown of each section: result, differences, published rows, failures, keys, runs."""
    parts = [("Result", f"{_markdown_table(*result(comparison))}\n\n{LEGEND}")]
    if len(comparison.groups) > 1:
        parts.append(("Difference from the first group", f"{_markdown_table(*changes(comparison))}\n\n{INTERVALS}"))
    if comparison.published:
        rows = Table(comparison.models[0], comparison.kind, comparison.unit, comparison.published)
        parts.append(("Published rows", f"{RULE} {more_rows(comparison)}\n\n{section(rows).rstrip()}"))
    if comparison.failures:
        lines = [[failure.source, failure.varied, failure.status, failure.reason] for failure in comparison.failures]
        parts.append(("Not done", _markdown_table([["run", "of", "state", "reason"], *lines], 4)))
    for title, keys in (("Config", comparison.config), ("Environment", comparison.environment)):
        if keys:
            lines = key_table(comparison, keys)
            parts.append((f"{title}: what differs", _markdown_table(lines, len(lines[0]))))
    sources = [f"- {group.name}: {', '.join(run.source for run in group.runs)}" for group in comparison.groups]
    return [*parts, ("Runs", "\n".join(sources))]


def as_csv(comparison: Comparison) -> str:
    """Returns a line for each quantity of each group, in the units of its column `unit`."""
    varied = [difference.key for difference in comparison.config]
    head = ("n", "mean", "sd", "difference", "low", "high", "ratio")
    lines: list[list[Any]] = [["group", *varied, "quantity", "unit", *head]]
    for group in comparison.groups:
        for quantity in comparison.quantities:
            if quantity.name in group.estimates:
                estimate = group.estimates[quantity.name]
                scaled = [estimate.mean, estimate.sd, estimate.difference, estimate.low, estimate.high]
                values = [estimate.n, *(None if v is None else v * quantity.factor for v in scaled), estimate.ratio]
                title = quantity.title if quantity.name == "metric" else quantity.name
                keys = [group.varied[key] for key in varied]
                lines.append([group.name, *keys, title, quantity.unit, *values])
    return csv_text(lines)


def as_json(comparison: Comparison) -> str:
    """Returns the whole comparison as JSON, values in the records' units."""
    plain = {"answer": asdict(answer(comparison)), "verdict": verdict(comparison)} | comparison.to_dict()
    return json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def latex(comparison: Comparison) -> str:
    """Returns the result as a LaTeX table (package booktabs), with the warnings as comments above it."""
    lines, texts = result(comparison)
    body = [" & ".join(map(_latex, line)) + r" \\" for line in lines]
    notes = [f"% {' '.join(text.split())}" for text in comparison.warnings]
    caption = _latex(f"{comparison.title}. {LEGEND}")
    columns = "l" * texts + "r" * (len(lines[0]) - texts)
    return "\n".join([
        *notes, r"\begin{table}", rf"\caption{{{caption}}}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule",
        body[0], r"\midrule", *body[1:], r"\bottomrule", r"\end{tabular}", r"\end{table}", "",
    ])  # fmt: skip


VIEWS: Mapping[str, Callable[[Comparison], str]] = {
    "markdown": markdown, "csv": as_csv, "json": as_json, "latex": latex,
}  # fmt: skip


def best_runs(comparison: Comparison) -> str:
    """Returns the overrides of the best group and its runs; '' where no key is varied."""
    if comparison.best is None or not comparison.axes:
        return ""
    overrides = " ".join(f"{axis.key}={axis.labels[comparison.best]}" for axis in comparison.axes)
    return f"{overrides}: {', '.join(run.source for run in comparison.groups[comparison.best].runs)}"


def keys_line(comparison: Comparison) -> str:
    """Returns the keys that the groups differ in with their values; '' without any."""
    return "; ".join(f"{key}: {values}" for key, values in differing_values(comparison))


def differing_values(comparison: Comparison) -> list[tuple[str, str]]:
    """Returns the keys of the config that the groups differ in, and their distinct values, a few of many."""
    lines = []
    for difference in comparison.config[:KEYS]:
        values = list(dict.fromkeys(map(short_value, difference.values)))
        numbers = [number for value in difference.values if (number := as_number(value)) is not None]
        if len(numbers) == len(difference.values):
            values.sort(key=float)
        if len(values) > VALUES and len(numbers) == len(difference.values):
            lines.append((difference.key, f"{len(values)} values from {short(min(numbers))} to {short(max(numbers))}"))
            continue
        more = f" and {len(values) - VALUES} more" if len(values) > VALUES else ""
        lines.append((difference.key, ", ".join(values[:VALUES]) + more))
    if len(comparison.config) > KEYS:
        lines.append(("more keys", str(len(comparison.config) - KEYS)))
    return lines


def more_rows(comparison: Comparison) -> str:
    """Returns how to see the other published rows."""
    return "All rows: " + ", ".join(f"`report.py published {model}`" for model in comparison.models) + "."


def result(comparison: Comparison) -> tuple[list[list[str]], int]:
    """Returns the lines of the result table, headers first, and how many columns of text it begins with."""
    printed = [quantity for quantity in comparison.quantities if quantity.name in PRINTED]
    lines = [["group", "n", *map(header, printed)]]
    for group in comparison.groups:
        failed = len(group.runs) - group.done
        count = f"{group.done}" + (f" ({failed} not done)" if failed else "")
        lines.append([group.name, count, *(_cell(group, quantity) for quantity in printed)])
    return lines, 1


def changes(comparison: Comparison) -> tuple[list[list[str]], int]:
    """Returns the lines of the table of differences from the first group, headers first, and its columns of text."""
    compared = [quantity for quantity in comparison.quantities if quantity.name in COMPARED]
    base = comparison.groups[0]
    lines = [["group", *(quantity.title for quantity in compared)]]
    for group in comparison.groups[1:]:
        lines.append(
            [
                group.name,
                *(
                    change(group.estimates.get(quantity.name), base.estimates.get(quantity.name))
                    for quantity in compared
                ),
            ]
        )
    return filled(lines), 1


def filled(lines: Sequence[Sequence[str]]) -> list[list[str]]:
    """Returns a table, headers first, without the columns that are '/' in every line."""
    kept = [i for i in range(len(lines[0])) if any(line[i] != "/" for line in lines[1:])]
    return [[line[i] for i in kept] for line in lines]


def change(estimate: Estimate | None, base: Estimate | None) -> str:
    """Returns the difference in percent of the baseline's mean, with its interval: '+12.1% [10.9, 13.3]'."""
    if estimate is None or base is None or estimate.difference is None or not base.mean:
        return "/"
    part = 100 / abs(base.mean)
    text = f"{estimate.difference * part:+.1f}%"
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{estimate.low * part:+.1f}, {estimate.high * part:+.1f}]"


def key_table(comparison: Comparison, keys: Sequence[Difference]) -> list[list[str]]:
    """Returns a table of each key's value in each group, headers first."""
    return upright([["key", *(group.name for group in comparison.groups)], *([key.key, *key.values] for key in keys)])


def upright(lines: list[list[str]]) -> list[list[str]]:
    """Returns a table with a column for each group, the same with a line for each where there are more groups."""
    groups, others = len(lines[0]) - 1, len(lines) - 1
    if groups <= max(others, 3):
        return lines
    return [["group", *(line[0] for line in lines[1:])], *map(list, list(zip(*lines, strict=True))[1:])]


def _cell(group: Group, quantity: Quantity) -> str:
    estimate = group.estimates.get(quantity.name)
    if estimate is None:
        return "/"
    few = f" (n = {estimate.n})" if estimate.n < group.done else ""
    return spread(estimate, quantity) + few


def _markdown_table(lines: Sequence[Sequence[str]], texts: int) -> str:
    """Returns aligned Markdown; the first `texts` columns are text, the others numbers."""
    return "\n".join(aligned(lines, [i < texts for i in range(len(lines[0]))]))


def _latex(text: str) -> str:
    names = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
    return "".join(names.get(letter, f"\\{letter}" if letter in "&%$#_{}" else letter) for letter in text)
