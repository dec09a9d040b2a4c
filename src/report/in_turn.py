"""Our code and that of others timed in turn: what a beside.json holds, and its reader."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from src.errors import UserError
from src.report.json_files import read_json
from src.report.typed import build, check_parts

Number = float | int
NOT_FINITE = "not finite"
VERBS = ("train", "generate", "predict", "convolution")  # in the order of pages
OPTIONAL = (
    "sides.turns", "sides.own_rate", "sides.throughput", "sides.ours_over_it", "sides.gpu.power_w", "sides.gpu.sm_mhz",
    "sides.gpu.celsius", "sides.gpu.throttled", "seconds_a_turn", "driver", "cuda", "cudnn", "cpu", "cpu_cores",
    "libraries", "digest",
)  # fmt: skip
SIDE = {"mem": {"peak_reserved_gib": Number, "peak_allocated_gib": Number, "total_gib": Number},
        "reference": {"commit": str | None}}  # fmt: skip


@dataclass(frozen=True)
class Range:
    """Of a quantity during the turns."""

    min: Number
    max: Number


@dataclass(frozen=True)
class Gpu:
    """The GPU's state during the turns of a side: clock in MHz, power in W, temperature in degrees Celsius."""

    sm_mhz: Range | None = None
    power_w: Range | None = None
    celsius: Range | None = None
    throttled: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Ratio:
    """Of the rounds."""

    median: Number
    least: Number
    greatest: Number


@dataclass(frozen=True)
class Turn:
    """What a side did in its turn of a round."""

    steps: int
    samples: int
    seconds: Number


@dataclass(frozen=True)
class Case:
    """What the sides do; its name begins with `verb`."""

    model: str
    batch_size: int
    batch_per: Literal["device", "global"]
    trainer: str
    precision: str
    name: str
    kind: str
    unit: str
    note: str

    @property
    def verb(self) -> str:
        """What the sides do: train, generate, predict or convolution."""
        return self.name.split("_", 1)[0]


@dataclass(frozen=True)
class Side:
    """One code of a comparison. Rates are in samples per second; `throughputs` are those of its turns."""

    side: str
    status: str
    error: str | None
    mem: dict[str, Any] | None
    gpu: Gpu | None
    final_loss: Number | Literal["not finite"] | None
    throughputs: list[Number]
    includes: str | None
    reference: dict[str, Any] | None
    versions: dict[str, str | None] | None
    differs: list[str]
    command: str | None
    turns: list[Turn] | None = None
    own_rate: Number | None = None
    throughput: Number | None = None
    ours_over_it: Ratio | None = None

    @property
    def reserved_gib(self) -> Number | None:
        """The peak of memory that torch reserved."""
        return (self.mem or {}).get("peak_reserved_gib")


@dataclass(frozen=True)
class Git:
    """The code that measured."""

    commit: str | None
    dirty: bool | None
    digest: str | None


@dataclass(frozen=True)
class Comparison:
    """A case timed in turn; ours is the first side."""

    case: Case
    sides: list[Side]
    rounds: int
    tiny: bool
    measured_at: str
    command: str
    git: Git
    gpus: list[str]
    seconds_a_turn: Number | None = None
    driver: str | None = None
    cuda: str | None = None
    cudnn: Any = None
    cpu: str | None = None
    cpu_cores: int | None = None
    libraries: dict[str, str | None] = field(default_factory=dict)
    digest: str | None = None

    @property
    def fastest(self) -> Side | None:
        """The side with the greatest rate of those that are not ours and have a ratio; None where none has."""
        measured = [side for side in self.sides[1:] if side.ours_over_it]
        return max(measured, key=lambda side: side.throughput or 0, default=None)


def read_comparison(file: Path) -> Comparison:
    """Returns the comparison in a file; its rates and ratios are those of its turns.

    Raises UserError for a file that cannot be read, another file, and a key that is missing, unknown or of the wrong
    type.
    """
    data = read_json(file)
    if not isinstance(data, dict) or "sides" not in data:
        raise UserError(f"{file}: not a beside.json of `python -m benchmarks.beside`; take it out of the folder")
    try:
        return from_turns(typed(data))
    except ValueError as error:
        raise UserError(f"{file}: {error}") from error


def typed(data: dict[str, Any]) -> Comparison:
    """Returns the comparison of a JSON object as it stands. Raises ValueError that names a wrong key."""
    comparison = build(Comparison, data, optional=OPTIONAL)
    if comparison.case.verb not in VERBS:
        raise ValueError(f"key 'case.name' is {comparison.case.name!r}, which begins with none of {', '.join(VERBS)}")
    if not comparison.sides:
        raise ValueError("key 'sides' is empty: ours is the first")
    for number, side in enumerate(comparison.sides):
        for key, parts in SIDE.items():
            check_parts(getattr(side, key), parts, f"sides[{number}].{key}")
        if any(rate <= 0 for rate in side.throughputs):
            raise ValueError(f"key 'sides[{number}].throughputs' has a rate that is not above 0")
    return comparison


def from_turns(comparison: Comparison) -> Comparison:
    """Returns it with the rate and the ratio of each side from the rates of its turns."""
    ours = comparison.sides[0].throughputs
    sides = [
        replace(
            side,
            throughput=statistics.median(side.throughputs) if side.throughputs else None,
            ours_over_it=ratio_of(ours, side.throughputs)
            if number and side.throughputs and len(side.throughputs) == len(ours)
            else None,
        )
        for number, side in enumerate(comparison.sides)
    ]
    return replace(comparison, sides=sides)


def ratio_of(ours: Sequence[Number], theirs: Sequence[Number]) -> Ratio:
    """Returns the median, the least and the greatest of the rounds' ratios.

    A ratio is formed within a round, so a drift of the GPU that both sides see cancels. A disturbed turn moves the
    median little and widens the range.
    """
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))
