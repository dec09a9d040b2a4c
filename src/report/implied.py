"""What the fields of a record, and of a comparison in turns, imply of each other."""

import operator
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import NamedTuple

from src.measure.raw_times import UNIT_S, unpacked
from src.measure.statistics import percentiles
from src.report.in_turn import Comparison, from_turns
from src.report.keys import mapping
from src.report.record import Percentiles, ReachedMetric, Record, Times

EQUAL = 1e-6  # of a quotient that the record has at full length
CLOCKS = 2e-3  # of seconds that two clocks count, or that are read at slightly different moments
WRITING, WRITING_S = 0.02, 5.0  # from the last mark of the clock to the record: of the wall time, and seconds
ROUNDED = 1e-4  # of sums of times that are kept in tenths of a microsecond
WINDOWS = 0.1  # of the steady rate and the median of the windows' rates
SPREAD = 0.25  # of a median step, whose rate the own record of ours has beside the turns
PERCENTS = ("p50", "p90", "p95", "p99")
SHARES, OUTLIER = (0.5, 0.4, 0.05, 0.04), 10  # of steps up to each percentile; the mean of the rest over p99


class Check(NamedTuple):
    """A statement that must hold, in words of what is wrong where it does not; `holds` is None if it is not known."""

    what: str
    holds: bool | None


def same(what: str, value: float | None, other: float | None, tolerance: float = EQUAL) -> Iterator[Check]:
    """Yields whether two figures are equal; nothing where one is not there."""
    if value is not None and other is not None:
        holds = abs(value - other) <= tolerance * max(abs(value), abs(other))
        yield Check(f"{what} is {value:.6g}, by its other fields {other:.6g}", holds)


def ordered(what: str, values: Sequence[float | None], tolerance: float = EQUAL) -> Iterator[Check]:
    """Yields whether the figures that are there do not fall."""
    there = [value for value in values if value is not None]
    if len(there) > 1:
        yield Check(f"{what} are not in order", all(a <= b + tolerance * abs(b) for a, b in pairwise(there)))


def record_checks(record: Record) -> Iterator[Check]:
    """Yields the checks of a record, and what cannot be checked."""
    yield from _case(record)
    yield from _utilisation(record)
    yield from _memory(record)
    yield from _metric(record)
    yield from _tokens(record)
    yield from (_training if record.kind == "train" else _prediction)(record)
    if record.times is not None:
        yield from _recomputed(record, record.times)
    elif record.throughput is not None or record.p_train is not None:
        yield Check("its rates and percentiles, computed again: no times of steps were kept", None)


def _case(record: Record) -> Iterator[Check]:
    case, config = record.case, record.config
    for name, key in (("model", "model"), ("datamodule", "datamodule"), ("precision", "precision")):
        kept = mapping(config.get(key)).get("name")
        if kept is not None:
            yield Check(f"case.{name} is {getattr(case, name)}, its config's {kept}", kept == getattr(case, name))
    nodes, _, devices = case.trainer.partition("x")
    if nodes.isdecimal() and devices.isdecimal():
        yield Check(f"ranks is {record.ranks} of {case.trainer}", int(nodes) * int(devices) == record.ranks)
    batch = config.get("batch_size") if record.kind == "predict" else mapping(config.get("hp")).get("batch_size")
    if batch is not None:
        yield Check(f"case.batch_size is {case.batch_size}, its config's {batch}", batch == case.batch_size)


def _utilisation(record: Record) -> Iterator[Check]:
    used, hardware = record.utilisation, mapping(record.config.get("hardware"))
    if used is None:
        return
    for share, reached, peak, name in (
        (used.of_peak_flops, used.flops_per_s, used.peak_flops_per_s, "of_peak_flops"),
        (used.of_peak_bandwidth, used.bytes_per_s, used.peak_bytes_per_s, "of_peak_bandwidth"),
    ):
        if reached is not None and peak:
            yield from same(f"utilisation.{name}", share, reached / peak)
    if used.peak_source == "datasheet":
        peaks = [value for value in mapping(hardware.get("peak_flops")).values() if isinstance(value, int | float)]
        yield Check("utilisation.peak_flops_per_s is no peak of its config", used.peak_flops_per_s in [None, *peaks])
        yield from same("utilisation.peak_bytes_per_s", used.peak_bytes_per_s, hardware.get("peak_bandwidth"))


def _memory(record: Record) -> Iterator[Check]:
    mem = record.mem
    if mem:
        yield from ordered("mem: allocated, reserved, total", [
            mem.peak_allocated_gib, mem.peak_reserved_gib, mem.total_gib
        ])  # fmt: skip
        yield from ordered("mem: free, total", [mem.free_gib, mem.total_gib])


def _metric(record: Record) -> Iterator[Check]:
    metric = record.final_metric
    if metric is None or metric.value is None:
        return
    values = [row[metric.name] for row in record.history if row.get(metric.name) is not None]
    if values:
        yield Check(f"final_metric.value is {metric.value}, none of its history", metric.value in values)
    elif record.kind == "train":
        yield Check("its final metric: the history has none", None)
    yield from _reached(metric)


def _reached(metric: ReachedMetric) -> Iterator[Check]:
    if None not in (metric.value, metric.target, metric.reached, metric.direction):
        value, target = float(metric.value or 0), float(metric.target or 0)
        reached = value >= target if metric.direction == "max" else value <= target
        yield Check(f"final_metric.reached is {metric.reached} of {value} and {target}", reached == metric.reached)


def _tokens(record: Record) -> Iterator[Check]:
    tokens = record.tokens
    rate = record.throughput if record.kind == "predict" else record.steady.p_train if record.steady else record.p_train
    if tokens is None or not tokens.real_per_sample or not tokens.processed_per_sample:
        return
    yield from same("tokens.padding_share + 1", 1 + (tokens.padding_share or 0),
                    2 - tokens.real_per_sample / tokens.processed_per_sample)  # fmt: skip
    if rate:
        yield from same("tokens.real_per_s", tokens.real_per_s, rate * tokens.real_per_sample)
        yield from same("tokens.processed_per_s", tokens.processed_per_s, rate * tokens.processed_per_sample)


def _percentiles(name: str, times: Percentiles | None) -> Iterator[Check]:
    if times:
        yield from ordered(f"the percentiles of {name}", [getattr(times, part) for part in PERCENTS])


def _training(record: Record) -> Iterator[Check]:
    steady, samples = record.steady, record.samples
    yield from ordered("p_whole, p_train and p_core", [record.p_whole, record.p_train, record.p_core])
    for name, over in (record.rates_over_ranks or {}).items():
        yield from ordered(f"rates_over_ranks.{name}", [over.get("min"), over.get("mean"), over.get("max")])
        if over.get("mean") is not None:
            yield from same(name, getattr(record, name, None), float(over["mean"] or 0) * record.ranks)
    yield from _phases(record)
    if record.energy and record.energy.joules and samples:
        yield from same("energy.samples_per_joule", record.energy.samples_per_joule, samples / record.energy.joules)
    one_leg = len(record.legs or ()) < 2
    for key in ("step", "time_s", "samples", "seconds") if one_leg else ():
        yield from ordered(f"the history's {key}", [row.get(key) for row in record.history])
    last = max((float(row.get("samples") or 0) for row in record.history), default=0)
    if samples and last and one_leg:
        yield Check(f"samples is {samples}, its history ends at {last:.0f}", 0.9 * last <= samples <= 1.1 * last)
    if steady:
        yield from ordered("steady.p_train and steady.p_core", [steady.p_train, steady.p_core])
        yield from _percentiles("step_time_s", steady.step_time_s)
        if record.times is None:
            yield from _steps(record)


def _phases(record: Record) -> Iterator[Check]:
    """Yields checks of the first rank's phases and the rates over all steps; those of several legs add up alike."""
    phases, samples = record.phases_s, record.samples
    wall = phases.get("wall")
    if wall:
        total = sum(float(seconds or 0) for name, seconds in phases.items() if name != "wall")
        yield from same("the sum of phases_s", total, wall, CLOCKS)
        end = wall * (1 + WRITING) + WRITING_S
        yield from ordered("phases_s.wall, e2e_time_s and the time to write a record", [wall, record.e2e_time_s, end])
    if not (wall and samples and record.p_whole and record.p_train and record.p_core):
        return
    compute = float(phases.get("compute") or 0) + float(phases.get("communication") or 0)
    # The rate is a mean over ranks, the phases are the first one's.
    over = (record.rates_over_ranks or {}).get("p_core") or {}
    fastest, slowest = (
        samples / (record.ranks * float(over.get(end) or record.p_core / record.ranks)) for end in ("max", "min")
    )
    yield from ordered("the seconds of p_core and of compute and communication", [fastest, compute], CLOCKS)
    if record.status == "done":  # else a step may not have ended
        yield from same("the seconds of p_core", min(max(compute, fastest), slowest), compute, CLOCKS)
    whole, training = samples / record.p_whole, samples / record.p_train
    rest = wall - float(phases.get("startup") or 0)
    yield from ordered("the seconds of p_train, p_whole and of all after the start-up", [training, whole, rest], CLOCKS)
    least = whole - float(phases.get("evaluation") or 0)
    yield from ordered("the seconds of p_whole without all evaluation, and of p_train", [least, training], CLOCKS)
    others = sum(float(phases.get(name) or 0) for name in ("fetch", "decode", "transfer"))
    yield from ordered("the seconds of the steps' phases and of p_train", [compute + others, training], CLOCKS)


def _steps(record: Record) -> Iterator[Check]:
    """Yields checks of the steady rates against the step times and the windows of the history."""
    steady, hp = record.steady, mapping(record.config.get("hp"))
    if steady is None or not steady.p_train or "profile" in mapping(record.config.get("callbacks")):
        yield Check("its steady rate: a profiled run has steps that are slowed", None)
        return
    batch = hp.get("batch_size")
    if isinstance(batch, int):
        step_samples = batch * (record.ranks if hp.get("batch_per") == "device" else 1) * (hp.get("accumulate") or 1)
        mean, times = step_samples / steady.p_train, steady.step_time_s
        yield from ordered("steady.step_time_s.p50 and the mean step of steady.p_train", [times.p50, mean], WINDOWS)
        parts = [float(getattr(times, part) or 0) for part in PERCENTS]
        if all(parts):
            # A mean step is at most that of steps that are each as long as their percentile allows.
            most = sum(map(operator.mul, SHARES, parts)) + 0.01 * OUTLIER * parts[-1]
            yield from ordered("the mean step of steady.p_train and what its percentiles allow", [mean, most])
        exchange = record.communication
        exposed = (exchange.exposed_s or {}).get("mean") if exchange else None
        if exchange and exposed is not None and steady.p_core:
            yield from same("communication.share", exchange.share, exposed * steady.p_core / step_samples, 0.05)
    rates = [row[f"{record.unit}_per_s"] for row in record.history if row.get(f"{record.unit}_per_s")][2:]
    if len(rates) > 2:
        middle = statistics.median(float(rate or 0) for rate in rates)
        # Older records have the rate of the first rank in a window.
        near = [abs(steady.p_train / (middle * factor) - 1) < WINDOWS for factor in {1, record.ranks}]
        what = f"steady.p_train is {steady.p_train:.6g}, the median of the windows {middle:.6g}"
        yield Check(what, any(near))


def _prediction(record: Record) -> Iterator[Check]:
    latency, loaded = record.latency_s, record.with_loading
    yield from _percentiles("latency_s", latency)
    if latency and latency.mean and record.throughput and record.case.batch_size:
        # The last batch may hold fewer samples.
        yield from same("throughput", record.throughput, record.case.batch_size / latency.mean, 0.02)
        yield from ordered("latency_s.mean and p99", [latency.mean, latency.p99], WINDOWS)
        yield from ordered("half of latency_s.p50 and the mean", [(latency.p50 or 0) / 2, latency.mean])
        seconds = (record.samples or 0) / record.throughput
        yield from ordered("the seconds of throughput and of phases_s.compute", [
            seconds, record.phases_s.get("compute")
        ], CLOCKS)  # fmt: skip
    if loaded:
        yield from _percentiles("with_loading.latency_s", loaded.latency_s)
        yield from ordered("throughput with loading and without", [loaded.throughput, record.throughput])


def _recomputed(record: Record, times: Times) -> Iterator[Check]:
    """Yields whether the rates and percentiles are those of the kept times: of one rank all, of several the first's."""
    try:
        if record.kind == "predict":
            for name, packed, latency, rate in (
                ("latency_s", times.latency, record.latency_s, record.throughput),
                ("with_loading", times.loaded, record.with_loading and record.with_loading.latency_s,
                 record.with_loading and record.with_loading.throughput),
            ):  # fmt: skip
                yield from _of_times(name, packed, latency)
                if packed:
                    yield from same(f"the rate of {name}", rate, _rate(times.samples, packed), ROUNDED)
            return
        yield from _of_times("steady.step_time_s", times.iteration, record.steady and record.steady.step_time_s)
        for name, packed in (("p_train", times.iteration), ("p_core", times.compute)):
            if packed and record.steady:
                rate = _rate(times.steady_samples, packed)
                yield from _of_rank(f"steady.{name}", getattr(record.steady, name), rate, record.ranks)
    except ValueError as error:
        yield Check(f"times: {error}", False)
        return
    if len(record.legs or ()) > 1:
        yield Check("its rates over all legs: the times are of the last", None)
        return
    whole, evaluation, compute = (float(value or 0) for value in (times.whole_s, times.evaluation_s, times.compute_s))
    for name, seconds in (("p_whole", whole), ("p_train", whole - evaluation), ("p_core", compute)):
        if seconds > 0:
            yield from _of_rank(name, getattr(record, name), times.samples / seconds, record.ranks)
    if record.ranks == 1:
        yield Check(f"samples is {record.samples}, of its steps {times.samples}", record.samples == times.samples)


def _rate(samples: int, packed: str) -> float:
    """Returns samples per second of packed times; 0 without any time."""
    seconds = float(unpacked(packed).sum())
    return samples / seconds if seconds > 0 else 0.0


def _of_rank(name: str, rate: float | None, of_first: float, ranks: int) -> Iterator[Check]:
    """Yields whether a rate of all ranks is that of the first, times their number where they are alike."""
    yield from same(name, rate, of_first * ranks, ROUNDED if ranks == 1 else WINDOWS)


def _of_times(name: str, packed: str | None, figures: Percentiles | None) -> Iterator[Check]:
    seconds = unpacked(packed) if packed else None
    if seconds is None or figures is None:
        return
    again = percentiles(seconds.tolist(), mean=True) or {}
    for part, value in asdict(figures).items():
        if value is not None and part in again:
            holds = abs(value - again[part]) <= 2 * UNIT_S
            yield Check(f"{name}.{part} is {value:.6g} s, of its steps {again[part]:.6g}", holds)


def comparison_checks(comparison: Comparison) -> Iterator[Check]:
    """Yields the checks of a comparison in turns, as its file has it."""
    for side, again in zip(comparison.sides, from_turns(comparison).sides, strict=True):
        name, rates = side.side, side.throughputs
        if not rates:
            continue
        yield from same(f"{name}: throughput", side.throughput, again.throughput)
        if side.status == "done":
            yield Check(f"{name}: {len(rates)} turns of {comparison.rounds}", len(rates) == comparison.rounds)
        if side.ours_over_it is not None:
            for part in ("median", "least", "greatest"):
                value = getattr(again.ours_over_it, part, None)
                yield from same(f"{name}: ours_over_it.{part}", getattr(side.ours_over_it, part), value)
        if side.own_rate:
            yield from same(f"{name}: own_rate", side.own_rate, again.throughput, SPREAD)
        yield from ordered(f"{name}: memory allocated, reserved, total", [
            (side.mem or {}).get(part) for part in ("peak_allocated_gib", "peak_reserved_gib", "total_gib")
        ])  # fmt: skip
        if side.turns:
            yield Check(f"{name}: {len(side.turns)} turns with {len(rates)} rates", len(side.turns) == len(rates))
            for number, (turn, rate) in enumerate(zip(side.turns, rates, strict=False)):
                computed = turn.samples / turn.seconds if turn.seconds > 0 else None
                yield from same(f"{name}: throughputs[{number}]", rate, computed)
        else:
            yield Check("the turns' rates, computed again: their samples and seconds were not kept", None)
