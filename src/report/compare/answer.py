"""The answer of a comparison in one sentence: what is faster, what is better, by how much, and what cannot be told."""

from collections.abc import Sequence
from dataclasses import dataclass

from src.measure.intervals import mean_interval, welch_interval
from src.report.compare.axes import bounded
from src.report.compare.quantities import RATES, header, spread
from src.report.compare.ratios import First, Ratio, first_of, ratio_of
from src.report.compare.structure import Comparison, Group, Quantity
from src.report.digits import rounded, shown

NAMED = 2  # groups that a list names
SAME = 0.01  # of memory: a smaller difference is none


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The sentence, and the figures in it.

    Attributes:
        rate: the name of the quantity that speed is judged by; None where no run has one.
        ratios: of two groups, the faster over the slower: speed, memory and final metric.
        metric, speed: the best groups of the final metric and the fastest ones.
        without: groups of which no run ended normally.
    """

    sentence: str
    rate: str | None = None
    ratios: Sequence[Ratio] = ()
    metric: First | None = None
    speed: First | None = None
    without: Sequence[int] = ()


def answer(comparison: Comparison) -> Answer:
    """Returns the answer of a comparison."""
    groups, quantities = comparison.groups, {quantity.name: quantity for quantity in comparison.quantities}
    done = [i for i, group in enumerate(groups) if group.done]
    without = [i for i, group in enumerate(groups) if not group.done]
    rate = next((quantities[name] for name in RATES if name in quantities), None)
    metric = quantities.get("metric")
    states = ", ".join(dict.fromkeys(run.status for i in without for run in groups[i].runs))
    lost = f" Without a result ({states}): {_listed(groups, without)}." if without else ""
    ratios: list[Ratio] = []
    if len(done) < 2:
        why = "one group alone has a result" if done else "no run ended normally"
        figures = [_figure(groups[i], quantity) for i in done for quantity in (metric, rate) if quantity]
        told = "; ".join([*([f"Cannot be told: {why}"] if without else []), *filter(None, figures)])
    elif len(done) == 2:
        ratios = _ratios(groups, done, rate, metric)
        told = _of_two(groups, done, ratios, rate, metric)
    else:
        told = _of_several(groups, rate, metric)
    return Answer(
        sentence=f"{told or 'The runs have no figure to compare'}.{lost}",
        rate=rate.name if rate else None,
        ratios=ratios,
        metric=first_of(groups, metric) if metric else None,
        speed=first_of(groups, rate) if rate else None,
        without=without,
    )


def _ratios(
    groups: Sequence[Group], done: Sequence[int], rate: Quantity | None, metric: Quantity | None
) -> list[Ratio]:
    """Returns the ratios of two groups, the faster one over the other; without rates the second over the first."""
    base, group = done
    speed = ratio_of(groups, rate.name, group, base) if rate else None
    if speed is not None and speed.ratio < 1:
        base, group = group, base
    names = [rate.name if rate else "", "mem", "metric" if metric else ""]
    return [ratio for name in names if (ratio := ratio_of(groups, name, group, base)) is not None]


def _of_two(
    groups: Sequence[Group], done: Sequence[int], ratios: Sequence[Ratio], rate: Quantity | None,
    metric: Quantity | None,
) -> str:  # fmt: skip
    by_name = {ratio.quantity: ratio for ratio in ratios}
    base, group = (groups[i] for i in ((ratios[0].base, ratios[0].group) if ratios else done))
    speed, memory = by_name.get(rate.name if rate else ""), by_name.get("mem")
    clauses = [_faster(base, group, speed)] if speed else []
    if memory is not None:
        part = abs(1 - memory.ratio)
        amount = "as much memory" if part < SAME else f"{part:.0%} {'less' if memory.ratio < 1 else 'more'} memory"
        clauses = [f"{clauses[0]}, with {amount}" if clauses else f"{group.name} takes {amount}"]
    clauses += [_better(base, group, metric)] if metric else []
    cannot = "Cannot be told from single runs (n=1): " if min(base.done, group.done) < 2 else ""
    told = "; ".join(filter(None, clauses))
    return f"{cannot}{told}" if told else ""


def _faster(base: Group, group: Group, speed: Ratio) -> str:
    if speed.ratio == 1:
        return f"{group.name} is exactly as fast as {_short(base, group)}"
    if not speed.interval:
        return f"{group.name} ran {speed.value} times as fast as {_short(base, group)}"
    if not speed.is_told:
        ratio = f"ratio {speed.value}, 95% interval {speed.interval}"
        return f"{group.name} is as fast as {_short(base, group)} within the spread of {_seeds(base, group)} ({ratio})"
    return f"{group.name} is {speed.value} times as fast as {_short(base, group)} (95% interval {speed.interval})"


def _better(base: Group, group: Group, metric: Quantity) -> str:
    """Returns what the final metric says of a group beside the base; '' where one lacks it."""
    theirs, ours = (estimate.estimates.get(metric.name) for estimate in (base, group))
    if theirs is None or ours is None:
        return ""
    if ours.mean == theirs.mean:
        return f"{metric.title} is equal, {shown(ours.mean)}"
    interval = welch_interval(ours.values, theirs.values)
    if interval is None:
        return f"{metric.title} is {shown(ours.mean)} against {shown(theirs.mean)}"
    low, high = interval
    one, other, difference, *ends = rounded((ours.mean, theirs.mean, ours.mean - theirs.mean, low, high), high - low)
    figures = f"{one} against {other}, difference {difference}, 95% interval {' to '.join(ends)}"
    if low <= 0 <= high:
        return f"{metric.title} is equal within the spread of {_seeds(base, group)} ({figures})"
    better = "better" if (ours.mean > theirs.mean) == (metric.better == "max") else "worse"
    return f"{metric.title} is {better} ({figures})"


def _of_several(groups: Sequence[Group], rate: Quantity | None, metric: Quantity | None) -> str:
    told: list[str] = []
    single: set[int] = set()
    compared: set[int] = set()
    for quantity in (metric, rate):
        if quantity is not None and (first := first_of(groups, quantity)):
            told.append(_leading(groups, quantity, first, is_speed=quantity is rate))
            single |= {*first.single}
            compared |= {*first.compared}
    which = "from single runs" if single == compared else "where a group is a single run"
    cannot = f"Cannot be told {which} (n=1). " if single else ""
    return f"{cannot}{'. '.join(told)}" if told else ""


def _leading(groups: Sequence[Group], quantity: Quantity, first: First, is_speed: bool) -> str:
    """Returns which group is the first one of a quantity, and which ones the spread does not tell apart from it."""
    estimate, num = groups[first.top[0]].estimates[quantity.name], len(first.compared)
    value = f"{shown(estimate.mean)} {quantity.unit}".rstrip()
    what = "Fastest" if is_speed else f"Best {'mean ' if first.not_told_apart else ''}{quantity.title}"
    if len(first.top) == num:
        return f"{quantity.title} is {value} in all {num} groups"
    if len(first.top) > 1:
        return f"{what}: an exact tie of {_listed(groups, first.top)}, {value}"
    interval = bounded(mean_interval(estimate.values), quantity)
    if interval is not None:
        mean, *ends = rounded((estimate.mean, *interval), 2 * (interval[1] - interval[0]))
        value = f"{mean} {quantity.unit}".rstrip() + f" (95% interval {' to '.join(ends)})"
    if is_speed:
        slowest = min(first.compared, key=lambda i: groups[i].estimates[quantity.name].mean)
        if ratio := ratio_of(groups, quantity.name, first.top[0], slowest):
            value = f"{ratio.value} times as fast as the slowest, {groups[slowest].name}"
            value += f" (95% interval {ratio.interval})" if ratio.interval else ""
    told = f"{what}: {groups[first.top[0]].name}, {value}"
    if first.single:
        return told
    if not first.not_told_apart:
        return f"{told}; the other {num - 1} differ beyond the spread"
    seeds = _seeds(*(groups[i] for i in (first.top[0], *first.not_told_apart)))
    like = len(first.not_told_apart)
    which = f"the other {num - 1}" if like == num - 1 else f"{like} of the other {num - 1}"
    if num > 2 and like <= NAMED:
        which = _listed(groups, first.not_told_apart)
    return f"{told}; the spread of {seeds} does not tell {which} from it"


def _figure(group: Group, quantity: Quantity) -> str:
    if quantity.name not in group.estimates:
        return ""
    estimate = group.estimates[quantity.name]
    return f"{header(quantity)}: {spread(estimate, quantity)} (n = {estimate.n})"


def _short(base: Group, group: Group) -> str:
    """Returns the base's name beside the group's: the value alone where one key, which is no number, differs."""
    (key, _, value), (other, _, _) = base.name.partition("="), group.name.partition("=")
    is_word = value[:1].isalpha() and " " not in value
    return value if key == other and is_word and " " not in group.name else base.name


def _seeds(*groups: Group) -> str:
    counts = sorted({group.done for group in groups})
    return f"{counts[0]} seeds" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"


def _listed(groups: Sequence[Group], indices: Sequence[int]) -> str:
    names = [groups[i].name for i in indices]
    more = [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
    names = [*names[:NAMED], *more]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
