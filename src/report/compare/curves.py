"""The charts of curves: a line for each run, its group's name at its end; training and validation in one panel."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from src.report.axes import unit_of, wants_log
from src.report.compare.axes import in_lines, log_ticks, number_axis, value_axis
from src.report.compare.charts import DASHES, HEIGHT, INK, NAMES, look, names, plain, shape_of, width_beside
from src.report.compare.structure import Comparison, Curve
from src.system.colours import CURVES

LETTERS = 13  # pixels between the names at the ends of two curves
FAINT = 0.35  # opacity of a seed beside the mean
HELD_OUT = ("val_", "dev_")  # prefixes of a training metric's name where it is of other samples
TITLES = {"samples": "samples", "seconds": "seconds since the first step"}


def panels(comparison: Comparison) -> list[tuple[str, ...]]:
    """Returns the metrics of each panel: one, or a training metric and the same of held-out samples."""
    metrics = list(dict.fromkeys(curve.metric for curve in comparison.curves))
    pairs = {metric: [p + metric for p in HELD_OUT if p + metric in metrics] for metric in metrics}
    second = {name for others in pairs.values() for name in others}
    return [(metric, *pairs[metric]) for metric in metrics if metric not in second]


def curve_spec(comparison: Comparison, metrics: Sequence[str], over: str) -> dict[str, Any] | None:
    """Returns the curves of metrics, a line for each run, over 'samples' or 'seconds'; None without lines.

    The first metric is thin where there are several: training is noisier than validation. Seeds are faint beside the
    line of their mean.
    """
    runs = [curve for curve in comparison.curves if curve.metric in metrics]
    curves, seeds = mean_curves(runs)
    labels = names(comparison)
    values = [
        {"x": x, "y": y, "group": labels[curve.group], "run": i, "metric": curve.metric, "is_seed": i >= len(curves)}
        for i, curve in enumerate([*curves, *seeds])
        for x, y in zip(_places(curve, over), curve.values, strict=True)
        if x is not None
    ]
    if len(values) <= len({point["run"] for point in values}):
        return None
    unit = unit_of(metrics[0], comparison.unit)
    title = plain(f"{metrics[0]}, {unit}" if unit else metrics[0])
    numbers = [point["y"] for point in values]
    y = value_axis("y", title, numbers) if not metrics[0].endswith("_per_s") else _from_zero(title, numbers)
    if wants_log(numbers):
        y |= {"title": f"{title} (log axis)", "scale": {"type": "log", "domain": [min(numbers), max(numbers)]}}
        y["axis"] = {"values": log_ticks(min(numbers), max(numbers))}
    y = in_lines(y)
    x = number_axis("x", plain(f"{comparison.unit} trained on" if over == "samples" else TITLES[over]))
    x["scale"] = {"zero": True, "nice": False}
    x["axis"] = {"labelOverlap": True, "format": "~s"} if max(point["x"] for point in values) >= 10_000 else {}
    scale = {"domain": labels, "range": [look(i)[0] for i in range(len(labels))]}
    dashes = {"domain": labels, "range": [DASHES[look(i)[2]] for i in range(len(labels))]}
    encoding = {
        "x": x, "y": y, "detail": {"field": "run", "type": "nominal"},
        "color": {"field": "group", "type": "nominal", "scale": scale, "legend": None},
        "strokeDash": {"field": "group", "type": "nominal", "scale": dashes, "legend": None},
    }  # fmt: skip
    lines = [
        {
            "data": {"values": drawn},
            "mark": {"type": "line", "strokeWidth": 1 if thin or is_seed else 1.8,
                     "opacity": FAINT if is_seed else 0.5 if thin else 1, "point": len(runs) == 1 or is_bare},
            "encoding": encoding,
        }
        for is_seed in (True, False)
        for metric in metrics
        for thin in [len(metrics) > 1 and metric == metrics[0]]
        for drawn in [[point for point in values if point["metric"] == metric and point["is_seed"] == is_seed]]
        for is_bare in [len(drawn) == len({point["run"] for point in drawn})]  # no line goes through a single point
        if drawn and not (thin and is_seed)  # faint and thin lines of seeds would be those of no group
    ]  # fmt: skip
    ended = labels if len(labels) > 1 else []
    ends = [point for point in values if not point["is_seed"]]
    return {
        "height": HEIGHT,
        "width": width_beside(ended, NAMES),
        "layer": [*lines, *_end_labels(comparison, ends, metrics[-1], y["scale"])],
    }


def mean_curves(curves: Sequence[Curve]) -> tuple[list[Curve], list[Curve]]:
    """Returns the curves to be drawn thick, and the seeds that these are means of.

    A mean is over the samples at which all runs of a group have the metric. Runs without such samples, and single ones,
    stand for themselves.
    """
    by_group: dict[tuple[int, str], list[Curve]] = {}
    for curve in curves:
        by_group.setdefault((curve.group, curve.metric), []).append(curve)
    thick, seeds = [], []
    for runs in by_group.values():
        if len(runs) > 1 and (mean := _mean(runs)):
            thick.append(mean)
            seeds += runs
        else:
            thick += runs
    return thick, seeds


def _mean(runs: Sequence[Curve]) -> Curve | None:
    """Returns the mean of runs at the samples that all of them have; None where they share fewer than two."""
    index = [{sample: i for i, sample in enumerate(run.samples)} for run in runs]
    common = [sample for sample in runs[0].samples if sample is not None and all(sample in at for at in index)]
    if len(common) < 2:
        return None
    values, seconds = [], []
    for sample in common:
        points = [at[sample] for at in index]
        values.append(fmean(run.values[i] for run, i in zip(runs, points, strict=True)))
        times = [run.seconds[i] for run, i in zip(runs, points, strict=True)]
        present = [time for time in times if time is not None]
        seconds.append(fmean(present) if len(present) == len(times) else None)
    return replace(runs[0], source="mean", values=values, samples=common, seconds=seconds)


def _places(curve: Curve, over: str) -> Sequence[float | None]:
    return curve.samples if over == "samples" else curve.seconds


def _from_zero(title: str, values: Sequence[float]) -> dict[str, Any]:
    scale = {"domain": [0, 1.04 * max(values) or 1], "nice": False}
    return {"field": "y", "type": "quantitative", "title": title, "scale": scale}


def _end_labels(
    comparison: Comparison, values: Sequence[Mapping[str, Any]], metric: str, scale: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Returns the groups' names right of the plot, each beside the mean of its curves' ends, none over another.

    Beyond the colours' number a name that has no room is left out; the key above the charts has all names.
    """
    if len(comparison.groups) < 2:
        return []
    ends: dict[str, list[float]] = {}
    last = {point["run"]: point for point in values if point["metric"] == metric}
    for point in last.values():
        ends.setdefault(point["group"], []).append(point["y"])
    low, high = scale.get("domain") or (0.0, scale.get("domainMax") or max(point["y"] for point in values))
    to = math.log if scale.get("type") == "log" else float
    span = (to(high) - to(low)) or 1.0
    places = {
        group: HEIGHT * (1 - (to(sum(numbers) / len(numbers)) - to(low)) / span) for group, numbers in ends.items()
    }
    labels = names(comparison)
    order = sorted(places, key=lambda group: places[group])
    if len(order) > len(CURVES):
        best = labels[comparison.best] if comparison.best is not None else None
        kept: list[str] = []
        for group in sorted(order, key=lambda group: group != best):
            if all(abs(places[group] - places[other]) >= LETTERS for other in kept):
                kept.append(group)
        order = [group for group in order if group in kept]
    rows = [
        {"group": group, "place": place, "colour": look(labels.index(group))[0], "shape": shape_of(labels.index(group))}
        for group, place in zip(order, _apart([places[group] for group in order]), strict=True)
    ]
    at = {"x": {"value": "width"}, "y": {"field": "place", "type": "quantitative", "scale": None, "axis": None}}
    colour = {"field": "colour", "type": "nominal", "scale": None}
    shape = {"field": "shape", "type": "nominal", "scale": None}
    text = {"type": "text", "align": "left", "xOffset": 16, "fontSize": 11, "limit": NAMES, "color": INK}
    return [
        {"data": {"values": rows}, "mark": {"type": "point", "filled": True, "size": 45, "opacity": 1, "xOffset": 8},
         "encoding": {**at, "color": colour, "shape": shape}},
        {"data": {"values": rows}, "mark": text, "encoding": {**at, "text": {"field": "group", "type": "nominal"}}},
    ]  # fmt: skip


def _apart(places: Sequence[float]) -> list[float]:
    """Returns ascending places with room for a line of letters between them, moved as little as that needs."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + LETTERS) if moved else max(0.0, place))
    excess = moved[-1] - HEIGHT if moved else 0.0
    for i in range(len(moved) - 1, -1, -1):
        if excess <= 0:
            break
        limit = HEIGHT if i == len(moved) - 1 else moved[i + 1] - LETTERS
        moved[i] = min(moved[i], limit)
    return moved
