"""How well each class is told apart, how far scores are probabilities, and other figures of predictions' quality."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from src.measure.judged import ClassFigures
from src.report.compare.charts import INK, legend, look, names, shape_of
from src.report.compare.structure import Comparison, Group
from src.report.digits import rounded

SHARES: Mapping[str, str] = {"recall": "recall", "precision": "precision", "f1": "F1"}
FEW = 3  # groups with all shares of a class; more have F1 alone
OF_A_CLASS = ("recall of ", "precision of ", "F1 of ")


def class_table(comparison: Comparison) -> list[list[str]]:
    """Returns a line for each class, headers first: its samples, and of each group recall, precision and F1.

    The last line has the means of the classes: balanced accuracy (of recall) and macro F1. Empty without classes.
    """
    groups = [group for group in comparison.groups if _runs(group)]
    if not groups:
        return []
    parts = list(SHARES) if len(groups) <= FEW else ["f1"]
    every = list(dict.fromkeys(figures.name for group in groups for run in _runs(group) for figures in run))
    head = [
        "class",
        "samples",
        *(SHARES[part] + (f", {group.name}" if len(groups) > 1 else "") for group in groups for part in parts),
    ]
    lines = [head]
    for name in every:
        of_class = [[figures for run in _runs(group) for figures in run if figures.name == name] for group in groups]
        counts = list(dict.fromkeys(f"{figures.count:,}" for group in of_class for figures in group))
        cells = [_spread([getattr(figures, part) for figures in group]) for group in of_class for part in parts]
        lines.append([name, " or ".join(counts[:2]) + (" ..." if len(counts) > 2 else ""), *cells])
    means = [_spread([_mean(run, part) for run in _runs(group)]) for group in groups for part in parts]
    return [*lines, ["mean of the classes", "", *means]]


def quality_table(comparison: Comparison) -> list[list[str]]:
    """Returns the figures of predictions' quality, a line for each, headers first; those of classes are left out."""
    lines = [["figure", *(group.name for group in comparison.groups)]]
    by_group = [
        [
            {(figure.name, figure.unit, figure.group): figure.value for figure in run.quality}
            for run in group.runs
            if run.status == "done"
        ]
        for group in comparison.groups
    ]
    keys = dict.fromkeys(key for runs in by_group for run in runs for key in run if not key[0].startswith(OF_A_CLASS))
    for name, unit, split in keys:
        title = ", ".join(filter(None, (name, unit, split)))
        lines.append([title, *(_spread([run.get((name, unit, split)) for run in runs]) for runs in by_group)])
    return lines if len(lines) > 1 else []


def calibration_spec(comparison: Comparison) -> dict[str, Any] | None:
    """Returns the reliability diagram: the share that was right, or clicked, over the mean score; None without groups.

    A line for each run; on the dashed diagonal scores are probabilities.
    """
    labels = names(comparison)
    values = [
        {"x": part.score, "y": part.share, "group": labels[i], "run": run.source, "samples": part.count}
        for i, group in enumerate(comparison.groups)
        for run in group.runs
        for part in run.calibration
    ]
    if not values:
        return None
    top = min(1.0, 1.05 * max(max(point["x"], point["y"]) for point in values))
    scale = {"domain": [0, top], "nice": False}
    is_clicks = any(figure.name == "AUC" for group in comparison.groups for run in group.runs for figure in run.quality)
    share = f"share of it that was {'clicked' if is_clicks else 'right'}"
    x = {"field": "x", "type": "quantitative", "title": "mean predicted probability of a group", "scale": scale}
    y = {"field": "y", "type": "quantitative", "title": share, "scale": scale}
    colours = {"domain": labels, "range": [look(i)[0] for i in range(len(labels))]}
    shapes = {"domain": labels, "range": [shape_of(i) for i in range(len(labels))]}
    key = legend(labels) if len(labels) > 1 else None
    colour = {"field": "group", "type": "nominal", "scale": colours, "legend": key}
    shape = {"field": "group", "type": "nominal", "scale": shapes, "legend": key}
    detail = {"field": "run", "type": "nominal"}
    ends = [{"x": 0, "y": 0}, {"x": top, "y": top}]
    return {
        "height": 200, "width": 200, "data": {"values": values},
        "layer": [
            {"data": {"values": ends}, "mark": {"type": "line", "color": INK, "strokeDash": [4, 3], "strokeWidth": 1},
             "encoding": {"x": x, "y": y}},
            {"mark": {"type": "line", "strokeWidth": 1.5},
             "encoding": {"x": x, "y": y, "color": colour, "detail": detail}},
            {"mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
             "encoding": {"x": x, "y": y, "color": colour, "shape": shape}},
        ],
    }  # fmt: skip


def _runs(group: Group) -> list[Sequence[ClassFigures]]:
    return [run.classes for run in group.runs if run.status == "done" and run.classes]


def _mean(classes: Sequence[ClassFigures], part: str) -> float | None:
    values = [value for figures in classes if (value := getattr(figures, part)) is not None]
    return fmean(values) if values else None


def _spread(values: Sequence[float | int | None]) -> str:
    """Returns the mean of values with their standard deviation; '/' without any."""
    present = [float(value) for value in values if value is not None]
    if len(present) < 2:
        return rounded(present, None)[0] if present else "/"
    sd = stdev(present)
    mean, deviation = rounded((fmean(present), sd), sd)
    return f"{mean} ± {deviation}"
