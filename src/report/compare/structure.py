"""The comparison of runs as plain data: everything that a page, a table or a file shows, already computed.

A renderer (src/report/compare/text.py, page.py) formats these values and computes none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from src.measure.judged import ClassFigures, ScoreGroup
from src.measure.reading import Reading
from src.report.record import Case, Figure, Quality
from src.report.rows import Row
from src.report.scaling import Point

Direction = Literal["max", "min"]


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A figure of a run: its key, what it is called, its unit, which values are better, and its factor.

    Values are in the record's units; printed ones are multiplied by `factor` (1e3 for milliseconds).
    """

    name: str
    title: str
    unit: str
    better: Direction | None = None
    factor: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A quantity of a group of runs.

    Attributes:
        values: of the runs that have it, in their order.
        sd: sample standard deviation (n - 1); None for a single run.
        difference: mean minus the baseline's mean; None for the baseline, and where it has no such figure.
        low, high: ends of Welch's 95% interval of the difference; None where a group has a single run.
        ratio: mean over the baseline's mean.
    """

    values: Sequence[float]
    mean: float
    sd: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    ratio: float | None = None

    @property
    def n(self) -> int:
        return len(self.values)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a group: where its record is, how it ended, its seed, and its figures by the quantities' names.

    `reading` is what became of a person's own data; None for other data. `quality`, `classes` and `calibration` are of
    predictions, the classes of trainings too.
    """

    source: str
    status: str
    seed: int | None
    figures: Mapping[str, Figure]
    reason: str = ""
    command: str = ""
    reading: Reading | None = None
    quality: Sequence[Quality] = ()
    classes: Sequence[ClassFigures] = ()
    calibration: Sequence[ScoreGroup] = ()


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs of one config that differ in their seed alone.

    Attributes:
        varied: the values of the config keys that the groups differ in.
        phases: mean seconds by names of PHASES.
        percentiles: mean percentiles (p50, p90, p95, p99) of a steady step's or a predicted batch's seconds.
    """

    name: str
    case: Case
    runs: Sequence[Run]
    varied: Mapping[str, str]
    estimates: Mapping[str, Estimate]
    phases: Mapping[str, float] = field(default_factory=dict)
    percentiles: Mapping[str, float] = field(default_factory=dict)

    @property
    def done(self) -> int:
        """The number of runs that ended normally: those that the estimates are of."""
        return sum(run.status == "done" for run in self.runs)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A key of the config or of the environment, with its value in each group, in their order."""

    key: str
    values: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A run or a sweep's job that did not end normally, its varied values, and why."""

    source: str
    varied: str
    status: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The values of one metric in one run, over its samples and over the seconds since its first step.

    A point lacks a coordinate (None) where the record cannot tell it.
    """

    group: int
    source: str
    metric: str
    values: Sequence[float]
    samples: Sequence[float | None]
    seconds: Sequence[float | None]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A key that the groups vary, to draw figures against.

    Attributes:
        labels: the value of each group, as the config writes it.
        numbers: the same as numbers; None unless all are.
        log: whether the numbers are spread more evenly on a logarithmic scale.
        lines: the values of the other varied keys of each group: those of one line differ in this key alone.
        rank_correlation: Spearman's, of the key and the final metric; None for words, and where one is constant.
    """

    key: str
    labels: Sequence[str]
    numbers: Sequence[float] | None
    log: bool
    lines: Sequence[str]
    rank_correlation: float | None = None


@dataclass(frozen=True, kw_only=True)
class Coordinate:
    """An axis of parallel coordinates: the place of each group from 0 to 1 (None without one), and labelled places."""

    title: str
    places: Sequence[float | None]
    ticks: Sequence[tuple[float, str]]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture that a run of a group drew of its own results: what it shows, and the PNG file."""

    group: int
    name: str
    file: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Runs of one kind and unit, in groups; the first group is the baseline of differences and ratios.

    Attributes:
        quantities: the columns, those that at least one run has.
        metric: the name of the final metric's quantity; None where the runs have none.
        config, environment: the keys that the groups differ in.
        warnings: what a reader has to know of the comparison, a sentence each.
        hindrances: why the groups are not comparable, some words each; empty where they are.
        published: rows of the same model, devices, batch and precision, as printed and corrected.
        best: the group with the best mean of the metric; None where there is none to compare, and for a tie.
        axes: the keys that three or more groups vary.
        scaling: speed-ups of runs on several devices over those on one, then published ones.
        pictures, left_out: the models' own pictures, and the files of those that are too large or too many.
        parallel: these and the figures as parallel coordinates, where several keys are varied.
    """

    title: str
    models: Sequence[str]
    kind: str
    unit: str
    quantities: Sequence[Quantity]
    groups: Sequence[Group]
    metric: str | None = None
    target: float | None = None
    best: int | None = None
    config: Sequence[Difference] = ()
    environment: Sequence[Difference] = ()
    warnings: Sequence[str] = ()
    hindrances: Sequence[str] = ()
    failures: Sequence[Failure] = ()
    curves: Sequence[Curve] = ()
    published: Sequence[Row] = ()
    axes: Sequence[Axis] = ()
    parallel: Sequence[Coordinate] = ()
    scaling: Sequence[Point] = ()
    pictures: Sequence[Picture] = ()
    left_out: Sequence[str] = ()

    def quantity(self, name: str) -> Quantity:
        """Returns the quantity of that name. Raises KeyError if no run has it."""
        return next((quantity for quantity in self.quantities if quantity.name == name), None) or _missing(name)

    def to_dict(self) -> dict[str, Any]:
        """Returns the comparison as plain values for JSON."""
        return asdict(self)


def _missing(name: str) -> Quantity:
    raise KeyError(name)
