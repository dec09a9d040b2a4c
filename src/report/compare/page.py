"""A comparison as one HTML file: tables and inline SVG, without scripts and without a network."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from src.measure.reading import Reading, Remark
from src.report.compare import charts
from src.report.compare.drawn import Chart, measured, varied
from src.report.compare.interactive import HELP, script
from src.report.compare.structure import Comparison
from src.report.compare.text import (
    INTERVALS,
    LEGEND,
    PRINTED,
    best_line,
    best_runs,
    change,
    changes,
    header,
    key_table,
    result,
    spread,
    upright,
)
from src.report.table import Table, cells
from src.system.reading import read_bytes

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
MOST_CLASSES = 100  # of a reading that are counted
BLACK = "#000000"  # of a group; white in the dark
STYLE = """
:root{color-scheme:light dark;--ink:#222;--faint:#555;--line:#e6e6e6;--back:#fff;--note:#fff6e0}
@media(prefers-color-scheme:dark){:root{--ink:#eee;--faint:#aaa;--line:#3a3a3a;--back:#151515;--note:#33290f}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:70rem;padding:1rem;font:16px/1.5 system-ui,sans-serif;color:var(--ink);
background:var(--back);overflow-wrap:anywhere}
h1{font-size:1.5rem;line-height:1.25}h2{font-size:1.15rem;margin:2rem 0 .5rem}h3{font-size:1rem;margin:1rem 0 .25rem}
.best{font-weight:600}.notes{background:var(--note);padding:.6rem .8rem .6rem 2rem;border-radius:4px}
.wide{overflow-x:auto;max-width:100%}table{border-collapse:collapse;font-size:.875rem}
caption{text-align:left;color:var(--faint);padding:.25rem 0}
caption span{position:sticky;left:0;display:inline-block;max-width:min(68rem,calc(100vw - 2rem))}
th,td{padding:.3rem .7rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap;vertical-align:top}
.text{text-align:left}td.text{white-space:normal;min-width:6rem;max-width:28rem;overflow-wrap:break-word}
td.text:first-child{min-width:min(17rem,40vw)}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,30rem),1fr));gap:1rem}
figure{margin:0;max-width:44rem}figure svg,img{display:block;width:100%;height:auto}img{background:#fff}
figure .vega-embed,figure .vega-embed svg{display:block;width:auto}
figure.long{max-width:54rem;overflow-x:auto}figure.long svg{width:auto;min-width:36rem;max-width:54rem}
svg [fill="#222222"],svg [fill="#000000"]{fill:var(--ink)}
svg [stroke="#000000"],svg [stroke="#222222"]{stroke:var(--ink)}
svg [stroke="#e6e6e6"]{stroke:var(--line)}
.long text{paint-order:stroke;stroke:var(--back);stroke-width:3px}.key{list-style:none;padding:0;columns:22rem}
.key span{display:inline-block;width:2em;margin-right:.5em;line-height:1;
text-align:center;border-bottom:3px solid;print-color-adjust:exact}
summary{cursor:pointer}details td.text{white-space:pre-line}
a{color:inherit}code{font-size:.8rem;overflow-wrap:anywhere}
@media print{@page{size:landscape;margin:12mm}:root{color-scheme:light;--ink:#222;--faint:#555;--line:#e6e6e6;
--back:#fff;--note:#fff6e0}body{max-width:none;padding:0;font-size:12px}figure,tr,li{break-inside:avoid}
h2,h3,caption{break-after:avoid}.charts{grid-template-columns:repeat(3,1fr)}.wide,figure.long{overflow:visible}
figure .vega-embed svg{max-width:100%;height:auto}#help{display:none}
details::details-content{content-visibility:visible;block-size:auto}h2{font-size:1rem}h3{font-size:.8rem}
table{font-size:.6rem}th,td{padding:.15rem .3rem}
th,td.text,td.text:first-child{white-space:normal;min-width:0}}
"""


def page(comparison: Comparison, interactive: bool = False) -> str:
    """Returns the comparison as one HTML file. Raises UserError where the charts' library is not installed.

    Args:
        interactive: whether charts get tooltips and zoom by a script in the file, which is 0.9 MB larger.
    """
    title, best = _text(comparison.title), best_line(comparison)
    above, below = varied(comparison), measured(comparison)
    parts = [f"<h1>{title}</h1>", f'<p class="best">{_text(best)}</p>' if best else ""]
    parts.append(f"<p><code>{_text(runs)}</code></p>" if (runs := best_runs(comparison)) else "")
    if comparison.warnings:
        parts.append(f'<ul class="notes">{"".join(f"<li>{_text(text)}</li>" for text in comparison.warnings)}</ul>')
    parts += [
        _result(comparison),
        _failures(comparison),
        _readings(comparison),
        _charts(above, 0),
        _published(comparison),
    ]
    parts += [_key(comparison) if below and len(comparison.groups) > 1 else "", _charts(below, len(above))]
    parts += [_pictures(comparison), _figures(comparison), *_ends(comparison)]
    policy = POLICY
    if interactive:
        whole = dict(zip(charts.names(comparison), (group.name for group in comparison.groups), strict=True))
        text, allowed = script([chart.spec for chart in (*above, *below)], whole)
        policy = f"{POLICY}; script-src {allowed}"
        parts.append(f"<script>{text}</script>")
        parts.insert(1, f'<p id="help" hidden>{HELP}</p>')
    head = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head>"
    )
    body = "\n".join(filter(None, parts))
    return f"{head}<body><main>{body}</main></body></html>\n"


def _result(comparison: Comparison) -> str:
    lines, texts = result(comparison)
    parts = ["<h2>Result</h2>", _table(lines, texts, LEGEND)]
    if len(comparison.groups) > 1:
        parts.append(_table(*changes(comparison), INTERVALS))
    return "".join(parts)


def _failures(comparison: Comparison) -> str:
    if not comparison.failures:
        return ""
    lines = [[failure.varied, failure.status, failure.reason, failure.source] for failure in comparison.failures]
    table = _table([["of", "state", "reason", "run"], *lines], 4, "Runs that did not end normally; no figure has them.")
    return f"<h2>Not done</h2>{table}"


def _readings(comparison: Comparison) -> str:
    """Returns what became of a person's own data, folded; runs that read the same share a section."""
    readers: dict[str, tuple[Reading, list[str]]] = {}
    for group in comparison.groups:
        for run in group.runs:
            if run.reading is not None:
                readers.setdefault(repr(run.reading), (run.reading, []))[1].append(run.source)
    folded = "".join(_reading(reading, sources) for reading, sources in readers.values())
    return f"<h2>Data that was read</h2>{folded}" if folded else ""


def _reading(reading: Reading, sources: Sequence[str]) -> str:
    """Returns the parts of `Reading.lines` with all examples; counts of splits and classes are tables."""
    kept = [("read", reading.read), ("kept as written", reading.as_written), ("kept changed", reading.changed_items)]
    counts = [*kept, ("dropped", reading.dropped_items)]
    whole = f"What became of the {reading.unit}"
    parts = [_table([[name for name, _ in counts], [f"{number:,}" for _, number in counts]], 0, whole)]
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
        parts.append(_table([*lines, *per_class], 1, "; ".join(["Splits", *filter(None, notes)])))
    parts.append(_listed(reading.notes))
    summary = f"{reading.source}: {reading.read:,} {reading.unit} read, {reading.as_written:,} kept as written"
    runs = f"<p>Runs: {_text(', '.join(sources))}</p>"
    return f"<details><summary>{_text(summary)}</summary>{runs}{''.join(parts)}</details>"


def _remarks(title: str, remarks: Sequence[Remark]) -> str:
    if not remarks:
        return ""
    lines = [[remark.what, "\n".join(remark.examples), f"{remark.count:,}"] for remark in remarks]
    return _table([["what" if title != "Dropped" else "why", "examples", "count"], *lines], 2, title)


def _listed(texts: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{_text(text)}</li>' for text in texts)}</ul>" if texts else ""


def _count(number: int | None) -> str:
    return "/" if number is None else f"{number:,}"


def _published(comparison: Comparison) -> str:
    if not comparison.published:
        return ""
    lines, notes = cells(Table(comparison.models[0], comparison.kind, comparison.unit, comparison.published))
    caption = "Published rows as printed, a correction in parentheses with its reason below; '/' is not reported."
    listed = "".join(f"<li>{_text(note.replace('`', ''))}</li>" for note in notes)
    counts = [sum(line[i] != "/" for line in lines[1:]) for i in range(len(lines[0]) - 1)]
    # what most rows report is in view without scrolling
    kept = [0, 1, 2, *sorted((i for i in range(3, len(counts)) if counts[i]), key=lambda i: -counts[i])]
    lines = [[line[-1], *(line[i] for i in kept)] for line in lines]  # the source first, in view on a phone
    return "".join(
        [
            "<h2>Published rows</h2>",
            _table(lines, 4, caption),
            f"<ul>{listed}</ul>" if listed else "",
            _sources(comparison),
        ]
    )


def _sources(comparison: Comparison) -> str:
    """Returns links to the publications; only to https, whatever the data says."""
    urls = dict.fromkeys((row.url, row.source) for row in comparison.published if row.url.startswith("https://"))
    by_url: dict[str, list[str]] = {}
    for url, source in urls:
        by_url.setdefault(url, []).append(source)
    lines = [
        f'<li><a href="{_text(url)}" rel="noreferrer">{_text(url)}</a>: {_text("; ".join(sources))}</li>'
        for url, sources in by_url.items()
    ]
    return f"<h3>Sources</h3><ul>{''.join(lines)}</ul>" if lines else ""


def _pictures(comparison: Comparison) -> str:
    """Returns the models' own pictures, embedded, each with its group and run."""
    drawn = []
    for picture in comparison.pictures:
        group = comparison.groups[picture.group]
        try:
            data = b64encode(read_bytes(Path(picture.file))).decode()
        except OSError:
            continue  # removed since the comparison was built
        alt = _text(f"{picture.name} of {group.name}, drawn by the run: {picture.file}")
        title = _text(f"{picture.name}, {group.name}")
        drawn.append(f'<figure><h3>{title}</h3><img alt="{alt}" src="data:image/png;base64,{data}"></figure>')
    files = ", ".join(comparison.left_out)
    left_out = f"<p>Pictures left out, for size or number: {_text(files)}</p>" if files else ""
    shown = f'<div class="charts">{"".join(drawn)}</div>' if drawn else ""
    return f"<h2>The models' own pictures</h2>{shown}{left_out}" if drawn or left_out else ""


def _key(comparison: Comparison) -> str:
    """Returns the key of all charts: colour, point, line and whole name of each group."""
    lines = []
    for i, (label, group) in enumerate(zip(charts.names(comparison), comparison.groups, strict=True)):
        colour, glyph, dash = charts.look(i)
        style = f"color:{'var(--ink)' if colour == BLACK else colour};border-bottom-style:{dash}"
        lines.append(f'<li><span aria-hidden="true" style="{style}">{glyph}</span>{label}: {_text(group.name)}</li>')
    return f'<h2>Groups in the charts</h2><ul class="key">{"".join(lines)}</ul>'


def _charts(drawn: Sequence[Chart], first: int) -> str:
    """Returns the sections of charts, whose numbers begin at `first`."""
    parts = []
    for section, group in groupby(enumerate(drawn, first), lambda pair: pair[1].section):
        members = list(group)
        narrow = "".join(_figure(i, chart) for i, chart in members if not chart.is_wide)
        wide = "".join(_figure(i, chart) for i, chart in members if chart.is_wide)
        parts.append(f'<h2>{_text(section)}</h2><div class="charts">{narrow}</div>{wide}')
    return "".join(parts)


def _figure(number: int, chart: Chart) -> str:
    wide = ' class="long" tabindex="0"' if chart.is_wide else ""
    image = _svg(chart.spec, chart.title, chart.words)
    return f'<figure id="chart-{number}"{wide}><h3>{_text(chart.title)}</h3>{image}</figure>'


def _svg(spec: Mapping[str, Any], title: str, description: str) -> str:
    """Returns the chart as one image with an alternative text, instead of a text for each of its marks."""
    start, _, rest = charts.svg(spec).partition(">")
    start = start.replace("<svg", f'<svg role="img" aria-label="{_text(title)}"', 1)
    return f"{start}><title>{_text(title)}</title><desc>{_text(description)}</desc>{rest}"


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
            line.append(
                "/" if estimate is None else spread(estimate, quantity) + (f" ({moved})" if moved != "/" else "")
            )
        lines.append(line)
    table = _table(upright(lines), 1, f"{LEGEND} In parentheses: difference from the first group.")
    return f"<h2>Other figures</h2>{table}"


def _ends(comparison: Comparison) -> list[str]:
    parts = []
    for name, keys in (("Config", comparison.config), ("Environment", comparison.environment)):
        if keys:
            lines = key_table(comparison, keys)
            table = _table(lines, len(lines[0]), "Keys that the groups differ in.")
            parts.append(f"<h2>{name}: what differs</h2>{table}")
    runs = [
        f"<li>{_text(group.name)}: {_text(run.source)}"
        + (f"<br><code>{_text(run.command)}</code></li>" if run.command else "</li>")
        for group in comparison.groups
        for run in group.runs
    ]
    return [*parts, f"<h2>Runs and their commands</h2><ol>{''.join(runs)}</ol>"]


def _table(lines: Sequence[Sequence[str]], texts: int, caption: str) -> str:
    """Returns a table in a box that scrolls; the first of `lines` are headers, the first `texts` columns text."""
    kinds = [' class="text"' if i < texts else "" for i in range(len(lines[0]))]
    head = "".join(f'<th scope="col"{kind}>{_text(cell)}</th>' for kind, cell in zip(kinds, lines[0], strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{_text(cell)}</td>" for kind, cell in zip(kinds, line, strict=True)) + "</tr>"
        for line in lines[1:]
    )
    return (
        f'<div class="wide" tabindex="0"><table><caption><span>{_text(caption)}</span></caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _text(text: str) -> str:
    return escape(charts.plain(text))
