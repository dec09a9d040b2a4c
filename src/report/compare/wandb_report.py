"""A comparison as a W&B report: its tables as Markdown, and panels over the W&B runs of its groups.

The tables are those of the Markdown view. Panels are drawn by W&B from what the runs hold; see `src.report.wandb_run`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from src.errors import UserError
from src.report.compare.structure import Comparison
from src.report.compare.text import COMPARED, opening, sections
from src.report.record import Case
from src.report.wandb_run import FIGURES
from src.system.colours import CURVES

RATES = ("p_steady", "throughput")
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
    blocks: list[Any] = [wr.MarkdownBlock(text=opening(comparison))]
    if comparison.warnings:
        blocks.append(wr.MarkdownBlock(text="\n".join(f"- **Note:** {text}" for text in comparison.warnings)))
    for number, (title, text) in enumerate(sections(comparison)):
        blocks += [wr.H2(text=title), wr.MarkdownBlock(text=text)]
        if number == 0:
            grid = wr.PanelGrid(
                runsets=_run_sets(wr, comparison, runs, project, entity if online else ""),
                panels=_panels(wr, comparison, pictures),
            )
            blocks.append(grid)
    return wr.Report(project=project, entity=entity, title=comparison.title[:TITLE], blocks=blocks, width="fluid")


def specification(made: Any) -> str:
    """Returns a report as JSON: what `save` sends to W&B."""
    return made._to_model().model_dump_json(by_alias=True, exclude_none=True, indent=2) + "\n"


def _run_sets(wr: Any, comparison: Comparison, runs: Mapping[str, str], project: str, entity: str) -> list[Any]:
    """Returns a run set for each group, its runs in the group's colour."""
    run_sets = []
    for i, group in enumerate(comparison.groups):
        ids = [runs[run.source] for run in group.runs]
        colours = {run_id: wr.RunSettings(color=CURVES[i % len(CURVES)]) for run_id in ids}
        run_sets.append(
            wr.Runset(project=project, entity=entity, name=group.name, filters=f"ID in {ids}", run_settings=colours)
        )
    return run_sets


def _panels(wr: Any, comparison: Comparison, pictures: Sequence[str]) -> list[Any]:
    quantities = {quantity.name: quantity for quantity in comparison.quantities}
    panels = [
        wr.LinePlot(title=f"{metric} over {axis}", x=axis, y=[metric], title_x=unit, layout=wr.Layout(**SIZE))
        for metric in dict.fromkeys(curve.metric for curve in comparison.curves)
        for axis, unit in (("samples", comparison.unit), ("seconds", "s since the first step"))
    ]
    for x, y in [(rate, y) for y in ("metric", "mem") for rate in RATES]:
        if x in quantities and y in quantities:
            title = f"{quantities[y].title} over {quantities[x].title}"
            pair = {"x": wr.SummaryMetric(FIGURES + x), "y": wr.SummaryMetric(FIGURES + y)}
            panels.append(wr.ScatterPlot(title=title, **pair, layout=wr.Layout(**SIZE)))
    for name in (name for name in COMPARED if name in quantities):
        title = f"{quantities[name].title}, {quantities[name].unit}".rstrip(", ")
        panels.append(wr.BarPlot(title=title, metrics=[FIGURES + name], layout=wr.Layout(**SIZE)))
    if comparison.config and comparison.metric:
        columns = [
            wr.ParallelCoordinatesPlotColumn(metric=wr.Config(_config_key(difference.key)), display_name=difference.key)
            for difference in comparison.config
        ]
        last = wr.ParallelCoordinatesPlotColumn(
            metric=wr.SummaryMetric(FIGURES + "metric"), display_name=quantities["metric"].title
        )
        panels.append(wr.ParallelCoordinatesPlot(columns=[*columns, last], layout=wr.Layout(w=24, h=8)))
    if pictures:
        panels.append(wr.MediaBrowser(media_keys=list(pictures), layout=wr.Layout(w=24, h=12)))
    return panels


def _config_key(key: str) -> str:
    """Returns where a W&B run's config has a key that groups differ in."""
    return f"case.{key}" if key in {f.name for f in fields(Case)} else f"config.{key}"
