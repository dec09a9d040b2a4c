"""The charts of a comparison's page: Vega-Lite specs as plain dicts, and the SVG made from them."""

import re
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from src.errors import UserError
from src.measure.phases import PHASES
from src.report.compare.axes import in_lines, value_axis
from src.report.compare.quantities import header
from src.report.compare.structure import Comparison
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
PADDING = {"left": 20, "right": 20, "top": 5, "bottom": 5}  # fonts of readers may be wider than those here
WIDTH, NARROW = 340, 200  # of a plot; with its labels it is readable in a column of a page, of print and on a phone
HEIGHT = 170  # of a plot: four rows of charts fill a printed page
LINE = 12  # pixels of a line of letters
NAMES = 170  # of a group's name left of a row
LETTER = 6.2  # pixels of a letter beside a plot
SYMBOL = 20  # pixels of a legend's symbol
LONG = re.compile(r"(\d\.\d\d)\d+")
CONFIG = {
    "background": "transparent",
    "view": {"stroke": None},
    "axis": {"gridColor": GRID, "domainColor": GRID, "tickColor": GRID, "labelColor": INK, "titleColor": INK,
             "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "titlePadding": 12, "tickCount": 5,
             "labelOverlap": True, "labelSeparation": 5},
    "legend": {"orient": "top", "direction": "vertical", "title": None, "titleColor": INK, "labelColor": INK,
               "labelFontSize": 12,
               "labelLimit": 480, "symbolBaseFillColor": INK, "symbolBaseStrokeColor": INK},
}  # fmt: skip


def plain(text: str) -> str:
    """Returns a text without control characters, changes of direction and lone surrogates."""
    return NOT_TEXT.sub("\ufffd", text)


def complete(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the spec with its schema, the usual width and the page's look."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": WIDTH,
        "padding": PADDING,
        "config": CONFIG,
        **spec,
    }


def width_beside(labels: Sequence[str], limit: int) -> int:
    """Returns the width of a plot beside labels of at most `limit` pixels: with them charts are of one width."""
    return max(NARROW, WIDTH - min(limit, ceil(LETTER * max(map(len, labels), default=0))))


def legend(labels: Sequence[str]) -> dict[str, Any]:
    """Returns the legend of some labels: in two columns where these fit the plot's width."""
    is_short = SYMBOL + LETTER * max(map(len, labels)) <= WIDTH / 2
    return {"columns": 2 if is_short else 1, "columnPadding": 36}


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
    """Returns the groups' names, of what differs, as charts show them."""
    return [plain(group.name) for group in comparison.groups]


def look(group: int) -> tuple[str, str, str]:
    """Returns a group's colour, glyph and dash by its position: 21 groups are told apart without their numbers."""
    turn = group // len(CURVES) % len(GLYPHS)
    return CURVES[group % len(CURVES)], GLYPHS[turn], list(DASHES)[turn]


def row_height(comparison: Comparison) -> int:
    return 30 if len(comparison.groups) <= len(CURVES) else 20


def shape_of(group: int) -> str:
    """Returns the shape of a group's points, that of its glyph."""
    return SHAPES[group // len(CURVES) % len(GLYPHS)]


def runs_spec(comparison: Comparison, over: Sequence[str], name: str) -> dict[str, Any] | None:
    """Returns a quantity over the first that there is of some others, a point for each run; None without points."""
    quantities = {quantity.name: quantity for quantity in comparison.quantities}
    rate, metric = next((quantities[other] for other in over if other in quantities), None), quantities.get(name)
    if metric is None or rate is None:
        return None
    values = [
        {"x": x * rate.factor, "y": y * metric.factor, "group": label}
        for group, label in zip(comparison.groups, names(comparison), strict=True)
        for run in group.runs
        if run.status == "done"
        and (x := run.figures.get(rate.name)) is not None
        and (y := run.figures.get(metric.name)) is not None
    ]
    if not values:
        return None
    x = value_axis("x", header(rate), [point["x"] for point in values], rate)
    y = in_lines(value_axis("y", plain(header(metric)), [point["y"] for point in values], metric))
    mark = {"type": "point", "filled": True, "size": 70, "opacity": 1}
    looks = _look(comparison, "shape")
    if 1 < len(comparison.groups) <= len(CURVES):
        looks["color"] = {**looks["color"], "legend": legend(names(comparison))}
    points = {"mark": mark, "encoding": {"x": x, "y": y, **looks}}
    return {"height": HEIGHT, "data": {"values": values}, "layer": [points, *_labels(comparison, values, x, y)]}


def _labels(comparison: Comparison, values: Sequence[Mapping[str, Any]], x: Any, y: Any) -> list[dict[str, Any]]:
    """Returns the names of groups beside points, where colours alone do not tell them apart.

    A name without room is left out: none covers another or a point.
    """
    if len(comparison.groups) <= len(CURVES):
        return []
    wide = max(point["x"] for point in values) or 1.0  # the axis begins at zero
    low, top = y["scale"].get("domain") or (0.0, max(point["y"] for point in values))
    high = (top - low) or 1.0
    best = names(comparison)[comparison.best] if comparison.best is not None else None
    order = sorted(values, key=lambda point: point["group"] != best)
    places = [(WIDTH * point["x"] / wide, HEIGHT * (point["y"] - low) / high) for point in order]
    taken = [(across - 5, across + 5, up) for across, up in places]
    kept: tuple[list[Mapping[str, Any]], ...] = ([], [])
    for i, (point, (across, up)) in enumerate(zip(order, places, strict=True)):
        letters = min(NAMES, LETTER * len(point["group"]))
        for is_left in (across > WIDTH / 2, across <= WIDTH / 2):
            start = across - 8 - letters if is_left else across + 8
            box = start, start + letters, up
            others = taken[:i] + taken[i + 1 :]
            if 0 <= start <= WIDTH + 20 - letters and not any(_touch(box, other) for other in others):
                kept[is_left].append(point)
                taken.append(box)
                break
    text = {"field": "group", "type": "nominal"}
    return [
        {"data": {"values": kept[is_left]},
         "mark": {"type": "text", "align": align, "dx": dx, "fontSize": 11, "limit": NAMES, "color": INK},
         "encoding": {"x": x, "y": y, "text": text}}
        for is_left, align, dx in ((False, "left", 8), (True, "right", -8))
    ]  # fmt: skip


def _touch(one: tuple[float, float, float], other: tuple[float, float, float]) -> bool:
    """Returns whether two boxes, from left to right at a height, cover each other."""
    return one[0] < other[1] and other[0] < one[1] and abs(one[2] - other[2]) < LINE


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
        "height": {"step": row_height(comparison)}, "width": width_beside(names(comparison), NAMES),
        "data": {"values": values}, "mark": "bar",
        "encoding": {
            "y": {"field": "group", "type": "nominal", "sort": None, "title": None, "axis": {"labelLimit": NAMES}},
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
    y = {"field": "group", "type": "nominal", "sort": None, "title": None, "axis": {"labelLimit": NAMES}}
    title = "ms of a step" if comparison.kind == "train" else "ms of a batch"
    x = {"field": "ms", "type": "quantitative", "title": title, "scale": {"zero": True}}
    ends = {"x": {**x, "aggregate": "min"}, "x2": {"field": "ms", "aggregate": "max"}}
    shape = {"field": "percentile", "type": "nominal", "scale": scale, "legend": {"direction": "horizontal"}}
    return {
        "height": {"step": row_height(comparison)}, "width": width_beside(names(comparison), NAMES),
        "data": {"values": values},
        "layer": [
            {"mark": {"type": "rule", "strokeWidth": 2}, "encoding": {"y": y, **ends, "color": _colour(comparison)}},
            {"mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
             "encoding": {"y": y, "x": x, "shape": shape, "color": _colour(comparison)}},
        ],
    }  # fmt: skip


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
