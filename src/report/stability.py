"""The spread of a case's metrics over its seeds, at each evaluation, beside published spreads."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean, median, stdev

from omegaconf import OmegaConf

from src.errors import UserError
from src.report.compare.quantities import figures, header, quantities
from src.report.digits import rounded
from src.report.keys import compared_config
from src.report.load import Loaded
from src.report.record import Figure, Record
from src.report.table import aligned
from src.report.typed import build
from src.system.tables import csv_text

PUBLISHED = Path(__file__).parents[1] / "published" / "stability"
HEADERS = ("metric", "at", "n", "mean", "sd", "min", "max", "median", "source")
FIGURES = ("metric", "seconds_to_target", "samples_to_target", "p_steady", "e2e_time_s")  # of whole runs
SKIPPED = ("step", "epoch", "time_s", "samples", "seconds")


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The values of a metric over the seeds of a case; `at` is 'step 420', 'epoch 300', or 'the end' of the run."""

    metric: str
    at: str
    n: int
    mean: float | int
    sd: Figure = None
    min: Figure = None
    max: Figure = None
    median: Figure = None
    source: str = ""


def stability(loaded: Loaded) -> list[Spread]:
    """Returns the spreads of the runs that ended normally, by metric and step, then the published ones of the model.

    A single run has values and no spread.

    Raises UserError where no run ended normally, and where the runs are of several cases or repeat a seed.
    """
    runs = ended(loaded)
    first_source, first = runs[0]
    seeds: dict[object, str] = {}
    for source, record in runs:
        if compared_config(record) != compared_config(first):
            raise UserError(
                f"{source} is of another case than {first_source}: give runs that differ in their seed alone"
            )
        seed = record.config.get("seed")
        if seed in seeds:
            raise UserError(f"{source} has the seed {seed} of {seeds[seed]}: give each seed once")
        seeds[seed] = source
    records = [record for _, record in runs]
    spreads = [*_whole(records), *_by_step(records)]
    return spreads + published(first.case.model, {spread.metric for spread in spreads})


def ended(loaded: Loaded) -> list[tuple[str, Record]]:
    """Returns the runs that ended normally, with their sources. Raises UserError where there is none."""
    if runs := [(source, record) for source, record in loaded.runs if record.status == "done"]:
        return runs
    raise UserError("none of these runs ended normally: give those of the seeds of one case")


def published(model: str, metrics: set[str]) -> list[Spread]:
    """Returns the published spreads of a model, those of the given metrics; "uniqueness of 100" is of uniqueness."""
    file = PUBLISHED / f"{model}.yaml"
    if not file.exists():
        return []
    tables = OmegaConf.to_container(OmegaConf.load(file))
    assert isinstance(tables, list)
    spreads = []
    for table in tables:
        shared = {key: value for key, value in table.items() if key not in ("columns", "rows")}
        for row in table["rows"]:
            values = shared | dict(zip(table["columns"], row, strict=True))
            spreads.append(build(Spread, values, optional=[f.name for f in fields(Spread)]))
    return [spread for spread in spreads if spread.metric.partition(" of ")[0] in metrics]


def stability_table(spreads: Sequence[Spread], view: str) -> str:
    """Returns the spreads as Markdown, or as csv with figures at full length."""
    if view == "csv":
        return csv_text([[f.name for f in fields(Spread)], *(list(asdict(spread).values()) for spread in spreads)])
    lines: list[list[str]] = [[*HEADERS]]
    for spread in spreads:
        values = (spread.mean, spread.sd, spread.min, spread.max, spread.median)
        texts = ["/" if value is None else rounded([value], spread.sd)[0] for value in values]
        lines.append([spread.metric, spread.at, str(spread.n), *texts, spread.source])
    text = [header in ("metric", "at", "source") for header in HEADERS]
    legend = "sd is the sample standard deviation over n runs (n - 1)."
    return "\n".join([*aligned(lines, text), "", legend]) + "\n"


def _whole(records: Sequence[Record]) -> list[Spread]:
    by_run = [figures(record) for record in records]
    spreads = []
    for quantity in quantities(records[0]):
        values = [float(run[quantity.name] or 0) for run in by_run if run[quantity.name] is not None]
        if quantity.name in FIGURES and values:
            spreads.append(_spread(header(quantity), "the end", values))
    return spreads


def _by_step(records: Sequence[Record]) -> list[Spread]:
    """Returns the spreads of the evaluations' metrics, at each step at which every run was evaluated."""
    every = [evaluations(record) for record in records]
    metrics = dict.fromkeys(metric for values in every for metric, _ in values)
    shared = set.intersection(*(set(values) for values in every))
    return [
        _spread(metric, f"step {step}", [values[metric, step] for values in every])
        for metric in metrics
        for step in sorted(step for name, step in shared if name == metric)
    ]


def evaluations(record: Record) -> dict[tuple[str, int], float]:
    """Returns the metrics of a run's evaluations, by metric and step; the last at a step counts."""
    rows = [(row, step) for row in record.history if "loss" not in row and (step := row.get("step")) is not None]
    return {
        (name, int(step)): float(value)
        for row, step in rows
        for name, value in row.items()
        if name not in SKIPPED and value is not None
    }


def _spread(metric: str, at: str, values: Sequence[float]) -> Spread:
    return Spread(
        metric=metric, at=at, n=len(values), mean=fmean(values), sd=stdev(values) if len(values) > 1 else None,
        min=min(values), max=max(values), median=median(values),
    )  # fmt: skip
