"""Speed-ups of runs on several devices over runs on one, and those of published rows.

Weak scaling keeps the batch per device: N devices should be N times as fast. Strong scaling keeps the global batch.
Efficiency is the speed-up over one device, divided by the number of devices.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from src.errors import UserError
from src.published import PublishedRow, rows
from src.report.digits import number
from src.report.record import Record
from src.report.table import aligned

Kind = Literal["weak", "strong"]
Run = TypeVar("Run", Record, PublishedRow)
HEADERS: tuple[str, ...] = (
    "config",
    "precision",
    "scaling",
    "batch",
    "per s",
    "speed-up",
    "efficiency",
    "exposed ms",
    "of step",
    "source",
)
NUMBERS = HEADERS[4:9]
LINEAR = 1.1  # the highest efficiency that noise and caches explain
MARK = "(!)"  # behind a higher one


@dataclass(frozen=True)
class Point:
    """The speed-up of one run on several devices; `rate` is in samples per second of all devices.

    `single` names the run on one device that it is compared with; `other` says that it is of another machine or commit.
    `exposed_s` is the communication of a step that compute does not hide, `share` its share of the step's compute.
    """

    model: str
    config: str
    precision: str
    kind: Kind
    devices: int
    samples: float  # per step, on each device (weak) or on all (strong)
    rate: float
    speed_up: float
    source: str
    exposed_s: float | None = None
    share: float | None = None
    is_published: bool = False
    single: str = ""
    other: str = ""

    @property
    def efficiency(self) -> float:
        return self.speed_up / self.devices

    @property
    def is_suspicious(self) -> bool:
        """Whether the speed-up is more than linear beyond noise: then one of the two rates is hardly right."""
        return self.efficiency > LINEAR

    @property
    def shown_efficiency(self) -> str:
        return f"{self.efficiency:.1%}" + (f" {MARK}" if self.is_suspicious else "")

    @property
    def batch(self) -> str:
        return f"{self.samples:.12g} {'per device' if self.kind == 'weak' else 'global'}"


def scaling(runs: Sequence[tuple[str, Record]], published: bool = True) -> list[Point]:
    """Returns the points of the runs, then the published ones of the same models.

    Runs are compared if model, network, engine, data, precision, hardware and accumulation are equal. Raises
    UserError if no run on several devices has a counterpart on one.
    """
    points = speed_ups(runs)
    if not points:
        raise UserError(
            "no run on several devices has a counterpart on one: give runs of the same case, with 1x1 among them, and "
            "with the same batch per device (weak scaling) or the same global batch (strong)"
        )
    models = list(dict.fromkeys(point.model for point in points))
    return points + [point for model in models if published for point in published_points(model)]


def speed_ups(runs: Sequence[tuple[str, Record]]) -> list[Point]:
    """Returns the points of the runs on several devices that have a counterpart on one."""
    done = [(source, record) for source, record in runs if rate_of(record)]
    points: list[Point] = []
    for kind in ("weak", "strong"):
        same_case = with_single_device(
            done, lambda run, kind=kind: comparison_key(run[1], kind), lambda run: run[1].ranks
        )
        for (source, record), single in same_case:
            alike = [one for one in single if same_network(record, one[1])]
            points += [point_of(kind, source, record, alike)] if alike else []
    return sorted(points, key=lambda point: (point.kind == "strong", point.precision, point.samples, point.devices))


def with_single_device(
    runs: Sequence[Any], key: Callable[[Any], Hashable], devices: Callable[[Any], int]
) -> list[tuple[Any, list[Any]]]:
    """Returns each run on several devices, the fewest first, with the runs on one device that have the same key."""
    single: dict[Hashable, list[Any]] = {}
    for run in runs:
        if devices(run) == 1:
            single.setdefault(key(run), []).append(run)
    several = sorted((run for run in runs if devices(run) > 1), key=devices)
    return [(run, single[key(run)]) for run in several if key(run) in single]


def commit_of(record: Record) -> str | None:
    return (record.environment.get("git") or {}).get("commit")


def machine_of(record: Record) -> str | None:
    return record.environment.get("machine")


def rate_of(record: Record) -> float | None:
    """Returns samples per second of steady steps, or of all steps if none is steady."""
    steady = record.steady.p_train if record.steady else None
    return steady or record.p_train


def batches(size: int | None, per: str | None, devices: int) -> tuple[float, float]:
    """Returns the samples of a step on each device, and on all."""
    whole = (size or 0) * (devices if per == "device" else 1)
    return whole / devices, whole


def comparison_key(record: Record, kind: Kind) -> Hashable:
    """Returns what two runs must have in common to be compared: the case, the engine and the kept batch."""
    case = record.case
    per_device, whole = batches(case.batch_size, case.batch_per, record.ranks)
    kept = per_device if kind == "weak" else whole
    accumulate = (record.config.get("hp") or {}).get("accumulate", 1)
    task = (record.config.get("model") or {}).get("task") or {}
    return case.model, case.datamodule, case.precision, case.hardware, accumulate, task.get("engine", "auto"), kept


def same_network(first: Record, second: Record) -> bool:
    """Returns whether the networks have the same options, as far as both records know these."""
    one, other = (
        ((record.config.get("model") or {}).get("task") or {}).get("network") or {} for record in (first, second)
    )
    return all(one[key] == other[key] for key in one.keys() & other.keys())


def point_of(kind: Kind, source: str, record: Record, single: Sequence[tuple[str, Record]]) -> Point:
    """Returns the point of a run, over the fastest run on one device of its commit and machine.

    The others may be profiled runs. Where there is none, the fastest of another machine, or else of another commit,
    takes its place, and the point's source says so.
    """

    def alike(one: Record) -> tuple[bool, bool, float]:
        return commit_of(one) == commit_of(record), machine_of(one) == machine_of(record), rate_of(one) or 0.0

    case, rate = record.case, rate_of(record) or 0.0
    fastest = max((one for _, one in single), key=alike)
    same_commit, same_machine, one = alike(fastest)
    other = [f"of commit {(commit_of(fastest) or 'unknown')[:7]}"] if not same_commit else []
    other += ["of another machine"] if not same_machine else []
    single_source = next(name for name, run in single if run is fastest)
    if other:
        source = f"{source}; one device: {', '.join(other)}"
    samples = batches(case.batch_size, case.batch_per, record.ranks)[kind == "strong"]
    exchange = record.communication
    exposed = exchange.exposed_s.get("mean") if exchange and exchange.exposed_s else None
    config = f"{case.hardware.replace('_', '-').upper()} {case.trainer}"
    return Point(
        case.model, config, case.precision, kind, record.ranks, samples, rate, rate / one, source, exposed,
        exchange.share if exchange else None, single=single_source, other=", ".join(other),
    )  # fmt: skip


def published_points(model: str) -> list[Point]:
    """Returns the points of published rows, by corrected rates: p_core, or the one rate that a publisher gives."""

    def rate(row: PublishedRow) -> float | None:
        return row.best("p_core") or row.best("throughput")

    entries = [row for row in rows(model, "train") if rate(row) and row.batch_size]
    points = []
    for kind in ("weak", "strong"):

        def key(row: PublishedRow, kind: Kind = kind) -> Hashable:
            kept = batches(row.batch_size, row.batch_per, row.world_size)[kind == "strong"]
            return row.source, row.variant, row.hardware, row.precision, kept

        for row, single in with_single_device(entries, key, lambda row: row.world_size):
            many, one = rate(row), rate(single[0])
            assert many and one
            samples = batches(row.batch_size, row.batch_per, row.world_size)[kind == "strong"]
            config = f"{row.hardware.replace('_', '-').upper()} {row.trainer}"
            points.append(
                Point(model, config, row.true_precision, kind, row.world_size, samples, many, many / one, row.source,
                      is_published=True, single=f"the publisher's {single[0].trainer}")
            )  # fmt: skip
    return points


def scaling_table(points: Sequence[Point]) -> str:
    """Returns the points as a Markdown table with aligned columns."""
    lines = [list(HEADERS)]
    for point in points:
        exposed = "/" if point.exposed_s is None else number(point.exposed_s * 1e3)
        share = "/" if point.share is None else f"{point.share:.1%}"
        lines.append([point.config, point.precision, point.kind, point.batch, number(point.rate),
                      f"{point.speed_up:.2f}", point.shown_efficiency, exposed, share, point.source])  # fmt: skip
    out = aligned(lines, [header not in NUMBERS for header in HEADERS])
    legend = (
        "Steady samples per second of all devices; speed-up over one device with the same batch of a device (weak) or "
        "of all (strong); efficiency is the speed-up per device; exposed: communication of a step that compute did not "
        "hide, mean of the ranks; '/' was not measured. Published rows: p_core, corrected where it was wrong."
    )
    return "\n".join([*out, "", legend, "", *(f"{MARK} {note}\n" for note in suspicions(points))])


def suspicions(points: Sequence[Point]) -> list[str]:
    """Returns a sentence for each speed-up that is more than linear beyond noise: what it is and its likely cause."""
    return [
        f"{point.config}, {point.precision}, batch {point.batch}: a speed-up of {point.speed_up:.2f} on "
        f"{point.devices} devices is more than linear. Likely the run on one device ({point.single}) "
        + (f"is not comparable: {point.other}" if point.other else "was slowed by other work")
        + "; measure both again, in one run on one machine."
        for point in points
        if point.is_suspicious
    ]
