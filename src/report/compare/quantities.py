"""The figures of a record that runs are compared by, with their units and which values are better."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

from src.measure.intervals import welch_interval
from src.report.compare.structure import Direction, Estimate, Quantity
from src.report.digits import rounded, shown
from src.report.record import Figure, Record

RATES = ("p_steady", "throughput")  # the first that runs have is their speed


def quantities(record: Record) -> list[Quantity]:
    """Returns the quantities of runs like this one, in the order of their columns."""
    rate, metric = f"{record.unit}/s", record.final_metric
    of_metric = []
    if metric:
        of_metric.append(Quantity(name="metric", title=metric.name, unit="", better=direction(record)))
        of_metric.append(Quantity(name="seconds_to_target", title="time to target", unit="s", better="min"))
        of_metric.append(Quantity(name="samples_to_target", title="samples to target", unit=record.unit, better="min"))
    return [
        *of_metric,
        Quantity(name="p_steady", title="p_steady", unit=rate, better="max"),
        Quantity(name="p_core", title="p_core", unit=rate, better="max"),
        Quantity(name="p_train", title="p_train", unit=rate, better="max"),
        Quantity(name="p_whole", title="p_whole", unit=rate, better="max"),
        Quantity(name="throughput", title="throughput", unit=rate, better="max"),
        Quantity(name="with_loading", title="with loading", unit=rate, better="max"),
        Quantity(name="step_p50", title="step p50", unit="ms", better="min", factor=1e3),
        Quantity(name="step_p99", title="step p99", unit="ms", better="min", factor=1e3),
        Quantity(name="latency_p50", title="latency p50", unit="ms", better="min", factor=1e3),
        Quantity(name="latency_p99", title="latency p99", unit="ms", better="min", factor=1e3),
        Quantity(name="e2e_time_s", title="e2e_time", unit="s", better="min"),
        Quantity(name="first_step_s", title="first step", unit="s", better="min"),
        Quantity(name="mem", title="memory", unit="GiB", better="min"),
        Quantity(name="of_peak_flops", title="of peak FLOP/s", unit="%", better="max", factor=100),
        Quantity(name="of_peak_bandwidth", title="of peak bandwidth", unit="%", better="max", factor=100),
        Quantity(name="samples_per_joule", title="energy", unit=f"{record.unit}/J", better="max"),
    ]


def figures(record: Record) -> dict[str, Figure]:
    """Returns the figures of a record by the quantities' names; None for those it has not."""
    steady, latency, used = record.steady, record.latency_s, record.utilisation
    seconds, samples = to_target(record)
    return {
        "metric": record.final_metric.value if record.final_metric else None,
        "seconds_to_target": seconds,
        "samples_to_target": samples,
        "p_steady": steady.p_train if steady else None,
        "p_core": record.p_core,
        "p_train": record.p_train,
        "p_whole": record.p_whole,
        "throughput": record.throughput,
        "with_loading": record.with_loading.throughput if record.with_loading else None,
        "step_p50": steady.step_time_s.p50 if steady else None,
        "step_p99": steady.step_time_s.p99 if steady else None,
        "latency_p50": latency.p50 if latency else None,
        "latency_p99": latency.p99 if latency else None,
        "e2e_time_s": record.e2e_time_s,
        "first_step_s": record.start.first_step_s if record.start else None,
        "mem": record.mem.peak_reserved_gib if record.mem else None,
        "of_peak_flops": used.of_peak_flops if used else None,
        "of_peak_bandwidth": used.of_peak_bandwidth if used else None,
        "samples_per_joule": record.energy.samples_per_joule if record.energy else None,
    }


def estimates(every: Sequence[Mapping[str, Figure]]) -> dict[str, Estimate]:
    """Returns the estimate of each figure over the runs that have it; `every` holds the figures of each run."""
    names = dict.fromkeys(name for run in every for name in run)
    values = {name: [float(run[name] or 0) for run in every if run.get(name) is not None] for name in names}
    return {
        name: Estimate(values=numbers, mean=fmean(numbers), sd=stdev(numbers) if len(numbers) > 1 else None)
        for name, numbers in values.items()
        if numbers
    }


def against(estimate: Estimate, base: Estimate | None) -> Estimate:
    """Returns the estimate with its difference from a baseline's, the interval of that, and the ratio."""
    if base is None:
        return estimate
    low, high = welch_interval(estimate.values, base.values) or (None, None)
    ratio = estimate.mean / base.mean if base.mean else None
    return replace(estimate, difference=estimate.mean - base.mean, low=low, high=high, ratio=ratio)


def direction(record: Record) -> Direction | None:
    """Returns which values of the final metric are better; None without a metric.

    Older records do not say it: of their metrics less was better for mean absolute errors alone.
    """
    metric = record.final_metric
    return (metric.direction or ("min" if "mae" in metric.name else "max")) if metric else None


def to_target(record: Record) -> tuple[float | None, float | None]:
    """Returns the seconds since the first step, and the samples, of the first evaluation that reached the target.

    (None, None) where it was not reached, or there is no target.
    """
    metric = record.final_metric
    row = None if metric is None or metric.target is None else first_at(record, float(metric.target))
    return (None, None) if row is None else (seconds_of(record, row), samples_of(record, row))


def first_at(record: Record, target: float) -> Mapping[str, Any] | None:
    """Returns the row of the first evaluation whose final metric is at least as good as a value; None without one."""
    name, better = record.final_metric.name if record.final_metric else "", direction(record)
    for row in record.history:
        value = row.get(name)
        if value is not None and (value >= target if better == "max" else value <= target):
            return row
    return None


def seconds_of(record: Record, row: Mapping[str, Any]) -> float | None:
    """Returns the seconds since the first step of a row of the history; older rows have the time of the process."""
    if row.get("seconds") is not None:
        return float(row["seconds"])
    time, startup = row.get("time_s"), record.phases_s.get("startup")
    return None if time is None or startup is None else max(0.0, time - startup)


def samples_of(record: Record, row: Mapping[str, Any]) -> float | None:
    """Returns the samples trained until a row of the history; of older rows its step's share of the run's."""
    if row.get("samples") is not None:
        return float(row["samples"])
    last = max((entry.get("step") or 0 for entry in record.history), default=0)
    step = row.get("step")
    return None if step is None or not last or record.samples is None else record.samples * step / last


def header(quantity: Quantity) -> str:
    """Returns a quantity's title with its unit, unless the title has it already."""
    return quantity.title if quantity.unit in (*quantity.title.split(" "), "") else f"{quantity.title}, {quantity.unit}"


def spread(estimate: Estimate, quantity: Quantity) -> str:
    """Returns 'mean ± sd' in the printed unit, both to the deviation's second digit."""
    mean, sd = estimate.mean * quantity.factor, (estimate.sd or 0.0) * quantity.factor
    if estimate.sd is None:
        return shown(mean)
    return " ± ".join(rounded((mean, sd), sd))
