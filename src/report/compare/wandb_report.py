"""A comparison as a W&B report: its answer in words and bars, panels over the W&B runs of its groups, and its tables.

The texts are those of the Markdown view. Panels are drawn by W&B from what the runs hold; see `src.report.wandb_run`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from src.errors import UserError
from src.report.compare.curves import panels as curve_panels
from src.report.compare.quantities import RATES, header
from src.report.compare.structure import Comparison, Quantity
from src.report.compare.text import COMPARED, opening, sections
from src.report.compare.varied import responses
from src.report.record import Case
from src.report.wandb_run import FIGURES
from src.system.colours import CURVES

SHARED = "case.model"  # a key that all runs of a comparison's group have with one value
TITLE = 128  # most letters that W&B takes
SIZE = {"w": 12, "h": 8}  # of a panel, in columns of 24 and rows


def workspaces() -> Any:
    """Returns W&B's module of reports. Raises UserError where it is not installed."""
    try:
        from wandb_workspaces.reports import v2
    except ImportError:
        raise UserError("a W&B report needs wandb-workspaces: pip install 'reprise[loggers]'") from None
    return v2


def report(
    comparison: Comparison, runs: Mapping[str, str], pictures: Sequence[str], project: str, entity: str, online: bool
) -> Any:
    """Returns the report of a comparison, not saved.

    Args:
        runs: the ids of the W&B runs by the sources of the comparison's.
        pictures: the names of those that the runs have.
        online: whether W&B is asked for the project, which must exist; else the run sets name no entity.
    """
    wr = workspaces()
    place = project, entity if online else ""
    picture = _grid(wr, comparison, runs, *place, _bars(wr, comparison, _answered(comparison)))
    blocks: list[Any] = [wr.MarkdownBlock(text=opening(comparison)), picture]
    if comparison.warnings:
        blocks.append(wr.MarkdownBlock(text="\n".join(f"- **Note:** {text}" for text in comparison.warnings)))
    for number, (title, text) in enumerate(sections(comparison)):
        blocks += [wr.H2(text=title), wr.MarkdownBlock(text=text)]
        if number == 0:
            blocks.append(_grid(wr, comparison, runs, *place, _panels(wr, comparison, pictures)))
    return wr.Report(project=project, entity=entity, title=comparison.title[:TITLE], blocks=blocks, width="fluid")


def specification(made: Any) -> str:
    """Returns a report as JSON: what `save` sends to W&B."""
    return made._to_model().model_dump_json(by_alias=True, exclude_none=True, indent=2) + "\n"


def _grid(
    wr: Any, comparison: Comparison, runs: Mapping[str, str], project: str, entity: str, panels: Sequence[Any]
) -> Any:
    """Returns panels over a run set for each group, in the group's colour, with its figures as its table's columns.

    Seeds of a group are one line with a band: they share their model, which the run set is grouped by.
    """
    names = {quantity.name for quantity in comparison.quantities}
    columns = [f"summary:{FIGURES}{name}" for name in COMPARED if name in names]
    groupby = [f"config.{SHARED}"] if _has_seeds(comparison) else []
    run_sets, colours = [], {}
    for i, group in enumerate(comparison.groups):
        ids, colour = [runs[run.source] for run in group.runs], CURVES[i % len(CURVES)]
        colours[wr.RunsetGroup(group.name, (wr.RunsetGroupKey(wr.Config(SHARED), group.case.model),))] = colour
        run_sets.append(
            wr.Runset(
                project=project, entity=entity, name=group.name, filters=f"ID in {ids}", groupby=groupby,
                run_settings={run_id: wr.RunSettings(color=colour) for run_id in ids}, pinned_columns=columns,
            )
        )  # fmt: skip
    return wr.PanelGrid(runsets=run_sets, panels=list(panels), custom_run_colors=colours if groupby else {})


def _has_seeds(comparison: Comparison) -> bool:
    return any(len(group.runs) > 1 for group in comparison.groups)


def _seeds_together(comparison: Comparison) -> dict[str, Any]:
    """Returns the settings of a plot that draws the mean of a run set, and the standard deviation around it."""
    together = {"aggregate": True, "groupby_aggfunc": "mean", "groupby_rangefunc": "stddev"}
    return together if _has_seeds(comparison) else {}


def _answered(comparison: Comparison) -> list[Quantity]:
    """Returns the quantities that the answer is about: final metric, rate and memory."""
    memory = [quantity for quantity in comparison.quantities if quantity.name == "mem"]
    return [*responses(comparison.quantities), *memory]


def _title(quantity: Quantity) -> str:
    """Returns a quantity's title with the unit that W&B's summary has it in: the record's."""
    return header(replace(quantity, unit="s") if quantity.unit == "ms" else quantity)


def _bars(wr: Any, comparison: Comparison, quantities: Sequence[Quantity]) -> list[Any]:
    """Returns bars of quantities from zero, a bar for each run set; of several seeds with the deviation."""
    seeds = _seeds_together(comparison)
    width = max(8, 24 // max(1, len(quantities)))
    return [
        wr.BarPlot(title=_title(quantity) + (": mean and standard deviation" if seeds else ""),
                   metrics=[wr.SummaryMetric(FIGURES + quantity.name)], layout=wr.Layout(w=width, h=SIZE["h"]), **seeds)
        for quantity in quantities
    ]  # fmt: skip


def _panels(wr: Any, comparison: Comparison, pictures: Sequence[str]) -> list[Any]:
    quantities = {quantity.name: quantity for quantity in comparison.quantities}
    panels = []
    if comparison.config and comparison.metric:
        logs = {axis.key for axis in comparison.axes if axis.log}
        columns = [
            wr.ParallelCoordinatesPlotColumn(
                metric=wr.Config(_config_key(difference.key)), display_name=difference.key, log=difference.key in logs
            )
            for difference in comparison.config
        ]
        columns += [
            wr.ParallelCoordinatesPlotColumn(metric=wr.SummaryMetric(FIGURES + quantity.name),
                                             display_name=_title(quantity))
            for quantity in responses(comparison.quantities)
        ]  # fmt: skip
        panels.append(wr.ParallelCoordinatesPlot(columns=columns, layout=wr.Layout(w=24, h=10)))
        if len(comparison.groups) > 2:
            panels.append(wr.ParameterImportancePlot(with_respect_to=FIGURES + "metric", layout=wr.Layout(w=24, h=8)))
    for metrics in curve_panels(comparison):
        panels += [
            wr.LinePlot(title=f"{' and '.join(metrics)} over {axis}", x=axis, y=list(metrics), title_x=unit,
                        layout=wr.Layout(**SIZE), **_seeds_together(comparison))
            for axis, unit in (("samples", comparison.unit), ("seconds", "s since the first step"))
        ]  # fmt: skip
    for x, y in [(rate, y) for y in ("metric", "mem") for rate in RATES]:
        if x in quantities and y in quantities:
            title = f"{quantities[y].title} over {quantities[x].title}"
            pair = {"x": wr.SummaryMetric(FIGURES + x), "y": wr.SummaryMetric(FIGURES + y)}
            panels.append(wr.ScatterPlot(title=title, **pair, layout=wr.Layout(**SIZE)))
    shown = {quantity.name for quantity in _answered(comparison)}
    panels += _bars(wr, comparison, [quantities[name] for name in COMPARED if name in {*quantities} - shown])
    if pictures:
        panels.append(wr.MediaBrowser(media_keys=list(pictures), layout=wr.Layout(w=24, h=12)))
    return panels


def _config_key(key: str) -> str:
    """Returns where a W&B run's config has a key that groups differ in."""
    return f"case.{key}" if key in {f.name for f in fields(Case)} else f"config.{key}"
