"""Builds the comparison of records: groups of seeds, their estimates, differences, warnings and curves."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from src.errors import UserError
from src.measure.phases import PHASES
from src.report.compare.differences import differing, joined
from src.report.compare.hindrances import count, hindered
from src.report.compare.pictures import pictures
from src.report.compare.quantities import against, estimates, figures, quantities, samples_of, seconds_of
from src.report.compare.structure import Comparison, Curve, Difference, Failure, Group, Quantity, Run
from src.report.compare.varied import axes, parallel
from src.report.digits import short_value
from src.report.keys import compared_config, environment
from src.report.load import Loaded
from src.report.record import Record
from src.report.rows import same_case_rows
from src.report.scaling import Point, published_points, speed_ups, suspicions

Runs = Sequence[tuple[str, Record]]
NAMES = {"train": "training", "predict": "prediction"}
PERCENTILES = ("p50", "p90", "p95", "p99")
NOT_A_CURVE = ("step", "epoch", "time_s", "samples", "seconds")


def compare(loaded: Loaded, published: bool = True, curves: Sequence[str] | None = None) -> Comparison:
    """Returns the comparison of records of one kind and unit, the first one's group as the baseline.

    Args:
        published: whether at most three published rows of the same cases stand beside them.
        curves: the metrics to draw; None: the final metric, the losses and the rate.

    Raises UserError where kinds, units or final metrics differ: their figures cannot stand in one column.
    """
    runs = list(loaded.runs)
    first = runs[0][1]
    for source, record in runs[1:]:
        _check_same(runs[0][0], first, source, record)
    members = _groups(runs)
    configs = [compared_config(group[0][1]) for group in members]
    config, partial = differing(configs)
    names = _names(config, len(members))
    groups = [_group(group, i, config, names[i]) for i, group in enumerate(members)]
    measured = [quantity for quantity in quantities(first) if any(quantity.name in group.estimates for group in groups)]
    groups = [_with_differences(group, groups[0]) for group in groups]
    metric = measured[0] if measured and measured[0].name == "metric" else None
    target = first.final_metric.target if first.final_metric else None
    environments = [joined([environment(record) for _, record in group]) for group in members]
    machine, _ = differing(environments)
    done = [record for _, record in runs if record.status == "done"]
    varied, best = axes(config, naming(config), groups), _best(groups, metric)
    drawn, left_out = pictures(groups, best)
    points = _scaling(runs, published)
    hindrances, notes = hindered(members, groups, config, machine, partial)
    return Comparison(
        title=_title(runs, groups),
        models=list(dict.fromkeys(record.case.model for _, record in runs)),
        kind=first.kind,
        unit=first.unit,
        quantities=measured,
        groups=groups,
        metric=metric.name if metric else None,
        target=target,
        best=best,
        config=config,
        environment=machine,
        warnings=[*notes, *suspicions(points)],
        hindrances=hindrances,
        failures=_failures(loaded, groups),
        curves=_curves(members, curves),
        published=same_case_rows(done) if published and done else [],
        axes=varied,
        parallel=parallel(varied, groups, measured),
        scaling=points,
        pictures=drawn,
        left_out=left_out,
    )


def compare_each(loaded: Loaded, published: bool = True) -> list[Comparison]:
    """Returns the comparison of all records, or one for each model where these cannot stand in one table."""
    try:
        return [compare(loaded, published)]
    except UserError:
        parts = _by_model(loaded)
        if len(parts) == 1:
            raise
        return [compare(part, published) for part in parts]


def _by_model(loaded: Loaded) -> list[Loaded]:
    """Returns the runs of each model, kind, unit and final metric; one that ended without a metric joins its model's.

    Jobs without a record are in the first part.
    """
    parts: dict[tuple[str, ...], list[tuple[str, Record]]] = {}
    metrics: dict[tuple[str, ...], str] = {}
    for _, record in loaded.runs:
        if record.final_metric:
            metrics.setdefault((record.kind, record.unit, record.case.model), record.final_metric.name)
    for source, record in loaded.runs:
        what = record.kind, record.unit, record.case.model
        metric = record.final_metric.name if record.final_metric else metrics.get(what, "")
        parts.setdefault((*what, metric), []).append((source, record))
    first, *others = parts.values()
    return [replace(loaded, runs=first), *(replace(loaded, runs=runs, without=[]) for runs in others)]


def _check_same(source: str, first: Record, other: str, record: Record) -> None:
    """Raises UserError where two records cannot stand in one table."""
    ours, theirs = ((r.kind, r.unit, r.final_metric.name if r.final_metric else None) for r in (first, record))
    if ours[:2] != theirs[:2]:
        raise UserError(
            f"{other} is a {NAMES[theirs[0]]} of {theirs[1]}, {source} a {NAMES[ours[0]]} of {ours[1]}: "
            "compare runs of one kind and unit"
        )
    if None not in (ours[2], theirs[2]) and ours[2] != theirs[2]:
        raise UserError(f"{other} ends with {theirs[2]}, {source} with {ours[2]}: compare runs of one metric")


def _groups(runs: Runs) -> list[list[tuple[str, Record]]]:
    """Returns the runs by config, whatever their seed, in the order of their first."""
    groups: dict[tuple[tuple[str, str], ...], list[tuple[str, Record]]] = {}
    for source, record in runs:
        groups.setdefault(tuple(sorted(compared_config(record).items())), []).append((source, record))
    return list(groups.values())


def _group(members: Runs, index: int, config: Sequence[Difference], name: str) -> Group:
    runs = [
        Run(source=source, status=record.status, seed=record.config.get("seed"), figures=figures(record),
            reason=_reason(record), command=str(record.environment.get("command") or ""), reading=record.reading,
            quality=record.quality or (), classes=record.classes or (), calibration=record.calibration or ())
        for source, record in members
    ]  # fmt: skip
    varied = {difference.key: difference.values[index] for difference in config}
    case, done = members[0][1].case, [record for _, record in members if record.status == "done"]
    return Group(
        name=name or f"{case.model}, {case.precision}",
        case=case,
        runs=runs,
        varied=varied,
        estimates=estimates([run.figures for run in runs if run.status == "done"]),
        phases=_mean_phases(done),
        percentiles=_mean_percentiles(done),
    )


def _names(config: Sequence[Difference], count: int) -> list[str]:
    """Returns the groups' names, of the values that tell them apart; long numbers are rounded if that still does."""
    keys = [(difference.key.rpartition(".")[2], difference.values) for difference in naming(config)]
    full = [" ".join(f"{key}={values[i]}" for key, values in keys) for i in range(count)]
    rounded = [" ".join(f"{key}={short_value(values[i])}" for key, values in keys) for i in range(count)]
    return rounded if len(set(rounded)) == len(set(full)) else full


def _with_differences(group: Group, base: Group) -> Group:
    """Returns the group with the differences of its estimates from the baseline's."""
    if group is base:
        return group
    return replace(
        group,
        estimates={name: against(estimate, base.estimates.get(name)) for name, estimate in group.estimates.items()},
    )


def _best(groups: Sequence[Group], metric: Quantity | None) -> int | None:
    means = {i: group.estimates["metric"].mean for i, group in enumerate(groups) if "metric" in group.estimates}
    if metric is None or metric.better is None or len(means) < 2:
        return None
    best = (max if metric.better == "max" else min)(means.values())
    tied = [i for i, mean in means.items() if mean == best]
    return tied[0] if len(tied) == 1 else None


def _failures(loaded: Loaded, groups: Sequence[Group]) -> list[Failure]:
    ended = [
        Failure(source=run.source, varied=group.name, status=run.status, reason=run.reason)
        for group in groups
        for run in group.runs
        if run.status != "done"
    ]
    return ended + [Failure(source=s, varied=v, status=status, reason=why) for s, v, status, why in loaded.without]


def _reason(record: Record) -> str:
    error = record.error
    return f"{error.type}: {' '.join(error.message.split())}" if error else ""


def naming(config: Sequence[Difference]) -> list[Difference]:
    """Returns the first differing keys whose values together tell every group from the others."""
    kept: list[Difference] = []
    told: set[tuple[str, ...]] = {()}
    for difference in config:
        now = set(zip(*(key.values for key in (*kept, difference)), strict=True))
        if len(now) > len(told):
            kept, told = [*kept, difference], now
    return kept


def _mean_phases(records: Sequence[Record]) -> dict[str, float]:
    times = [record.phases_s for record in records if record.phases_s]
    return {name: fmean(float(seconds.get(name) or 0) for seconds in times) for name in PHASES} if times else {}


def _mean_percentiles(records: Sequence[Record]) -> dict[str, float]:
    """Returns the means of each percentile over the runs that have it."""
    times = [record.steady.step_time_s if record.steady else record.latency_s for record in records]
    every = {
        name: [value for time in times if (value := getattr(time, name, None)) is not None] for name in PERCENTILES
    }
    return {name: fmean(values) for name, values in every.items() if values}


def _scaling(runs: Runs, published: bool) -> list[Point]:
    points = speed_ups([(source, record) for source, record in runs if record.status == "done"])
    models = list(dict.fromkeys(point.model for point in points))
    return points + [point for model in models if published for point in published_points(model)]


def _curves(members: Sequence[Runs], wanted: Sequence[str] | None) -> list[Curve]:
    """Returns the curves of the wanted metrics, those of all runs of one metric beside each other."""
    names = list(wanted) if wanted is not None else _usual_curves(members)
    curves = []
    for metric in names:
        for i, runs in enumerate(members):
            for source, record in runs:
                rows = [(row, value) for row in record.history if (value := row.get(metric)) is not None]
                if rows:
                    curves.append(
                        Curve(group=i, source=source, metric=metric, values=[float(value) for _, value in rows],
                              samples=[samples_of(record, row) for row, _ in rows],
                              seconds=[seconds_of(record, row) for row, _ in rows])
                    )  # fmt: skip
    return curves


def _usual_curves(members: Sequence[Runs]) -> list[str]:
    """Returns the final metric, the loss and its parts, and the rate, as far as the histories have them."""
    first = members[0][0][1]
    there = dict.fromkeys(key for runs in members for _, record in runs for row in record.history for key in row)
    metric = first.final_metric.name if first.final_metric else None
    parts = [key for key in there if key.startswith(("bits_", "val_"))]
    usual = [metric, "loss", *parts, f"{first.unit}_per_s"]
    return [name for name in dict.fromkeys(usual) if name in there and name not in NOT_A_CURVE]


def _title(runs: Runs, groups: Sequence[Group]) -> str:
    models = list(dict.fromkeys(record.case.model for _, record in runs))
    data = list(dict.fromkeys(record.case.datamodule for _, record in runs))
    counts = [count(len(runs), "run"), *([count(len(groups), "group")] if len(groups) > 1 else [])]
    return f"{', '.join(models)} on {', '.join(data)}: {', '.join(counts)}"
