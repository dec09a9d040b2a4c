"""Which charts a comparison's page has, in their order, with their titles and alternative texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from src.report.compare import charts
from src.report.compare.answer import Answer
from src.report.compare.answer_charts import means_spec, ratio_spec
from src.report.compare.curves import curve_spec, mean_curves, panels
from src.report.compare.judged import calibration_spec
from src.report.compare.quantities import RATES, spread
from src.report.compare.structure import Comparison
from src.report.compare.text import result
from src.report.compare.varied import responses
from src.report.compare.varied_charts import axis_spec, importance_spec, parallel_spec, scaling_spec
from src.report.scaling import Kind

POINTS = (  # what is shown, its horizontal and its vertical quantity
    ("Final metric over rate", RATES, "metric"),
    ("Peak memory over rate", RATES, "mem"),
    ("Roofline: peak bandwidth over peak FLOP/s", ("of_peak_flops",), "of_peak_bandwidth"),
)
SCALING: Mapping[Kind, str] = {
    "weak": "Weak scaling: speed-up per device at a fixed batch per device",
    "strong": "Strong scaling: speed-up per device at a fixed global batch",
}


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart: its section of the page, its title, its Vega-Lite spec, and its figures in words.

    `inside` names it in the summary of its section; its title does where it is empty.
    """

    section: str
    title: str
    spec: Mapping[str, Any]
    words: str
    is_wide: bool = False
    inside: str = ""


def varied(comparison: Comparison) -> list[Chart]:
    """Returns the charts of what the groups vary: final metric and rate over each key, and parallel coordinates."""
    words = "; ".join(
        f"{group.name}: "
        + ", ".join(f"{quantity.title} {spread(group.estimates[quantity.name], quantity)}" for quantity in shown)
        for group in comparison.groups
        if (shown := [quantity for quantity in responses(comparison.quantities) if quantity.name in group.estimates])
    )
    section = "What was varied"
    drawn = [
        Chart(section=section, title=f"{quantity.title} over {axis.key}", spec=spec, words=words, inside=axis.key)
        for axis in comparison.axes
        for quantity in responses(comparison.quantities)
        if (spec := axis_spec(comparison, axis, quantity))
    ]
    if drawn and comparison.metric and (spec := importance_spec(comparison)):
        name = comparison.quantity(comparison.metric).title
        title = f"Importance: {name} and each numeric key, +1 where it rises with the key, -1 where it falls"
        ranked = ", ".join(f"{axis.key} {axis.rank_correlation:+.2f}" for axis in comparison.axes
                           if axis.rank_correlation is not None)  # fmt: skip
        drawn.append(Chart(section=section, title=title, spec=spec, words=ranked, inside="importance"))
    if drawn and (spec := parallel_spec(comparison)):
        title = "All keys and figures, a line for each group"
        title += ", the best one thick" if comparison.best is not None else ""
        title += "; grey and dashed: not done" if any(not group.done for group in comparison.groups) else ""
        drawn.append(Chart(section=section, title=title, spec=spec, words=words, is_wide=True, inside="all together"))
    return drawn


def measured(comparison: Comparison) -> list[Chart]:
    """Returns the charts of the runs' figures: speed and accuracy, phases, step times, scaling."""
    words = result_words(comparison)
    section = "Speed, accuracy and memory, a point for each run"
    percentiles, is_train = charts.times_spec(comparison), comparison.kind == "train"
    times = "Phases" + ((" and step times" if is_train else " and latency") if percentiles else "")
    drawn = [
        Chart(section=section, title=title, spec=spec, words=words)
        for title, over, y in POINTS
        if (spec := charts.runs_spec(comparison, over, y))
    ]
    if spec := charts.phases_spec(comparison):
        title = "Mean seconds of each phase, a bar for each group"
        inside = "seconds of each phase"
        drawn.append(Chart(section=times, title=title, spec=spec, words=_seconds(comparison), inside=inside))
    if percentiles:
        what = "steady steps" if is_train else "batches"
        title = f"Percentiles of the {what}, from the middle one to the slowest hundredth"
        words = _percentiles(comparison)
        drawn.append(Chart(section=times, title=title, spec=percentiles, words=words, inside="percentiles"))
    if spec := calibration_spec(comparison):
        title = "Reliability: share over predicted probability, on the dashed line calibrated"
        drawn.append(Chart(section="Calibration", title=title, spec=spec, words=words, inside="reliability diagram"))
    grey = "; grey: published rows" if any(point.is_published for point in comparison.scaling) else ""
    drawn += [
        Chart(section="Scaling", title=f"{title}{grey}", spec=spec, words=_efficiencies(comparison, kind))
        for kind, title in SCALING.items()
        if (spec := scaling_spec(comparison, kind))
    ]
    return drawn


def curves(comparison: Comparison) -> list[Chart]:
    """Returns the charts of the curves over samples and over seconds."""
    words, has_seeds = result_words(comparison), bool(mean_curves(comparison.curves)[1])
    return [
        Chart(
            section="Curves",
            title=f"{_both(metrics)} over {over}" + (", mean of seeds" if has_seeds else ""),
            spec=spec,
            words=words,
            inside=" and ".join(metrics),
        )
        for metrics in panels(comparison)
        for over in ("samples", "seconds")
        if (spec := curve_spec(comparison, metrics, over))
    ]


def answers(comparison: Comparison, answered: Answer) -> list[Chart]:
    """Returns the picture of the answer: ratios of two groups, or metric and speed of each of several."""
    words = result_words(comparison)
    if spec := ratio_spec(comparison, answered):
        has_interval = any(ratio.interval for ratio in answered.ratios)
        title = "Ratios with 95% intervals" if has_interval else "Ratios of single runs: no intervals"
        return [Chart(section="", title=title, spec=spec, words=words)]
    order = _by_metric(comparison)
    has_interval = any(group.done > 1 for group in comparison.groups)
    title = "mean, 95% interval, runs" if has_interval else "single runs, no intervals"
    return [
        Chart(section="", title=f"{quantity.title}: {title}", spec=spec, words=words)
        for quantity in responses(comparison.quantities)
        if (spec := means_spec(comparison, quantity, order))
    ]


def _by_metric(comparison: Comparison) -> list[int]:
    """Returns the groups from the best to the worst of the final metric, else of the speed; those without one last."""
    first = next(iter(responses(comparison.quantities)), None)
    if first is None:
        return list(range(len(comparison.groups)))

    def place(i: int) -> tuple[bool, float]:
        estimate = comparison.groups[i].estimates.get(first.name)
        mean = estimate.mean if estimate else 0.0
        return estimate is None, mean if first.better == "min" else -mean

    return sorted(range(len(comparison.groups)), key=place)


def _both(metrics: Sequence[str]) -> str:
    return metrics[0] if len(metrics) == 1 else f"{metrics[0]} (thin) and {', '.join(metrics[1:])} (thick)"


def result_words(comparison: Comparison) -> str:
    """Returns the figures of all groups, for readers of the screen."""
    lines, _ = result(comparison)
    return "; ".join(
        ", ".join(f"{name} {value}" for name, value in zip(lines[0], line, strict=True) if value != "/")
        for line in lines[1:]
    )


def _seconds(comparison: Comparison) -> str:
    return "; ".join(
        f"{group.name}: " + ", ".join(f"{phase} {value:.1f} s" for phase, value in group.phases.items() if value)
        for group in comparison.groups
    )


def _percentiles(comparison: Comparison) -> str:
    return "; ".join(
        f"{group.name}: " + ", ".join(f"{name} {1e3 * value:.4g} ms" for name, value in group.percentiles.items())
        for group in comparison.groups
    )


def _efficiencies(comparison: Comparison, kind: Kind) -> str:
    return "; ".join(
        f"{'published ' if point.is_published else ''}{point.config}, {point.precision}, batch {point.batch}: "
        f"{point.shown_efficiency} on {point.devices} devices"
        for point in comparison.scaling
        if point.kind == kind
    )
