"""Draws pictures of records: phases of the wall time, histories of metrics, and scaling."""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from textwrap import wrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, PercentFormatter

from src.errors import UserError
from src.report.axes import unit_of, wants_log
from src.report.phases import of_one_rank, shares
from src.report.record import Record
from src.report.scaling import MARK, Point, suspicions
from src.report.stability import Spread, evaluations
from src.system.colours import PHASES as COLOURS
from src.system.pictures import CURVES, FAINT, INK, new_picture, save_picture, style_axes

TOP = 1.08  # upper end of the axis of efficiencies, unless one is higher
BAD = "#C0392B"  # of what is suspicious
GAP = 0.043  # least distance of two labels, as a part of the axis


def run_pictures(folder: Path, record: Record, curves: Sequence[str]) -> dict[str, Path]:
    """Draws a run's phases and those of its `curves` that have points; returns the files by what they show."""
    files = {}
    if record.phases_s and record.samples:
        files["where the time went"] = folder / "phases.png"
        phases_picture(record, files["where the time went"])
    metrics = {name for row in record.history for name, value in row.items() if value is not None}
    if drawn := [name for name in curves if name in metrics]:
        files["curves"] = folder / "curves.png"
        history_picture([record], files["curves"], drawn)
    return files


def phases_picture(record: Record, path: Path) -> None:
    """Writes a picture of the phases of the wall time: one bar, and the seconds and percent of each phase below it.

    Raises UserError where the file cannot be written, ValueError where the record has no phases.
    """
    phases = shares(record)
    if not phases:
        raise ValueError("the record has no phases to draw")
    wall = record.phases_s.get("wall") or sum(phase.seconds for phase in phases)
    decimals = 0 if wall >= 1000 else 1 if wall >= 100 else 2
    rows = len(phases)
    height = 1.6 + 0.3 * rows
    picture = Figure(figsize=(6.4, height), dpi=150, facecolor="white")
    bar = picture.add_axes((0.04, 1 - 1.25 / height, 0.92, 0.42 / height))
    start = 0.0
    for phase in phases:
        width = max(phase.share, 0.0)
        bar.barh(0, width, left=start, height=1, color=COLOURS[phase.name], edgecolor="white", linewidth=0.8)
        start += width
    bar.set(xlim=(0, max(start, 1.0)), ylim=(-0.5, 0.5))
    bar.axis("off")
    title = f"Where {wall:.{decimals}f} s{of_one_rank(record)} went"
    picture.text(0.04, 1 - 0.35 / height, title, size=13, weight="bold", color=INK)
    picture.text(0.04, 1 - 0.62 / height, _case(record), size=9, color=FAINT)
    legend = picture.add_axes((0.04, 0.15 / height, 0.92, 0.3 * rows / height))
    legend.set(xlim=(0, 1), ylim=(rows, 0))
    legend.axis("off")
    for i, phase in enumerate(phases):
        middle = i + 0.5
        legend.scatter(0.012, middle, s=90, marker="s", color=COLOURS[phase.name], linewidths=0)
        legend.text(0.035, middle, phase.title, va="center", size=10, color=INK)
        legend.text(0.80, middle, f"{phase.seconds:.{decimals}f} s", va="center", ha="right", size=10, color=INK)
        legend.text(1.0, middle, f"{phase.share:.1%}", va="center", ha="right", size=10, color=INK)
    save_picture(picture, path)


def history_picture(records: Sequence[Record], path: Path, metrics: Sequence[str]) -> None:
    """Writes a picture with one panel for each metric: its values in the records' histories, over the steps.

    Raises UserError where the file cannot be written, ValueError where no record has one of the metrics.
    """
    columns = 2 if len(metrics) == 4 else min(len(metrics), 3)
    lines = -(-len(metrics) // columns)
    picture = new_picture(3.6 * columns + 0.4, 2.6 * lines + 0.9)
    panels = picture.subplots(lines, columns, squeeze=False, sharex=True)
    for axes, metric in zip(panels.flat, metrics, strict=False):
        _draw_curves(axes, records, metric)
    for axes in panels.flat[len(metrics) :]:
        axes.axis("off")
    if len(records) > 1:
        handles, labels = panels.flat[0].get_legend_handles_labels()
        picture.legend(handles, labels, loc="outside upper left", frameon=False, fontsize=9, labelcolor=INK)
    else:
        picture.suptitle(_case(records[0]), x=0.02, ha="left", size=10, color=FAINT)
    save_picture(picture, path)


def scaling_picture(points: Sequence[Point], path: Path) -> None:
    """Writes a picture of efficiencies over devices, a panel each for weak and strong scaling, published ones in grey.

    Suspicious ones have a cross and a footnote.
    Raises UserError where the file cannot be written.
    """
    kinds = [kind for kind in ("weak", "strong") if any(p.kind == kind for p in points)]
    notes = [line for note in suspicions(points) for line in wrap(f"{MARK} {note}", 68 * len(kinds))]
    picture = new_picture(0.2 + 4 * len(kinds), 3.9 + 0.13 * len(notes))
    ticks = sorted({1, *(p.devices for p in points)})
    lowest = 0.0 if min(p.efficiency for p in points) < 0.6 else 0.5
    top = max(TOP, *(TOP * p.efficiency for p in points))
    panels = picture.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for axes, kind in zip(panels, kinds, strict=True):
        lines: dict[tuple[Any, ...], list[Point]] = {}
        for p in points:
            if p.kind == kind:
                key = (p.is_published, p.source if p.is_published else "", _hardware(p), p.precision, p.samples)
                lines.setdefault(key, []).append(p)
        ends = []
        for i, (key, line) in enumerate(sorted(lines.items())):
            devices, values = [1, *(p.devices for p in line)], [1.0, *(p.efficiency for p in line)]
            colour = CURVES[i % len(CURVES)]
            axes.plot(devices, values, color="#BBBBBB" if key[0] else colour,
                      linewidth=1.6, marker="o", markersize=4, zorder=2 if key[0] else 3)  # fmt: skip
            crosses = [(p.devices, p.efficiency) for p in line if p.is_suspicious]
            axes.plot(*zip(*crosses, strict=True), "x", color=BAD, markersize=9, zorder=5) if crosses else None
            ends.append((line[-1], FAINT if key[0] else colour))
        _label_lines(axes, ends, 1.3 * ticks[-1], (lowest, top))
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(n) for n in ticks])
        axes.set(xlim=(0.9, 9 * ticks[-1]), ylim=(lowest, top))
        if top == TOP:
            axes.set_yticks((0.5, 0.6, 0.7, 0.8, 0.9, 1) if lowest else (0, 0.25, 0.5, 0.75, 1))
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        batch = "batch per device" if kind == "weak" else "global batch"
        axes.set_title(f"{kind} scaling: fixed {batch}", loc="left", size=10, weight="bold", color=INK)
        axes.set_xlabel("devices", size=8, color=FAINT, loc="right", labelpad=1)
        style_axes(axes)
    picture.suptitle(f"{points[0].model}: speed-up per device", x=0.02, ha="left", size=10, color=FAINT)
    if notes:
        picture.supxlabel("\n".join(notes), x=0.02, ha="left", size=7, color=BAD)
    save_picture(picture, path)


def stability_picture(records: Sequence[Record], spreads: Sequence[Spread], path: Path) -> None:
    """Writes a picture of each seed's final metric over the epochs, and of the metrics that have a published curve.

    Grey are the target, and the published means and standard deviations. Raises UserError where there is nothing to
    draw, or the file cannot be written.
    """
    curves = [(int(spread.at.removeprefix("epoch ")), spread) for spread in spreads if spread.at.startswith("epoch ")]
    evaluated, final = {spread.metric for spread in spreads if spread.at.startswith("step ")}, records[0].final_metric
    metrics = [final.name] if final and final.name in evaluated else []
    names = dict.fromkeys(spread.metric for _, spread in curves)
    metrics += [name for name in names if name in evaluated and name not in metrics]
    if not metrics:
        raise UserError(
            f"the runs of {records[0].case.model} have no evaluations to draw: train with fit.eval_every_n_epochs"
        )
    picture = new_picture(max(3.6 * len(metrics) + 0.4, 5.4), 3.6)  # the legend needs as much
    panels = picture.subplots(1, len(metrics), squeeze=False)[0]
    for axes, metric in zip(panels, metrics, strict=True):
        if final and final.name == metric and final.target is not None:
            axes.axhline(final.target, color="#999999", linewidth=1.2, linestyle="--", label=f"target {final.target:g}")
        if points := [(epoch, spread.mean, spread.sd or 0.0) for epoch, spread in curves if spread.metric == metric]:
            epochs, means, deviations = zip(*points, strict=True)
            label = f"published: mean and standard deviation of {curves[0][1].n}"
            grey: dict[str, Any] = {"color": "#999999", "linewidth": 1.6, "marker": "s", "markersize": 5, "capsize": 3}
            axes.errorbar(epochs, means, deviations, label=label, **grey)
        for record, colour in zip(records, cycle(CURVES), strict=False):
            label = f"seed {record.config.get('seed')}"
            axes.plot(*_by_epoch(record, metric), color=colour, linewidth=1.6, marker="o", markersize=3.5, label=label,
                      zorder=3)  # fmt: skip
        axes.set_title(f"{metric}, {unit_of(metric, '')}".rstrip(", "), loc="left", size=11, weight="bold", color=INK)
        axes.set_xlabel("epoch", size=8, color=FAINT, loc="right", labelpad=1)
        style_axes(axes)
    labelled = {
        label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    picture.legend([*labelled.values()], [*labelled], loc="outside lower left", frameon=False, fontsize=9,
                   labelcolor=INK, ncols=4)  # fmt: skip
    picture.suptitle(_case(records[0]), x=0.02, ha="left", size=10, color=FAINT)
    save_picture(picture, path)


def _by_epoch(record: Record, metric: str) -> tuple[list[float], list[float]]:
    """Returns the epochs trained at each evaluation, and the metric there."""
    points = sorted((step, value) for (name, step), value in evaluations(record).items() if name == metric)
    # an evaluation within an epoch, or after training, has fewer steps to the epochs begun
    reached = [(row.get("step") or 0, row.get("epoch") or 0) for row in record.history]
    steps = max((step / (epoch + 1) for step, epoch in reached if step > 0 and epoch >= 0), default=1.0)
    return [step / steps for step, _ in points], [value for _, value in points]


def _hardware(point: Point) -> str:
    """Returns the hardware without the trainer."""
    return point.config.split()[0]


def _label_lines(axes: Axes, ends: Sequence[tuple[Point, str]], at: float, limits: tuple[float, float]) -> None:
    """Labels each line's end, in its colour, in one column at `at` devices, without overlaps."""
    ends = sorted(ends, key=lambda end: -end[0].efficiency)
    heights = spread_labels([p.efficiency for p, _ in ends], (limits[1] - limits[0]) * GAP, limits[0])
    for (p, colour), height in zip(ends, heights, strict=True):
        hardware, mark = f"{_hardware(p)} " if p.is_published else "", f" {MARK}" if p.is_suspicious else ""
        axes.annotate(
            f"{hardware}{p.precision} {p.samples:.7g}: {p.efficiency:.0%}{mark}", (p.devices, p.efficiency),
            xytext=(at, height), textcoords="data", size=7, va="center", color=colour, zorder=4,
            arrowprops={"arrowstyle": "-", "color": "#DDDDDD", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 2,
                        "relpos": (0, 0.5)},
            bbox={"boxstyle": "square,pad=0.08", "facecolor": "white", "edgecolor": "none"},
        )  # fmt: skip


def spread_labels(values: Sequence[float], gap: float, lowest: float) -> list[float]:
    """Returns heights near the descending `values`, at least `gap` apart and not below `lowest`."""
    heights: list[float] = []
    for value in values:
        heights.append(min(value, heights[-1] - gap) if heights else value)
    floor = lowest
    for i in reversed(range(len(heights))):
        heights[i] = max(heights[i], floor)
        floor = heights[i] + gap
    return heights


def _draw_curves(axes: Axes, records: Sequence[Record], metric: str) -> None:
    drawn: list[float] = []
    for i, record in enumerate(records):
        points = [
            (entry["step"], entry[metric])
            for entry in record.history
            if None not in (entry.get("step"), entry.get(metric))
        ]
        steps, values = zip(*points, strict=True) if points else ((), ())
        drawn += values
        marker = "o" if len(points) <= 30 else ""
        colour = CURVES[i % len(CURVES)]
        axes.plot(steps, values, color=colour, linewidth=1.6, marker=marker, markersize=3.5, label=_case(record))
    if not drawn:
        raise ValueError(f"no record has '{metric}' in its history")
    unit = unit_of(metric, records[0].unit)
    if wants_log(drawn):
        axes.set_yscale("log")
        axes.yaxis.set(major_locator=LogLocator(subs=(1, 2, 5)), minor_locator=NullLocator())
        axes.yaxis.set_major_formatter("{x:g}")
    axes.set_title(f"{metric}, {unit}" if unit else metric, loc="left", size=11, weight="bold", color=INK)
    axes.set_xlabel("step", size=8, color=FAINT, loc="right", labelpad=1)
    style_axes(axes)


def _case(record: Record) -> str:
    case = record.case
    hardware = case.hardware.replace("_", "-").upper()
    parts = [case.model, case.datamodule, f"{hardware} {case.trainer}", case.precision, f"batch {case.batch_size}"]
    return " · ".join([*parts, *([] if record.status == "done" else [record.status])])
