"""Reference convergence points: epochs to a target over seeds, in the form that MLCommons' rcp_checker reads.

Mean, deviation and pruning are as there: the mean leaves out the fastest and the slowest run, the deviation is over all
runs with n, and a batch goes that is slower than a larger one, or than its neighbours let expect.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, pstdev
from typing import Any

from src.errors import UserError
from src.report.compare.quantities import first_at, samples_of
from src.report.keys import compared_config, environment, mapping
from src.report.load import Loaded
from src.report.record import Record
from src.report.stability import ended
from src.report.table import aligned, number

LEAST = 3  # runs, of which the mean leaves out two
# What runs of one batch may differ in, beside what `compared_config` leaves out, and then runs of several batches.
ONE_BATCH = ("trainer", "hardware", "hp.batch_size", "hp.batch_per", "hp.accumulate")
SEVERAL = ("hp.", "fit.", "execution.", "measure.", "model.task.optimizer.", "model.task.schedule.")
ENDS_EARLY = ("max_steps", "max_time_s", "stop_at_target", "stop_after_plateau")  # before `fit.max_epochs`
HEADERS = ("model", "data", "metric", "target", "batch", "n", "epochs", "sd", "samples", "evaluated every", "pruned")


@dataclass(frozen=True, kw_only=True)
class Point:
    """The runs of one global batch.

    Attributes:
        epochs, samples: of each run, to its first evaluation at the target; an epoch has `steps` steps.
        every: epochs between two evaluations, the resolution of `epochs`.
    """

    record: Record
    batch: int
    target: float
    hyperparams: Mapping[str, Any]
    platform: str
    commits: str
    epochs: Sequence[float]
    samples: Sequence[float]
    every: float

    @property
    def mean(self) -> float:
        return fmean(sorted(self.epochs)[1:-1])

    @property
    def sd(self) -> float:
        return pstdev(self.epochs)


def points(loaded: Loaded, target: float | None = None) -> list[Point]:
    """Returns the convergence point of each global batch, the smallest first.

    Raises UserError for runs that cannot make one: without a metric or a target, of other cases, one seed twice, fewer
    than LEAST of a batch, or a target that one of them has not reached.

    Args:
        target: None: that of the runs.
    """
    runs = ended(loaded)
    batches: dict[int, list[tuple[str, Record]]] = {}
    for source, record in runs:
        batches.setdefault(global_batch(source, record), []).append((source, record))
        _check_same(runs[0], (source, record), lambda key: key.startswith(SEVERAL) or key in ONE_BATCH)
    return [_point(batch, batches[batch], target) for batch in sorted(batches)]


def _point(batch: int, runs: Sequence[tuple[str, Record]], target: float | None) -> Point:
    seeds: dict[object, str] = {}
    for source, record in runs:
        _check_same(runs[0], (source, record), lambda key: key in ONE_BATCH)
        if (seed := record.config.get("seed")) in seeds:
            raise UserError(f"{source} has the seed {seed} of {seeds[seed]}: give each seed once")
        seeds[seed] = source
    if len(runs) < LEAST:
        raise UserError(f"{len(runs)} runs of batch {batch}: a reference convergence point needs {LEAST} seeds or more")
    first = runs[0][1]
    target = _target(runs[0], target)
    rows = [(source, record, first_at(record, target)) for source, record in runs]
    if missed := [source for source, _, row in rows if row is None]:
        raise UserError(
            f"{len(missed)} of {len(runs)} runs of batch {batch} did not reach {target:g} ({', '.join(missed)}): "
            "give a --target that all have reached, or train them for longer"
        )
    steps = [steps_per_epoch(*run) for run in runs]
    reached = [(record, row) for _, record, row in rows if row is not None]
    return Point(
        record=first,
        batch=batch,
        target=target,
        hyperparams=hyperparams(first) | {"gradient_accumulation_steps": first.config["hp"].get("accumulate", 1)},
        platform=", ".join(dict.fromkeys(platform(record) for _, record in runs)),
        commits=", ".join(dict.fromkeys(environment(record).get("commit", "unknown") for _, record in runs)),
        epochs=[round(row["step"] / of_epoch, 3) for (_, row), of_epoch in zip(reached, steps, strict=True)],
        samples=[samples_of(record, row) or 0.0 for record, row in reached],
        every=max(_resolution(record) / of_epoch for (_, record), of_epoch in zip(runs, steps, strict=True)),
    )


def _target(run: tuple[str, Record], target: float | None) -> float:
    source, record = run
    if record.final_metric is None:
        raise UserError(f"{source} has no final metric: give runs that are evaluated")
    if target is None and (target := record.final_metric.target) is None:
        raise UserError(f"{source} has no target of {record.final_metric.name}: give one with --target")
    return float(target)


def _check_same(first: tuple[str, Record], run: tuple[str, Record], may_differ: Callable[[str], bool]) -> None:
    """Raises UserError where a run is of another case: in its metric, its target or a key that may not differ."""
    ours, theirs = (compared_config(record) | _metric(record) for _, record in (first, run))
    for key in {**ours, **theirs}:
        if ours.get(key) != theirs.get(key) and not may_differ(key):
            raise UserError(
                f"{run[0]} has {key}={theirs.get(key)}, {first[0]} {ours.get(key)}: give runs of one batch that differ "
                "in seed and hardware alone, or of several batches of one model, data and target"
            )


def _metric(record: Record) -> dict[str, str]:
    metric = record.final_metric
    return {} if metric is None else {"final_metric": metric.name, "target": str(metric.target)}


def global_batch(source: str, record: Record) -> int:
    """Returns the samples of an optimiser step. Raises UserError where the record does not say."""
    case, accumulate = record.case, mapping(record.config.get("hp")).get("accumulate") or 1
    if record.kind != "train" or case.batch_size is None:
        raise UserError(f"{source} is no training: give runs of train.py")
    return case.batch_size * (record.ranks if case.batch_per == "device" else 1) * accumulate


def steps_per_epoch(source: str, record: Record) -> float:
    """Returns the optimiser steps of an epoch: of a run of all epochs, from an epoch's evaluation, or by its config.

    Raises UserError where none of these tells.
    """
    fit, rows = mapping(record.config.get("fit")), [row for row in record.history if row.get("step")]
    epochs, epochs_between = fit.get("max_epochs") or -1, fit.get("eval_every_n_epochs")
    if rows and epochs > 0 and not any(fit.get(key) not in (None, False, -1) for key in ENDS_EARLY):
        return max([rows[-1]["step"], *(leg.last_step for leg in record.legs or ())]) / epochs
    if epochs_between and not fit.get("eval_every_n_steps"):
        for row in rows:
            if "loss" not in row and row.get("epoch") is not None and (row["epoch"] + 1) % epochs_between == 0:
                return row["step"] / (row["epoch"] + 1)
    if isinstance(steps := mapping(record.config.get("datamodule")).get("steps_per_epoch"), int):
        return steps
    raise UserError(
        f"{source} does not say how many steps an epoch has: give runs of all their fit.max_epochs, or evaluated every "
        "fit.eval_every_n_epochs"
    )


def _resolution(record: Record) -> float:
    """Returns the most steps from one evaluation of the final metric to the next, or from the start to the first."""
    assert record.final_metric is not None
    steps = sorted({row["step"] for row in record.history if row.get(record.final_metric.name) is not None} | {0})
    return max((after - before for before, after in pairwise(steps)), default=0)


def hyperparams(record: Record) -> dict[str, Any]:
    """Returns the optimiser and the rise and fall of its rate under the names of MLPerf's log."""
    task = mapping(mapping(record.config.get("model")).get("task"))
    optimizer, schedule = mapping(task.get("optimizer")), mapping(task.get("schedule"))
    name = str(optimizer.get("_target_")).rpartition(".")[2].lower()
    values: dict[str, Any] = {"opt_name": name, "opt_base_learning_rate": mapping(record.config.get("hp")).get("lr")}
    betas = optimizer.get("betas") or (None, None)
    values |= {f"opt_{name}_beta_{i}": beta for i, beta in enumerate(betas, 1)}
    values |= {f"opt_{name}_{key}": optimizer.get(of) for key, of in {"momentum": "momentum", "epsilon": "eps"}.items()}
    values |= {"opt_weight_decay": optimizer.get("weight_decay")}
    if schedule:
        values["opt_learning_rate_decay_schedule"] = str(schedule.get("_target_")).rpartition(".")[2]
        unit = schedule.get("interval") or "step"
        values[f"opt_learning_rate_warmup_{unit}s"] = schedule.get("warmup", schedule.get("warmup_steps"))
        values |= {f"opt_learning_rate_{key}": schedule.get(key) for key in ("decay_start_step", "decay_steps")}
    return {key: value for key, value in values.items() if value is not None}


def platform(record: Record) -> str:
    """Returns the number and the name of a run's devices, as '8x NVIDIA H200'."""
    values = environment(record)
    gpus = record.environment.get("gpus")
    name = gpus[0] if isinstance(gpus, list) and gpus else values.get("cpu", "unknown")
    return f"{record.ranks}x {name}"


def pruned(every: Sequence[Point]) -> list[Point]:
    """Returns the points that rcp_checker's pruning leaves out; the points are sorted by batch."""
    fastest = min(every, key=lambda point: point.mean)
    kept = [point for point in every if point.batch >= fastest.batch]
    i = 1
    while i < len(kept) - 1:
        low, point, high = kept[i - 1 : i + 2]
        share = (point.batch - low.batch) / (high.batch - low.batch)
        if point.mean > low.mean + share * (high.mean - low.mean):
            del kept[i]
        else:
            i += 1
    return [point for point in every if point not in kept]


def as_json(every: Sequence[Point], benchmark: str | None = None) -> str:
    """Returns the points as MLCommons' file, of which rcp_checker reads the benchmark, batch, optimiser and epochs.

    Args:
        benchmark: None: the model's name.
    """
    dropped = pruned(every)
    entries = {}
    for point in every:
        name = benchmark or point.record.case.model
        metric = point.record.final_metric
        entries[f"{name}_ref_{point.batch}"] = {
            "Benchmark": name,
            "Creator": "reprise",
            "When": f"commit {point.commits}",
            "Platform": point.platform,
            "Precision": point.record.case.precision,
            "BS": point.batch,
            "Hyperparams": {**point.hyperparams},
            "Epochs to converge": [*point.epochs],
            "RCP Mean": round(point.mean, 6),
            "RCP Stdev": round(point.sd, 6),
            "Samples to converge": [int(samples) for samples in point.samples],
            "Target": f"{metric.name if metric else ''} {point.target:g}",
            "Data": point.record.case.datamodule,
            "Epochs between evaluations": round(point.every, 3),
            "Pruned": point in dropped,
        }
    text = json.dumps(entries, indent=2) + "\n"
    return re.sub(r"\[[^][{}]*\]", lambda match: " ".join(match[0].split()).replace("[ ", "[").replace(" ]", "]"), text)


def as_table(every: Sequence[Point]) -> str:
    """Returns the points as Markdown."""
    dropped = pruned(every)
    lines: list[list[str]] = [[*HEADERS]]
    for point in every:
        case, metric = point.record.case, point.record.final_metric
        figures = (point.mean, point.sd, fmean(sorted(point.samples)[1:-1]), point.every)
        epochs, sd, samples, interval = map(number, figures)
        lines.append(
            [case.model, case.datamodule, metric.name if metric else "", f"{point.target:g}", str(point.batch),
             str(len(point.epochs)), epochs, sd, samples, interval, "yes" if point in dropped else ""]
        )  # fmt: skip
    words = [
        "Epochs and samples to the target: the mean without the fastest and the slowest of n seeds; sd, in epochs, is",
        "over all n. A run counts from its first evaluation at the target: evaluations, in epochs, are the resolution.",
    ]
    if coarse := [str(point.batch) for point in every if point.sd == 0]:
        words.append(f"All runs of batch {', '.join(coarse)} reached it at one evaluation: their spread is below that.")
    return "\n".join([*aligned(lines, [True, True, True] + [False] * 7 + [True]), "", *words]) + "\n"
