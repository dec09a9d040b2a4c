"""The picture of a comparison's answer: ratios of two groups, or the means of several, with 95% intervals."""

from collections.abc import Sequence
from typing import Any

from src.measure.intervals import mean_interval
from src.report.compare.answer import Answer
from src.report.compare.axes import bounded, value_axis
from src.report.compare.charts import INK, NAMES, look, names, plain, shape_of, width_beside
from src.report.compare.quantities import header
from src.report.compare.structure import Comparison, Quantity
from src.report.digits import shown

WIDTH = 300  # of ratios
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50, 100)  # of ratios
FINE = (0.8, 0.85, 0.9, 0.95, 1, 1.05, 1.1, 1.15, 1.2)  # where all ratios are near 1
STEP = 24  # pixels of a row


def ratio_spec(comparison: Comparison, answer: Answer) -> dict[str, Any] | None:
    """Returns the ratios of two groups on a logarithmic axis, with their intervals, beside a line at 1.

    None for another number of groups.
    """
    if not answer.ratios:
        return None
    titles = {quantity.name: quantity.title for quantity in comparison.quantities}
    rows = [
        {
            "quantity": "speed" if ratio.quantity == answer.rate else titles[ratio.quantity],
            "ratio": ratio.ratio,
            "low": ratio.low,
            "high": ratio.high,
            "label": ratio.value + (f" ({ratio.interval})" if ratio.low != ratio.high else ""),
        }
        for ratio in answer.ratios
    ]
    rows = [{**row, "quantity": plain(row["quantity"])} for row in rows]
    ends = [end for ratio in answer.ratios for end in (ratio.ratio, ratio.low, ratio.high, 1.0) if end is not None]
    room = (max(ends) / min(ends)) ** 0.15 * 1.02
    group, base = (comparison.groups[i].name for i in (answer.ratios[0].group, answer.ratios[0].base))
    scale = {"type": "log", "domain": [min(ends) / room, max(ends) * room], "nice": False}
    is_fine = FINE[0] < min(ends) and max(ends) < FINE[-1]
    ticks = [tick for tick in (FINE if is_fine else TICKS) if min(ends) / room <= tick <= max(ends) * room]
    axis = {"format": "~g", "grid": False, "labelOverlap": True, **({"values": ticks} if len(ticks) > 1 else {})}
    x = {"field": "ratio", "type": "quantitative", "title": plain(f"{group} over {base}, log axis"), "scale": scale,
         "axis": {**axis, "titleLimit": 420}}  # fmt: skip
    y = {"field": "quantity", "type": "nominal", "sort": None, "title": None, "axis": {"labelLimit": NAMES}}
    colour = {"value": look(answer.ratios[0].group)[0]}
    whisker = {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "y": y, "color": colour}
    point = {"type": "point", "filled": True, "size": 110, "opacity": 1, "shape": shape_of(answer.ratios[0].group)}
    above = {"type": "text", "dy": -14, "fontSize": 12, "color": INK}
    return {
        "width": WIDTH, "height": {"step": 56}, "data": {"values": rows},
        "layer": [
            # the line at 1, open where the labels are
            {"mark": {"type": "tick", "color": INK, "thickness": 1, "size": 38, "yOffset": 13},
             "encoding": {"x": {"datum": 1, "type": "quantitative", "scale": scale}, "y": y}},
            {"transform": [{"filter": "isValid(datum.low)"}], "mark": {"type": "rule", "strokeWidth": 3},
             "encoding": whisker},
            {"mark": point, "encoding": {"x": x, "y": y, "color": colour}},
            {"mark": above, "encoding": {"x": x, "y": y, "text": {"field": "label", "type": "nominal"}}},
        ],
    }  # fmt: skip


def means_spec(comparison: Comparison, quantity: Quantity, order: Sequence[int]) -> dict[str, Any] | None:
    """Returns the mean of a quantity in each group with its 95% interval, and a small point for each run.

    Args:
        order: the groups from above to below; groups without the quantity keep an empty row.
    """
    labels = names(comparison)
    rows, runs = [], []
    for i in order:
        if (estimate := comparison.groups[i].estimates.get(quantity.name)) is None:
            continue
        low, high = bounded(mean_interval(estimate.values), quantity) or (None, None)
        scaled = [None if value is None else value * quantity.factor for value in (estimate.mean, low, high)]
        rows.append({"group": labels[i], "mean": scaled[0], "low": scaled[1], "high": scaled[2],
                     "label": shown(estimate.mean * quantity.factor)})  # fmt: skip
        if estimate.n > 1:
            runs += [{"group": labels[i], "mean": value * quantity.factor} for value in estimate.values]
    if not rows:
        return None
    values = [row[key] for row in rows for key in ("mean", "low", "high") if row[key] is not None]
    values += [run["mean"] for run in runs]
    x = value_axis("mean", header(quantity), values, quantity)
    y = {"field": "group", "type": "nominal", "title": None, "axis": {"labelLimit": NAMES, "domain": False},
         "scale": {"domain": [labels[i] for i in order]}}  # fmt: skip
    scale = {"domain": labels, "range": [look(i)[0] for i in range(len(labels))]}
    shapes = {"domain": labels, "range": [shape_of(i) for i in range(len(labels))]}
    colour = {"field": "group", "type": "nominal", "scale": scale, "legend": None}
    shape = {"field": "group", "type": "nominal", "scale": shapes, "legend": None}
    low_end = {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "y": y, "color": colour}
    return {
        "width": width_beside(labels, NAMES), "height": {"step": STEP}, "data": {"values": rows},
        "layer": [
            {"data": {"values": runs}, "mark": {"type": "tick", "thickness": 1.5, "opacity": 0.7, "size": 12},
             "encoding": {"x": x, "y": y, "color": colour}},
            {"transform": [{"filter": "isValid(datum.low)"}], "mark": {"type": "rule", "strokeWidth": 2.5},
             "encoding": low_end},
            {"mark": {"type": "point", "filled": True, "size": 80, "opacity": 1},
             "encoding": {"x": x, "y": y, "color": colour, "shape": shape}},
            {"mark": {"type": "text", "align": "left", "fontSize": 12, "color": INK, "xOffset": 8},
             "encoding": {"x": {"value": "width"}, "y": y, "text": {"field": "label", "type": "nominal"}}},
        ],
    }  # fmt: skip
