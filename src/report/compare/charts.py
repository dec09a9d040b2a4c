"""The charts of a comparison's page: Vega-Lite specs as plain dicts, and the SVG made from them."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from src.errors import UserError
from src.measure.phases import PHASES
from src.report.axes import unit_of, wants_log
from src.report.compare.structure import Comparison, Curve
from src.report.compare.text import header
from src.report.phases import TITLES
from src.system.colours import CURVES
from src.system.colours import PHASES as PHASE_COLOURS

VL_VERSION = "5.20"
INK, GRID = "#222222", "#e6e6e6"  # the page's style replaces them in the dark
NOT_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")
GLYPHS = ("●", "■", "▲")  # those of the first SHAPES, for the key
DASHES = {"solid": [1, 0], "dashed": [6, 3], "dotted": [2, 2]}  # CSS's names for them
SPOKEN = re.compile(r' (?:aria-[a-z]+|role|class|pointer-events)="[^"]*"')  # of a mark, for readers of the screen
PLACES = re.compile(r' (?:d|transform|x2?|y2?)="[^"]*"')
LONG = re.compile(r"(\d\.\d\d)\d+")
CONFIG = {
    "background": "transparent",
    "view": {"stroke": None},
    "axis": {"gridColor": GRID, "domainColor": GRID, "tickColor": GRID, "labelColor": INK, "titleColor": INK,
             "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "titlePadding": 12, "tickCount": 5},
    "legend": {"orient": "top", "direction": "vertical", "title": None, "titleColor": INK, "labelColor": INK,
               "labelFontSize": 12,
               "labelLimit": 480, "symbolBaseFillColor": INK, "symbolBaseStrokeColor": INK},
}  # fmt: skip


def plain(text: str) -> str:
    """Returns a text without control characters, changes of direction and lone surrogates."""
    return NOT_TEXT.sub("\ufffd", text)


def complete(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the spec with its schema, the usual width and the page's look."""
    return {"$schema": "https://vega.github.io/schema/vega-lite/v5.json", "width": 420, "config": CONFIG, **spec}


def svg(spec: Mapping[str, Any]) -> str:
    """Returns the SVG of a spec. Raises UserError without vl-convert-python."""
    try:
        import vl_convert
    except ImportError:
        raise UserError("the HTML page needs vl-convert-python: pip install 'reprise[reports]'") from None
    drawn = vl_convert.vegalite_to_svg(complete(spec), vl_version=VL_VERSION, allowed_base_urls=[])
    # The page gives the whole image one text; positions to a hundredth of a pixel are enough.
    return PLACES.sub(lambda place: LONG.sub(r"\1", place[0]), SPOKEN.sub("", drawn))


def names(comparison: Comparison) -> list[str]:
    """Returns what charts call each group: short, since the page has a key with the whole names."""
    return [f"group {i}" for i in range(1, len(comparison.groups) + 1)]


def look(group: int) -> tuple[str, str, str]:
    """Returns a group's colour, glyph and dash by its position: 21 groups are told apart without their numbers."""
    turn = group // len(CURVES) % len(GLYPHS)
    return CURVES[group % len(CURVES)], GLYPHS[turn], list(DASHES)[turn]


def runs_spec(comparison: Comparison, over: Sequence[str], name: str) -> dict[str, Any] | None:
    """Returns a quantity over the first that there is of some others, a point for each run; None without points."""
    quantities = {quantity.name: quantity for quantity in comparison.quantities}
    rate, metric = next((quantities[other] for other in over if other in quantities), None), quantities.get(name)
    if metric is None or rate is None:
        return None
    values = [
        {"x": x * rate.factor, "y": y * metric.factor, "group": label, "number": label.split()[-1]}
        for group, label in zip(comparison.groups, names(comparison), strict=True)
        for run in group.runs
        if run.status == "done"
        and (x := run.figures.get(rate.name)) is not None
        and (y := run.figures.get(metric.name)) is not None
    ]
    if not values:
        return None
    axes = {"x": number_axis("x", header(rate)), "y": number_axis("y", plain(header(metric)))}
    mark = {"type": "point", "filled": True, "size": 70, "opacity": 1}
    points = {"mark": mark, "encoding": {**axes, **_look(comparison, "shape")}}
    return {"height": 260, "data": {"values": values}, "layer": [points, *_numbers(comparison, values, axes)]}


def phases_spec(comparison: Comparison) -> dict[str, Any] | None:
    """Returns a bar of the mean seconds of each phase for each group; None where no phase was measured."""
    values = [
        {"group": name, "phase": TITLES[phase], "seconds": seconds, "order": PHASES.index(phase)}
        for group, name in zip(comparison.groups, names(comparison), strict=True)
        for phase, seconds in group.phases.items()
        if seconds > 0
    ]
    if not values:
        return None
    phases = [phase for phase in PHASES if any(TITLES[phase] == bar["phase"] for bar in values)]
    legend = {"columns": 2, "columnPadding": 28}
    scale = {"domain": [TITLES[phase] for phase in phases], "range": [PHASE_COLOURS[phase] for phase in phases]}
    return {
        "height": {"step": 30}, "data": {"values": values}, "mark": "bar",
        "encoding": {
            "y": {"field": "group", "type": "nominal", "sort": None, "title": None, "axis": {"labelLimit": 200}},
            "x": {"field": "seconds", "type": "quantitative", "title": "mean seconds of a run"},
            "color": {"field": "phase", "type": "nominal", "scale": scale, "legend": legend},
            "order": {"field": "order", "type": "quantitative"},
        },
    }  # fmt: skip


def times_spec(comparison: Comparison) -> dict[str, Any] | None:
    """Returns the percentiles of a step's time, or of a batch's latency, in ms: a line for each group; None without."""
    values = [
        {"group": name, "percentile": percentile, "ms": 1e3 * seconds}
        for group, name in zip(comparison.groups, names(comparison), strict=True)
        for percentile, seconds in group.percentiles.items()
    ]
    if not values:
        return None
    percentiles = list(dict.fromkeys(point["percentile"] for point in values))
    scale = {"domain": percentiles, "range": list(SHAPES[: len(percentiles)])}
    y = {"field": "group", "type": "nominal", "sort": None, "title": None, "axis": {"labelLimit": 200}}
    x = number_axis("ms", "ms of a step" if comparison.kind == "train" else "ms of a batch")
    ends = {"x": {**x, "aggregate": "min"}, "x2": {"field": "ms", "aggregate": "max"}}
    shape = {"field": "percentile", "type": "nominal", "scale": scale, "legend": {"direction": "horizontal"}}
    return {
        "height": {"step": 30}, "data": {"values": values},
        "layer": [
            {"mark": {"type": "rule", "strokeWidth": 2}, "encoding": {"y": y, **ends, "color": _colour(comparison)}},
            {"mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
             "encoding": {"y": y, "x": x, "shape": shape, "color": _colour(comparison)}},
        ],
    }  # fmt: skip


def curve_spec(comparison: Comparison, metric: str, over: str) -> dict[str, Any] | None:
    """Returns the curves of a metric, a line for each run, over 'samples' or 'seconds'; None without lines."""
    curves = [curve for curve in comparison.curves if curve.metric == metric]
    labels = names(comparison)
    values = [
        {"x": x, "y": y, "group": labels[curve.group], "run": i}
        for i, curve in enumerate(curves)
        for x, y in zip(_places(curve, over), curve.values, strict=True)
        if x is not None
    ]
    if len(values) <= len({point["run"] for point in values}):
        return None
    title = f"{comparison.unit} trained on" if over == "samples" else "seconds since the first step"
    unit = unit_of(metric, comparison.unit)
    y = number_axis("y", plain(f"{metric}, {unit}" if unit else metric))
    if wants_log([point["y"] for point in values]):
        y["scale"] = {"type": "log", "nice": False, "padding": 8}
    axes = {"x": number_axis("x", plain(title)), "y": y}
    lines = {
        "mark": {"type": "line", "strokeWidth": 1.3, "point": len(curves) == 1},
        "encoding": {**axes, **_look(comparison, "strokeDash"), "detail": {"field": "run", "type": "nominal"}},
    }
    ends = {point["run"]: {**point, "number": point["group"].split()[-1]} for point in values}
    return {
        "height": 220,
        "data": {"values": values},
        "layer": [lines, *_numbers(comparison, list(ends.values()), axes)],
    }


def _places(curve: Curve, over: str) -> Sequence[float | None]:
    return curve.samples if over == "samples" else curve.seconds


def number_axis(field: str, title: str) -> dict[str, Any]:
    """Returns the encoding of a number on an axis that need not begin at zero."""
    return {"field": field, "type": "quantitative", "title": title, "scale": {"zero": False, "padding": 8}}


def _numbers(
    comparison: Comparison, values: Sequence[Mapping[str, Any]], axes: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Returns the groups' numbers beside these points, where colours alone do not tell the groups apart."""
    if len(comparison.groups) <= len(CURVES):
        return []
    mark = {"type": "text", "align": "left", "dx": 6, "fontSize": 10, "color": INK}
    encoding = {**axes, "text": {"field": "number", "type": "nominal"}}
    return [{"data": {"values": list(values)}, "mark": mark, "encoding": encoding}]


def _look(comparison: Comparison, channel: str) -> dict[str, Any]:
    """Returns the encoding of the groups by their colour, and by shape ('shape') or dash ('strokeDash')."""
    labels = names(comparison)
    looks = {"shape": list(SHAPES[: len(GLYPHS)]), "strokeDash": list(DASHES.values())}[channel]
    scale = {"domain": labels, "range": [looks[i // len(CURVES) % len(looks)] for i in range(len(labels))]}
    return {
        "color": _colour(comparison),
        channel: {"field": "group", "type": "nominal", "scale": scale, "legend": None},
    }


def _colour(comparison: Comparison) -> dict[str, Any]:
    labels = names(comparison)
    scale = {"domain": labels, "range": [look(i)[0] for i in range(len(labels))]}
    return {"field": "group", "type": "nominal", "scale": scale, "legend": None}
