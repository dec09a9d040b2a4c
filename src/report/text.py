"""The summary that a run prints at its end."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from src.report.digits import number
from src.report.phases import of_one_rank, shares
from src.report.record import Figure, Leg, Quality, Record
from src.report.rows import record_row
from src.report.table import Table, cells

WIDTH = 99
BAR = 32  # width of the bar of the whole wall time, in characters


def summary(record: Record, files: Mapping[str, Path]) -> str:
    """Returns the summary of a run in under 100 columns: its end, result row, rates, phases and files.

    `files` maps a description ('record', 'generated molecules') to a path.
    """
    parts = [
        _ending(record),
        _data(record),
        _quality(record),
        _result(record),
        _rates(record),
        _phases(record),
        _files(files),
    ]
    parts.append(going_on(record))
    return "\n\n".join(part for part in parts if part) + "\n"


def going_on(record: Record) -> str:
    """Returns the line that says how to go on with a run that ended before it was done; it is not shortened."""
    if record.go_on is None:
        return ""
    checkpoint, command = record.go_on.checkpoint, record.go_on.command
    if checkpoint is None:
        return "No checkpoint was written; to start anew: " + (command or "the same config again")
    return f"To go on from {checkpoint}: " + (command or "give ckpt_path that path")


def _ending(record: Record) -> str:
    case = record.case
    batch = f"batch {case.batch_size} {'global' if case.batch_per == 'global' else 'per device'}"
    what = f"{case.model} on {case.datamodule}, {case.hardware} {case.trainer}, {case.precision}, {batch}"
    lines = [f"{record.kind} {record.status}: {what}"]
    if _is_untimed(record) and record.samples is not None:
        seconds = number(record.e2e_time_s or 0)
        lines.append(f"  {record.samples:,} {record.unit} in {seconds} s, start-up included; benchmark=true for timing")
    lines += _legs(record)
    if record.error:
        where = f" ({record.error.where})" if record.error.where else ""
        lines.append(_short(f"  {record.error.type}: {' '.join(record.error.message.split())}{where}"))
    return "\n".join(lines)


def _legs(record: Record) -> list[str]:
    """Returns the parts of a run that was resumed: steps, how they ended, and times."""
    legs = record.legs or []
    if len(legs) < 2:
        return []
    lines = [f"  leg {i}: {_steps(leg)}, {leg.status}, {number(leg.wall_s or 0)} s" for i, leg in enumerate(legs, 1)]
    return [*lines, f"  samples, times, energy and p_ rates are of all {len(legs)} legs, the other figures of the last"]


def _steps(leg: Leg) -> str:
    return f"steps {leg.first_step:,} to {leg.last_step:,}" if leg.last_step >= leg.first_step else "no step"


def _data(record: Record) -> str:
    """Returns what became of a person's own data, where not all of it was kept as written."""
    reading = record.reading
    if reading is None or reading.as_written == reading.read:
        return ""
    return "\n".join(["Data", *(_short(f"  {line}") for line in reading.lines())])


def _result(record: Record) -> str:
    """Returns the row of the result table; if it is too wide, the figures are below the case."""
    if _is_untimed(record):
        return ""
    lines, _ = cells(Table(record.case.model, record.kind, record.unit, [record_row("", record)]))
    left_out = (lines[0].index("batch"), lines[0].index("source"))  # the first line of the summary has them
    lines = [[text for i, text in enumerate(line) if i not in left_out] for line in lines]
    whole = _aligned(lines)
    if max(map(len, whole)) > WIDTH:
        whole = _aligned([line[:3] for line in lines]) + _aligned([line[3:] for line in lines])
    return "\n".join(["Result ('/' is not reported)", *(f"  {line}" for line in whole)])


def _is_untimed(record: Record) -> bool:
    """Returns whether this is a prediction that measured no speed."""
    return record.kind == "predict" and record.throughput is None


def _quality(record: Record) -> str:
    """Returns a line for each figure of how good predictions are, and a table of those with a group."""
    alone = [figure for figure in record.quality or () if figure.value is not None and not figure.group]
    texts = [[figure.name, number(figure.value or 0), figure.unit, figure.of] for figure in alone]
    width = max((len(value) for _, value, _, _ in texts), default=0)
    lines = [f"  {line}" for line in _aligned([[name, value.rjust(width), *rest] for name, value, *rest in texts])]
    lines += _by_group([figure for figure in record.quality or () if figure.group])
    return "\n".join(["Quality", *lines]) if lines else ""


def _by_group(figures: Sequence[Quality]) -> list[str]:
    """Returns a line for each figure with a column for each group, then of what the first figure of each group is, and
    what the other figures are where that is the same in all groups.
    """
    groups = {figure.group: figure.of.partition(", ")[2].removeprefix("of ") for figure in reversed(figures)}
    columns = list(dict.fromkeys(figure.group for figure in figures))
    values = {(figure.name, figure.group): figure.value for figure in figures}
    lines = [["", "", *columns]] if figures else []
    for name, unit in dict.fromkeys((figure.name, figure.unit) for figure in figures):
        row = (values.get((name, group)) for group in columns)
        lines.append([name, unit, *("/" if value is None else number(value) for value in row)])
    words = [f"  {group}: {groups[group]}" for group in columns]
    if len(columns) > 1:
        for name in dict.fromkeys(figure.name for figure in figures):
            of = {figure.of for figure in figures if figure.name == name}
            said = of.pop() if len(of) == 1 else ""
            words += [_short(f"  {name}: {said}")] if said and not said[0].isdigit() else []  # counts are of one group
    return [f"  {line}" for line in _aligned(lines)] + words


def _rates(record: Record) -> str:
    steady, latency, energy, used = record.steady, record.latency_s, record.energy, record.utilisation
    step, loaded, tokens = steady.step_time_s if steady else None, record.with_loading, record.tokens
    exchange = record.communication
    exposed = exchange.exposed_s.get("mean") if exchange and exchange.exposed_s else None
    unit, of_one = f"{record.unit}/s", of_one_rank(record)
    of_last = " of the last leg" if len(record.legs or ()) > 1 else ""
    start = record.start
    rows: list[tuple[str, Figure, str, str]] = [
        ("first step", start.first_step_s if start else None, "s", f"from the start of the command{of_last}"),
        ("p_whole", record.p_whole, unit, "from the first step to the end of training, evaluation included"),
        ("p_train", record.p_train, unit, "the same without evaluation"),
        ("p_core", record.p_core, unit, "over compute and exposed communication"),
        ("p_steady", steady.p_train if steady else None, unit, f"p_train after the warm-up steps{of_last}"),
        ("step p50", _milli(step.p50 if step else None), "ms", f"half of the steady steps{of_one} are faster"),
        ("step p99", _milli(step.p99 if step else None), "ms", f"99 of 100 steady steps{of_one} are faster"),
        ("throughput", record.throughput, unit, "over the batch times, until the results are on the host"),
        (
            "with data",
            loaded.throughput if loaded else None,
            unit,
            "the same, with the loading of the batches",
        ),
        ("latency p50", _milli(latency.p50 if latency else None), "ms", "half of the batches are faster"),
        ("latency p99", _milli(latency.p99 if latency else None), "ms", "99 of 100 batches are faster"),
        ("tokens", tokens.real_per_s if tokens else None, "tokens/s", "of the samples, without padding"),
        ("with padding", tokens.processed_per_s if tokens else None, "tokens/s", "tokens that the network processed"),
        ("padding", _percent(tokens.padding_share if tokens else None), "%", "of the processed tokens"),
        ("arithmetic", _percent(used.of_peak_flops if used else None), "%", "of the hardware's peak FLOP/s"),
        ("bandwidth", _percent(used.of_peak_bandwidth if used else None), "%", "of its peak memory bandwidth"),
        ("exposed", _milli(exposed), "ms", "per steady step: communication that compute did not hide"),
        ("energy", energy.samples_per_joule if energy else None, f"{record.unit}/J", "trained per joule"),
    ]
    printed = [(name, number(value), unit, words) for name, value, unit, words in rows if value is not None]
    names, width = (max((len(row[i]) for row in printed), default=0) for i in (0, 1))
    names = max(names + 1, 12)
    lines = [f"  {name:<{names}}{value:>{width}} {unit:<12}  {words}" for name, value, unit, words in printed]
    lines += [f"  above the {name}: an error of measurement, no share" for name in (used.impossible if used else ())]
    return "\n".join(["Rates", *map(_short, lines)]) if lines else ""


def _phases(record: Record) -> str:
    phases = shares(record)
    if not phases:
        return ""
    wall = record.phases_s.get("wall") or sum(phase.seconds for phase in phases)
    bars = ["█" * round(min(1.0, max(0.0, phase.share)) * BAR) for phase in phases]
    titles = max(25, *(len(phase.title) + 1 for phase in phases))
    lines = [
        f"  {phase.title:<{titles}}{phase.seconds:>10.2f} s {phase.share:>7.1%}  {bar}".rstrip()
        for phase, bar in zip(phases, bars, strict=True)
    ]
    return "\n".join([f"Where {wall:.1f} s{of_one_rank(record)} went", *lines])


def _files(files: Mapping[str, Path]) -> str:
    width = max(map(len, files), default=0)
    lines = [f"  {what:<{width}}  {path}" for what, path in files.items()]  # paths are not shortened
    return "\n".join(["Files", *lines]) if lines else ""


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]


def _short(line: str) -> str:
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def _milli(seconds: Figure) -> Figure:
    return None if seconds is None else seconds * 1e3


def _percent(share: Figure) -> Figure:
    return None if share is None else share * 100
