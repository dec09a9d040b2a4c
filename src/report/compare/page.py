"""A comparison as one HTML file: its answer first, then folded tables and inline SVG; no script and no network."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from src.report.compare import charts
from src.report.compare.answer import Answer, answer
from src.report.compare.drawn import Chart, answers, curves, measured, varied
from src.report.compare.hindrances import count, verdict
from src.report.compare.html import folded, listed, table, text
from src.report.compare.interactive import HELP, script
from src.report.compare.judged import class_table, quality_table
from src.report.compare.quantities import header, spread
from src.report.compare.readings import readings
from src.report.compare.structure import Comparison
from src.report.compare.style import STYLE
from src.report.compare.text import (
    INTERVALS,
    LEGEND,
    PRINTED,
    RULE,
    best_runs,
    change,
    changes,
    differing_values,
    filled,
    key_table,
    result,
    upright,
)
from src.report.digits import number
from src.report.rows import Row
from src.system.colours import CURVES
from src.system.reading import read_bytes

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
BLACK = "#000000"  # of a group; white in the dark
KEYED = "Curves"  # the section whose charts may leave out names of groups


def page(comparison: Comparison, interactive: bool = False) -> str:
    """Returns the comparison as one HTML file: see `pages`."""
    return pages([comparison], interactive)


def pages(comparisons: Sequence[Comparison], interactive: bool = False) -> str:
    """Returns comparisons as one HTML file, a section for each. Raises UserError without the charts' library.

    Args:
        interactive: whether charts get tooltips and zoom by a script in the file, which is 0.9 MB larger.
    """
    drawn: list[Chart] = []
    sections = [_section(comparison, drawn) for comparison in comparisons]
    if interactive:
        sections[0].insert(3, f'<p id="help" hidden>{HELP}</p>')
    bodies = ["\n".join(filter(None, parts)) for parts in sections]
    body = (
        bodies[0]
        if len(bodies) == 1
        else _answers(comparisons) + "\n".join(f'<section id="part-{i}">{x}</section>' for i, x in enumerate(bodies))
    )
    policy = POLICY
    if interactive:
        content, allowed = script([chart.spec for chart in drawn])
        policy = f"{POLICY}; script-src {allowed}"
        body += f"\n<script>{content}</script>"
    title = text("; ".join(comparison.title for comparison in comparisons))
    head = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head>"
    )
    return f"{head}<body><main>{body}</main></body></html>\n"


def _answers(comparisons: Sequence[Comparison]) -> str:
    """Returns the answers of several comparisons, each with a link to its section."""
    lines = [
        f'<li><a href="#part-{i}">{text(comparison.title)}</a>: '
        f"<strong>{text(answer(comparison).sentence)}</strong></li>"
        for i, comparison in enumerate(comparisons)
    ]
    return f'<ul class="answers">{"".join(lines)}</ul>'


def _section(comparison: Comparison, drawn: list[Chart]) -> list[str]:
    """Returns the parts of a comparison, and appends its charts to those that the page has drawn."""
    title, answered, start = text(comparison.title), answer(comparison), len(drawn)
    first = answers(comparison, answered)
    folds = [*varied(comparison), *curves(comparison), *measured(comparison)]
    drawn += [*first, *folds]
    parts = [f"<h1>{title}</h1>", f'<p class="answer">{text(answered.sentence)}</p>', *_fair(comparison)]
    pictures = "".join(_figure(i, chart, "h2") for i, chart in enumerate(first, start))
    beside = f"<div>{_keys(comparison)}{_values(comparison, answered)}</div>"
    parts += [
        f'<div class="first"><div class="charts">{pictures}</div>{beside}</div>',
        _result(comparison),
        _failures(comparison),
        *_judged(comparison),
        *_charts(comparison, folds, start + len(first)),
        _figures(comparison),
        _pictures(comparison),
        readings(comparison),
        *_differences(comparison),
        _published(comparison),
        _runs(comparison),
    ]
    return parts


def _fair(comparison: Comparison) -> list[str]:
    """Returns the line that says whether the groups are comparable, and the notes on it, folded."""
    line = verdict(comparison)
    kind = "hindered" if comparison.hindrances else "fair"
    notes = listed(comparison.warnings)
    if not notes:
        return [f'<p class="verdict {kind}">{text(line)}</p>' if line else ""]
    noted = count(len(comparison.warnings), "note")
    summary = f"<summary>{text(line)} <span>{noted}</span></summary>"
    return [f'<details class="verdict {kind}">{summary}{notes}</details>']


def _keys(comparison: Comparison) -> str:
    """Returns the keys that the groups differ in, with their values."""
    pairs = differing_values(comparison)
    pairs += [(difference.key, ", ".join(dict.fromkeys(difference.values))) for difference in comparison.environment]
    terms = "".join(f"<div><dt>{text(key)}</dt><dd>{text(values)}</dd></div>" for key, values in pairs)
    return f'<dl aria-label="What differs">{terms}</dl>' if terms else ""


def _values(comparison: Comparison, answered: Answer) -> str:
    """Returns the means that the ratios of two groups are of; '' for another number of groups."""
    if not answered.ratios:
        return ""
    quantities = [comparison.quantity(ratio.quantity) for ratio in answered.ratios]
    groups = [comparison.groups[i] for i in (answered.ratios[0].group, answered.ratios[0].base)]
    lines = [
        [header(quantity), *(spread(group.estimates[quantity.name], quantity) for group in groups)]
        for quantity in quantities
    ]
    counts = ["runs", *(str(group.done) for group in groups)]
    has_spread = max(group.done for group in groups) > 1
    head = ["mean ± sd" if has_spread else "figure", *(group.name for group in groups)]
    return table([head, counts, *lines], 1, "The figures that the ratios are of.", has_cards=False)


def _result(comparison: Comparison) -> str:
    lines, texts = result(comparison)
    parts = [table(lines, texts, LEGEND)]
    if len(comparison.groups) > 1:
        parts.append(table(*changes(comparison), INTERVALS))
    if runs := best_runs(comparison):
        parts.append(f"<p>Best by the mean: <code>{text(runs)}</code></p>")
    return folded("Result", "".join(parts), f"{count(len(lines) - 1, 'group')}, {len(lines[0]) - 2} figures")


def _judged(comparison: Comparison) -> list[str]:
    """Returns the tables of predictions' quality and of each class, folded; nothing where the records hold none."""
    classes, quality = class_table(comparison), quality_table(comparison)
    parts = []
    if quality:
        parts.append(folded("Quality of predictions", table(quality, 1, LEGEND), f"{len(quality) - 1} figures"))
    if classes:
        caption = f"{LEGEND} F1: harmonic mean of recall and precision."
        parts.append(
            folded("Classes", table(upright(classes), 1, caption), f"{len(classes) - 2} with recall, precision, F1")
        )
    return parts


def _failures(comparison: Comparison) -> str:
    if not comparison.failures:
        return ""
    lines = [[failure.varied, failure.status, failure.reason, failure.source] for failure in comparison.failures]
    rows = table([["of", "state", "reason", "run"], *lines], 4, "Runs that did not end normally; no figure has them.")
    return folded("Not done", rows, count(len(lines), "run"))


def _published(comparison: Comparison) -> str:
    more = ", ".join(f"<code>report.py published {text(model)}</code>" for model in comparison.models)
    if not comparison.published:
        return ""
    shown = [
        ("source", lambda row: row.source), ("hardware", lambda row: row.config),
        ("precision", lambda row: row.precision), ("batch", lambda row: row.batch),
        (f"speed, {comparison.unit}/s", lambda row: _printed(row, "p_steady", "throughput", "p_core", "p_train")),
        ("final metric", lambda row: " ".join(filter(None, [row.metric, _printed(row, "final_metric")]))
         if row.metric else "/"),
        ("memory, GiB", lambda row: _printed(row, "mem_used_gib")),
    ]  # fmt: skip
    lines = [[name for name, _ in shown], *([shows(row) for _, shows in shown] for row in comparison.published)]
    caption = f"{RULE} As printed, a correction in parentheses; '/' is not reported."
    rows = f"{table(filled(lines), 4, caption)}<p>All rows: {more}.</p>{_sources(comparison)}"
    return folded("Published rows", rows, f"{len(lines) - 1}")


def _printed(row: Row, *names: str) -> str:
    """Returns the first of some figures of a published row as printed, with its correction."""
    for name in names:
        if (value := row.figures.get(name)) is not None:
            fixed = row.corrected.get(name)
            return f"{value:,.12g}" + (f" ({number(float(fixed.value))})" if fixed else "")
    return "/"


def _sources(comparison: Comparison) -> str:
    """Returns links to the publications; only to https, whatever the data says."""
    urls = dict.fromkeys((row.url, row.source) for row in comparison.published if row.url.startswith("https://"))
    by_url: dict[str, list[str]] = {}
    for url, source in urls:
        by_url.setdefault(url, []).append(source)
    lines = [
        f'<li><a href="{text(url)}" rel="noreferrer">{text(url)}</a>: {text("; ".join(sources))}</li>'
        for url, sources in by_url.items()
    ]
    return f"<h3>Sources</h3><ul>{''.join(lines)}</ul>" if lines else ""


def _pictures(comparison: Comparison) -> str:
    """Returns the models' own pictures, embedded."""
    drawn = []
    for picture in comparison.pictures:
        data = b64encode(read_bytes(Path(picture.file))).decode()
        group = comparison.groups[picture.group]
        alt = text(f"{picture.name} of {group.name}, drawn by the run: {picture.file}")
        title = text(f"{picture.name}, {group.name}")
        drawn.append(f'<figure><h3>{title}</h3><img alt="{alt}" src="data:image/png;base64,{data}"></figure>')
    files = ", ".join(comparison.left_out)
    left_out = f"<p>Pictures left out, for size or number: {text(files)}</p>" if files else ""
    shown = f'<div class="charts">{"".join(drawn)}</div>' if drawn else ""
    return folded("The models' own pictures", shown + left_out, f"{len(drawn)} of their results")


def _key(comparison: Comparison) -> str:
    """Returns the key of charts: colour, point, line and name of each group."""
    lines = []
    for i, label in enumerate(charts.names(comparison)):
        colour, glyph, dash = charts.look(i)
        style = f"color:{'var(--ink)' if colour == BLACK else colour};border-bottom-style:{dash}"
        lines.append(f'<li><span aria-hidden="true" style="{style}">{glyph}</span>{text(label)}</li>')
    return f'<ul class="key">{"".join(lines)}</ul>'


def _charts(comparison: Comparison, drawn: Sequence[Chart], start: int) -> list[str]:
    """Returns the folded sections of charts, whose numbers begin at `start`."""
    parts = []
    for section, group in groupby(enumerate(drawn, start), lambda pair: pair[1].section):
        members = list(group)
        images = [_figure(i, chart) for i, chart in members]
        pairs = ["".join(images[i : i + 2]) for i in range(0, len(images), 2)]
        figures = "".join(f'<div class="row">{pair}</div>' for pair in pairs)  # that print keeps on one page
        key = _key(comparison) if section == KEYED and len(comparison.groups) > len(CURVES) else ""
        inside = ", ".join(dict.fromkeys(chart.inside or chart.title.partition(":")[0] for _, chart in members))
        parts.append(folded(section, f'{key}<div class="charts">{figures}</div>', inside))
    return parts


def _figure(index: int, chart: Chart, heading: str = "h3") -> str:
    wide = ' class="long"' if chart.is_wide else ""
    image = _svg(chart.spec, chart.title, chart.words)
    return f'<figure id="chart-{index}"{wide}><{heading}>{text(chart.title)}</{heading}>{image}</figure>'


def _svg(spec: Mapping[str, Any], title: str, description: str) -> str:
    """Returns the chart as one image with an alternative text, instead of a text for each of its marks."""
    start, _, rest = charts.svg(spec).partition(">")
    start = start.replace("<svg", f'<svg role="img" aria-label="{text(title)}"', 1)
    return f"{start}><title>{text(title)}</title><desc>{text(description)}</desc>{rest}"


def _figures(comparison: Comparison) -> str:
    """Returns the table of the quantities that the result table leaves out: step times, utilisation, energy."""
    quantities = [quantity for quantity in comparison.quantities if quantity.name not in PRINTED]
    if not quantities:
        return ""
    base = comparison.groups[0]
    lines = [["figure", *(group.name for group in comparison.groups)]]
    for quantity in quantities:
        line = [header(quantity)]
        for group in comparison.groups:
            estimate = group.estimates.get(quantity.name)
            moved = change(estimate, base.estimates.get(quantity.name))
            beside = "" if moved == "/" else f"\n{moved}" if "[" in moved else f" ({moved})"
            line.append("/" if estimate is None else spread(estimate, quantity) + beside)
        lines.append(line)
    rows = table(upright(lines), 1, f"{LEGEND} Below or in parentheses: difference from the first group.")
    return folded("Other figures", rows, ", ".join(quantity.title for quantity in quantities))


def _differences(comparison: Comparison) -> list[str]:
    parts = []
    for name, keys in (("Config", comparison.config), ("Environment", comparison.environment)):
        if keys:
            lines = key_table(comparison, keys)
            rows = table(lines, len(lines[0]), "Keys that the groups differ in.")
            parts.append(folded(f"{name}: what differs", rows, count(len(keys), "key")))
    return parts


def _runs(comparison: Comparison) -> str:
    runs = [
        f"<li>{text(group.name)}: {text(run.source)}"
        + (f"<br><code>{text(run.command)}</code></li>" if run.command else "</li>")
        for group in comparison.groups
        for run in group.runs
    ]
    return folded("Runs and their commands", f"<ol>{''.join(runs)}</ol>", count(len(runs), "run"))
