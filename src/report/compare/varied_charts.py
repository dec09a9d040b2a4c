"""The charts of varied keys and devices: a figure against one key, parallel coordinates, scaling; Vega-Lite specs."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from src.report.compare.axes import SHORT, in_lines, log_ticks, number_axis, value_axis
from src.report.compare.charts import DASHES, HEIGHT, INK, NAMES, SHAPES, WIDTH, look, plain, width_beside
from src.report.compare.quantities import header
from src.report.compare.structure import Axis, Comparison, Quantity
from src.report.compare.varied import LEVELS
from src.report.scaling import Kind
from src.system.colours import CURVES

RAMP = ["#E69F00", "#0072B2"]  # least to greatest, told apart by colour-blind readers too, in light and dark
FAILED = "#999999"
LETTERS = 12  # of a line of an axis' title
BREAK = re.compile(r"(.{4,11}[._])(?=.{3})")
COLUMN = 92  # pixels of an axis of parallel coordinates


def axis_spec(comparison: Comparison, axis: Axis, quantity: Quantity) -> dict[str, Any] | None:
    """Returns a figure of each run over the key; lines join the means of groups that differ in this key alone.

    There are no lines where these would be more than the colours. None where fewer than two values of the key have the
    figure.
    """
    where = axis.numbers if axis.numbers is not None else axis.labels
    runs, means = [], []
    for group, x, line in zip(comparison.groups, where, axis.lines, strict=True):
        if (estimate := group.estimates.get(quantity.name)) is not None:
            at = (
                {"x": x, "line": plain(line)} if axis.numbers is not None else {"x": plain(str(x)), "line": plain(line)}
            )
            means.append({**at, "y": estimate.mean * quantity.factor})
            runs += [{**at, "y": value * quantity.factor} for value in estimate.values]
    if len({mean["x"] for mean in means}) < 2:
        return None
    lines = list(dict.fromkeys(mean["line"] for mean in means))
    named = 1 < len(lines) <= len(CURVES)
    scale = {"domain": lines, "range": list(CURVES[: len(lines)])}
    shapes = {"domain": lines, "range": [SHAPES[i % len(SHAPES)] for i in range(len(lines))]}
    x = _key_axis(axis, [mean["x"] for mean in means])
    values = [row["y"] for row in (*means, *runs)]
    y = in_lines(value_axis("y", plain(header(quantity)), values, quantity))
    colour = (
        {"field": "line", "type": "nominal", "scale": scale, "legend": {"columns": 2, "columnPadding": 24}}
        if named
        else _plain_colour()
    )
    detail = {"field": "line", "type": "nominal"}
    shape = {"field": "line", "type": "nominal", "scale": shapes} if named else {"value": "circle"}
    joined = {"data": {"values": means}, "mark": {"type": "line", "strokeWidth": 1.3},
              "encoding": {"x": x, "y": y, "color": colour, "detail": detail}}  # fmt: skip
    points = {"data": {"values": runs}, "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
              "encoding": {"x": x, "y": y, "color": colour, "shape": shape}}  # fmt: skip
    return {"height": HEIGHT, "layer": [joined, points] if named or len(lines) == 1 else [points]}


def parallel_spec(comparison: Comparison) -> dict[str, Any] | None:
    """Returns the parallel coordinates: a line for each group, grey and dashed without a metric, the best one thick."""
    titles = _titles([plain(coordinate.title) for coordinate in comparison.parallel])
    if not titles:
        return None
    rows, ticks = _parallel_rows(comparison, titles)
    top = {"title": None, "orient": "top", "labelAngle": 0, "domain": False, "ticks": False, "grid": True,
           "gridColor": INK, "gridOpacity": 0.4, "labelFontWeight": "bold",
           "labelLimit": 2 * COLUMN, "labelExpr": "split(datum.label, '\\n')"}  # fmt: skip
    places = {"domain": titles, "type": "point", "padding": 0.3}
    x = {"field": "axis", "type": "nominal", "sort": None, "scale": places, "axis": top}
    y = {"field": "place", "type": "quantitative", "axis": None, "scale": {"domain": [-0.03, 1.03]}}
    colour = _plain_colour()
    if comparison.metric:
        scale = {"range": RAMP, "type": "linear", "interpolate": "lab"}
        legend = {"direction": "horizontal", "gradientLength": 240}
        title = comparison.quantity(comparison.metric).title
        colour = {"field": "value", "type": "quantitative", "scale": scale, "title": plain(title), "legend": legend}
    best = [row for row in rows if row["group"] == comparison.best]
    layers = [
        _lines([row for row in rows if row["value"] is None], x, y, {"value": FAILED}, {"strokeDash": [4, 4]}),
        _lines([row for row in rows if row["value"] is not None], x, y, colour, {}),
        _lines(best, x, y, colour, {"strokeWidth": 5}),
    ]
    text = {"type": "text", "align": "left", "dx": 5, "fontSize": 11, "color": INK}
    named = {"x": x, "y": y, "text": {"field": "label", "type": "nominal"}}
    layers.append({"data": {"values": ticks}, "mark": text, "encoding": named})
    return {"height": HEIGHT, "width": max(WIDTH, COLUMN * len(titles)), "layer": [layer for layer in layers if layer]}


def _titles(keys: Sequence[str]) -> list[str]:
    """Returns the last parts of keys, which name groups too, as far as they differ; long ones in two lines."""
    last = [key.rpartition(".")[2] for key in keys]
    titles = last if len(set(last)) == len(last) else list(keys)
    return [BREAK.sub(r"\1\n", title, count=1) if len(title) > LETTERS else title for title in titles]


def importance_spec(comparison: Comparison) -> dict[str, Any] | None:
    """Returns bars of the metric's rank correlation with each numeric key, the strongest first; None without keys."""
    ranked = [(axis.key, axis.rank_correlation) for axis in comparison.axes if axis.rank_correlation is not None]
    if not ranked:
        return None
    titles = dict(zip((key for key, _ in ranked), _titles([plain(key) for key, _ in ranked]), strict=True))
    ranked.sort(key=lambda pair: -abs(pair[1]))
    rows = [{"key": titles[key].replace("\n", ""), "rank": value, "label": f"{value:+.2f}"} for key, value in ranked]
    y = {"field": "key", "type": "nominal", "sort": None, "title": None, "axis": {"labelLimit": NAMES}}
    x = {"field": "rank", "type": "quantitative", "title": "Spearman's rank correlation",
         "scale": {"domain": [-1.2, 1.2]}, "axis": {"values": [-1, -0.5, 0, 0.5, 1]}}  # fmt: skip
    label = {"type": "text", "fontSize": 12, "color": INK}
    named = {"x": x, "y": y, "text": {"field": "label", "type": "nominal"}}
    return {
        "height": {"step": 36}, "width": width_beside([row["key"] for row in rows], NAMES), "data": {"values": rows},
        "layer": [
            {"mark": {"type": "bar", "size": 16}, "encoding": {"x": x, "y": y, "color": _plain_colour()}},
            {"transform": [{"filter": "datum.rank >= 0"}], "mark": {**label, "align": "left", "dx": 4},
             "encoding": named},
            {"transform": [{"filter": "datum.rank < 0"}], "mark": {**label, "align": "right", "dx": -4},
             "encoding": named},
        ],
    }  # fmt: skip


def _parallel_rows(comparison: Comparison, titles: Sequence[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the points of the groups' lines and those of the axes' labels."""
    judged = comparison.metric or (comparison.quantities[0].name if comparison.quantities else "")
    means = [group.estimates[judged].mean if judged in group.estimates else None for group in comparison.groups]
    rows = [
        {"axis": title, "place": place, "group": i, "value": means[i], "name": plain(comparison.groups[i].name)}
        for title, coordinate in zip(titles, comparison.parallel, strict=True)
        for i, place in enumerate(coordinate.places)
        if place is not None
    ]
    ticks = [
        {"axis": title, "place": place, "label": plain(label)}
        for title, coordinate in zip(titles, comparison.parallel, strict=True)
        for place, label in coordinate.ticks
    ]
    return rows, ticks


def scaling_spec(comparison: Comparison, kind: Kind) -> dict[str, Any] | None:
    """Returns the efficiencies over devices, a line for each case, published ones grey; None without own points."""
    ours: dict[str, list[dict[str, Any]]] = {}
    published: list[dict[str, Any]] = []
    for point in comparison.scaling:
        name = plain(f"{point.config.split()[0]} {point.precision}, {point.batch}")
        at = {"devices": point.devices, "efficiency": 100 * point.efficiency, "case": name,
              "suspicious": point.is_suspicious}  # fmt: skip
        if point.kind == kind and point.is_published:
            published += [
                {**at, "devices": 1, "efficiency": 100.0, "suspicious": False, "source": point.source},
                {**at, "source": point.source},
            ]
        elif point.kind == kind:
            ours.setdefault(name, [{**at, "devices": 1, "efficiency": 100.0, "suspicious": False}]).append(at)
    if not ours:
        return None
    rows = [row for line in ours.values() for row in line]
    devices = sorted({row["devices"] for row in (*rows, *published)})
    x = {**number_axis("devices", "devices"), "scale": {"type": "log", "base": 2, "padding": 12, "nice": False},
         "axis": {"values": devices, "labelExpr": "format(datum.value, '~g')"}}  # fmt: skip
    y = {"field": "efficiency", "type": "quantitative", "title": "speed-up per device, %", "scale": {"zero": True}}
    names, looks = list(ours), [look(i) for i in range(len(ours))]
    scale = {"domain": names, "range": [colour for colour, _, _ in looks]}
    dashes = {"domain": names, "range": [DASHES[dash] for _, _, dash in looks]}
    colour = {"field": "case", "type": "nominal", "scale": scale}
    dash = {"field": "case", "type": "nominal", "scale": dashes}
    detail = [{"field": "case", "type": "nominal"}, {"field": "source", "type": "nominal"}]
    grey = {"data": {"values": published}, "mark": {"type": "line", "strokeWidth": 1, "point": {"color": FAILED}},
            "encoding": {"x": x, "y": y, "color": {"value": FAILED}, "detail": detail}}  # fmt: skip
    line = {"data": {"values": rows}, "mark": {"type": "line", "point": True},
            "encoding": {"x": x, "y": y, "color": colour, "strokeDash": dash}}  # fmt: skip
    crosses = {"data": {"values": [row for row in (*rows, *published) if row["suspicious"]]},
               "mark": {"type": "point", "shape": "cross", "angle": 45, "size": 150, "filled": True},
               "encoding": {"x": x, "y": y, "color": {"value": FAILED}}}  # fmt: skip
    layers = [*([grey] if published else []), line, *([crosses] if crosses["data"]["values"] else [])]
    return {"height": HEIGHT, "layer": layers}


def _lines(rows: list[dict[str, Any]], x: Any, y: Any, colour: Any, style: Mapping[str, Any]) -> dict[str, Any]:
    if not rows:
        return {}
    mark = {"type": "line", "strokeWidth": 1.5, "point": False, **style}
    told = [{"field": "name", "title": "group"}, {"field": "value", "title": colour.get("title", "value")}]
    encoding = {"x": x, "y": y, "color": colour, "detail": {"field": "group", "type": "nominal"}, "tooltip": told}
    return {"data": {"values": rows}, "mark": mark, "encoding": encoding}


def _key_axis(axis: Axis, values: list[Any]) -> dict[str, Any]:
    title = plain(axis.key)
    if axis.numbers is None:
        return {"field": "x", "type": "nominal", "sort": None, "title": title, "axis": {"labelAngle": 0}}
    levels = sorted(set(values))
    encoding = number_axis("x", title)
    if axis.log:
        encoding |= {"title": f"{title} (log axis)", "scale": {"type": "log", "nice": False, "padding": 12}}
    encoding["axis"] = {"labelExpr": SHORT, "labelOverlap": True}
    if len(levels) <= LEVELS:
        encoding["axis"]["values"] = levels
    elif axis.log:
        encoding["axis"]["values"] = log_ticks(levels[0], levels[-1])
    return encoding


def _plain_colour() -> dict[str, Any]:
    return {"value": CURVES[0]}
