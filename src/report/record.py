"""The record of a run, stored as result.json: its case, how it ended, and all figures.

Rates are per second, times in seconds, memory in GiB. A figure that was not measured is None.
docs/reference/metrics.md defines the figures.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from src.errors import UserError
from src.measure.judged import ClassFigures, ScoreGroup
from src.measure.phases import PHASES
from src.measure.reading import Reading
from src.measure.starting import Start
from src.report.free_form import CONFIG, ENVIRONMENT
from src.report.json_files import read_json, within_use
from src.report.typed import build, check_parts
from src.system.files import write_text
from src.system.masking import masked

SCHEMA_VERSION = 1
FILE_NAME = re.compile(r"\w[\w.+-]*")

Figure = float | int | None


@dataclass(frozen=True, kw_only=True)
class Case:
    """The case of a run; `batch_per` is 'device' or 'global'.

    `fix_hp` is '/', or what changes the model's default hyper-parameters ('bs=3072,lr=0.003'). Older records have there
    what changes those of the trainer's case.
    """

    model: str
    datamodule: str
    trainer: str
    precision: str
    fix_hp: str
    hardware: str
    batch_size: int | None
    batch_per: str | None


@dataclass(frozen=True, kw_only=True)
class RunError:
    """The error that ended a run: the exception's type and message, and where it was raised (file:line or phase)."""

    type: str
    message: str
    where: str | None = None


@dataclass(frozen=True, kw_only=True)
class Percentiles:
    """Percentiles of a time in seconds."""

    p50: Figure = None
    p90: Figure = None
    p95: Figure = None
    p99: Figure = None


@dataclass(frozen=True, kw_only=True)
class Latency(Percentiles):
    """Mean and percentiles of a batch's time in seconds."""

    mean: Figure = None


@dataclass(frozen=True, kw_only=True)
class Steady:
    """Rates and step times after the warm-up steps (compilation, autotuning, graph capture)."""

    p_train: Figure = None
    p_core: Figure = None
    step_time_s: Percentiles = field(default_factory=Percentiles)


@dataclass(frozen=True, kw_only=True)
class ReachedMetric:
    """The final value of the task's metric, its published target, and whether the target was reached."""

    name: str
    value: Figure = None
    target: Figure = None
    reached: bool | None = None
    direction: Literal["max", "min"] | None = None  # which values are better


@dataclass(frozen=True, kw_only=True)
class Quality:
    """One figure of how good predictions are: its unit ("" for none), of what it is, in words, and its group if any."""

    name: str
    value: Figure = None
    unit: str = ""
    of: str = ""
    group: str = ""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Device memory in GiB: peaks as the maximum over ranks, total of one device, least free memory of a device."""

    peak_reserved_gib: Figure = None
    peak_allocated_gib: Figure = None
    total_gib: Figure = None
    free_gib: Figure = None


@dataclass(frozen=True, kw_only=True)
class Utilisation:
    """Achieved operations and bytes per second, the hardware's peaks, and the shares of them (0 to 1).

    A share above 1, which older records have, is None: an error of measurement, of which `impossible` tells.
    """

    flops_per_s: Figure = None
    bytes_per_s: Figure = None
    peak_flops_per_s: Figure = None
    peak_bytes_per_s: Figure = None
    of_peak_flops: Figure = None
    of_peak_bandwidth: Figure = None
    peak_source: str | None = None  # 'datasheet', 'measured' or 'unknown'

    def __post_init__(self) -> None:
        for name in ("of_peak_flops", "of_peak_bandwidth"):
            if (getattr(self, name) or 0) > 1:
                object.__setattr__(self, name, None)

    @property
    def impossible(self) -> list[str]:
        """The peaks that the run is said to exceed."""
        rates = {
            "peak FLOP/s": (self.flops_per_s, self.peak_flops_per_s),
            "peak bandwidth": (self.bytes_per_s, self.peak_bytes_per_s),
        }
        return [name for name, (reached, peak) in rates.items() if reached is not None and peak and reached > peak]


@dataclass(frozen=True, kw_only=True)
class Energy:
    """Joules of all devices during training, samples per joule, and the counter that was read."""

    joules: Figure = None
    samples_per_joule: Figure = None
    source: str | None = None


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Tokens without (real) and with padding (processed); rates are at steady p_train, or at throughput."""

    real_per_sample: Figure = None
    processed_per_sample: Figure = None
    padding_share: Figure = None  # 0 to 1
    real_per_s: Figure = None
    processed_per_s: Figure = None


@dataclass(frozen=True, kw_only=True)
class Communication:
    """Communication between ranks that compute does not hide, in steady steps.

    `exposed_s`: seconds per step, {min, mean, max} over ranks. `share`: of compute, 0 to 1, mean over ranks.
    """

    exposed_s: dict[str, Figure] | None = None
    share: Figure = None


@dataclass(frozen=True, kw_only=True)
class WithLoading:
    """Prediction rates and latency with the loading of batches included."""

    throughput: Figure = None
    latency_s: Latency | None = None


@dataclass(frozen=True, kw_only=True)
class Leg:
    """A part of a run: from a start or resume to what ended it.

    `samples` and the rates are those that the next leg went on from. The other figures are those of all its time, as
    far as known: of a leg that was killed until its last checkpoint. `environment` has what differs from the record's.
    """

    first_step: int
    last_step: int
    began: str  # ISO 8601, UTC
    wall_s: Figure
    status: Literal["done", "failed", "oom", "interrupted", "killed"]
    samples: int
    ranks: int
    p_whole: Figure = None
    p_train: Figure = None
    p_core: Figure = None
    joules: Figure = None
    phases_s: dict[str, Figure] = field(default_factory=dict)
    environment: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class GoOn:
    """The newest checkpoint of a run that ended before it was done, and the command that goes on from it."""

    checkpoint: str | None = None
    command: str | None = None


@dataclass(frozen=True, kw_only=True)
class Times:
    """The measured times of rank 0 that its rates are computed from; `src.measure.raw_times` packs those of each step.

    Training: `whole_s`, `evaluation_s` and `compute_s` are of all `samples` of the rank; `iteration` and `compute` of
    its steady steps, with `steady_samples`. Prediction: `latency` of each batch, `loaded` with the loading of it.
    """

    samples: int
    whole_s: Figure = None
    evaluation_s: Figure = None
    compute_s: Figure = None
    steady_samples: int = 0
    iteration: str | None = None
    compute: str | None = None
    latency: str | None = None
    loaded: str | None = None


# Keys that older records of this version lack. Add each new figure here, so that older records can still be read.
_ADDED_LATER = (
    *("rates_over_ranks", "with_loading", "tokens", "communication", "mem.free_gib"),
    *("quality", "quality.group", "final_metric.direction", "run", "legs", "go_on", "times", "reading", "start"),
    *("classes", "calibration", *(f"times.{f.name}" for f in fields(Times))),
)

_RATES: dict[str, tuple[str, ...]] = {
    "train": ("p_whole", "p_train", "p_core", "steady", "run", "legs", "go_on"),
    "predict": ("throughput", "latency_s", "with_loading", "quality", "calibration"),
}


@dataclass(frozen=True, kw_only=True)
class Record:
    """One run. A 'train' record has the training rates, a 'predict' record has throughput and latency instead.
    `phases_s` holds seconds by the names of PHASES, and 'wall'. `rates_over_ranks` holds {rate: {min, mean, max}}.
    `ranks` is the world size, `reading` what became of a person's own data, `start` the time to the first step. `run`
    is an identity that a resumed run keeps. `samples`, `e2e_time_s`, `phases_s`, `energy`, `p_whole`, `p_train` and
    `p_core` are of all `legs`, the other figures of the last one.
    Raises ValueError when a figure of the other kind or an unknown phase is given.
    """

    kind: Literal["train", "predict"]
    case: Case
    status: Literal["done", "failed", "oom", "interrupted"]
    unit: str
    error: RunError | None = None
    go_on: GoOn | None = None
    run: str | None = None
    legs: list[Leg] | None = None
    e2e_time_s: Figure = None
    p_whole: Figure = None
    p_train: Figure = None
    p_core: Figure = None
    steady: Steady | None = None
    throughput: Figure = None
    latency_s: Latency | None = None
    with_loading: WithLoading | None = None
    final_metric: ReachedMetric | None = None
    quality: list[Quality] | None = None
    classes: list[ClassFigures] | None = None
    calibration: list[ScoreGroup] | None = None
    mem: Memory | None = None
    phases_s: dict[str, Figure] = field(default_factory=dict)
    utilisation: Utilisation | None = None
    energy: Energy | None = None
    tokens: Tokens | None = None
    communication: Communication | None = None
    samples: int | None = None
    ranks: int = 1
    rates_over_ranks: dict[str, dict[str, Figure]] | None = None
    times: Times | None = None
    reading: Reading | None = None
    start: Start | None = None
    config: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)  # of figures

    def __post_init__(self) -> None:
        wrong = [key for key in _keys_of_other_kind(self.kind) if getattr(self, key) is not None]
        if wrong:
            raise ValueError(f"a {self.kind} record has no {', '.join(wrong)}")
        unknown = sorted(set(self.phases_s) - {*PHASES, "wall"})
        if unknown:
            raise ValueError(f"phases_s has the unknown phase '{unknown[0]}'; the phases are {', '.join(PHASES)}, wall")

    def to_dict(self) -> dict[str, Any]:
        """Returns the keys of result.json in order, as plain values; NaN, infinity and beyond 1e60 become None."""
        left_out = _keys_of_other_kind(self.kind)
        plain = {key: _plain(value) for key, value in asdict(self).items() if key not in left_out}
        return {"schema_version": SCHEMA_VERSION, **plain}


def from_figures(figures: dict[str, Any]) -> Record:
    """Returns the record with these figures; absent figures are None. NaN, infinity and beyond 1e60 become None.

    Secrets of the config are masked. Values are plain, or scalars of numpy and torch; an object (`mem`, `steady`) is a
    dict with all of its keys. Raises ValueError that names the first key that is unknown or of the wrong type.
    """
    if "config" in figures:
        figures = figures | {"config": masked(figures["config"])}
    return build(Record, _plain(figures), optional=[*(f.name for f in fields(Record)), *_ADDED_LATER])


def write_record(record: Record, path: Path) -> None:
    """Writes the record as JSON, atomically, one history row per line; creates folders. Raises UserError on failure."""
    plain = record.to_dict()
    plain["digest"] = digest(plain)
    rows = [json.dumps(row, ensure_ascii=False, allow_nan=False) for row in plain.pop("history")]
    head = json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False).removesuffix("\n}")
    history = "[\n    " + ",\n    ".join(rows) + "\n  ]" if rows else "[]"
    write_text(path, f'{head},\n  "history": {history}\n}}\n')


def digest(content: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of a record's JSON but for its digest, whatever the order of keys."""
    plain = {key: value for key, value in content.items() if key != "digest"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_record(path: Path) -> Record:
    """Returns the record in a file, or in the result.json of a run folder.

    Raises UserError for a missing file, text that is not JSON, another schema version, and a key that is missing,
    unknown or of the wrong type.
    """
    file = path / "result.json" if path.is_dir() else path
    data = read_json(file)
    if not isinstance(data, dict):
        raise UserError(f"{file}: a record is a JSON object, this is a {type(data).__name__}: give a result.json")
    version = data.pop("schema_version", None)
    data.pop("digest", None)
    if version != SCHEMA_VERSION:
        raise UserError(
            f"{file}: key 'schema_version' is {version!r}, this code reads {SCHEMA_VERSION}: use that which wrote it"
        )
    try:
        record = build(Record, data, optional=(*_keys_of_other_kind(data.get("kind")), *_ADDED_LATER))
        check_parts(record.config, CONFIG, "config")
        check_parts(record.environment, ENVIRONMENT, "environment")
        check_parts(record.history, list[dict[str, Figure]], "history")
        return record
    except ValueError as error:
        raise UserError(f"{file}: {error}") from error


def check_file_names(record: Record, source: Path, *keys: str) -> None:
    """Raises UserError if a name of the record's case cannot be part of a file name: '../x' would leave the folder.

    Args:
        source: the file or folder of the record, for the message.
        keys: fields of `Case` that are used in a file name.
    """
    for key in keys:
        name = getattr(record.case, key)
        if not FILE_NAME.fullmatch(name):
            raise UserError(
                f"{source}: key 'case.{key}' is {name!r}, which cannot be part of a file name: give a letter or digit, "
                "then letters, digits, '.', '_', '-' or '+'"
            )


def _keys_of_other_kind(kind: Any) -> tuple[str, ...]:
    return tuple(key for other, keys in _RATES.items() if other != kind for key in keys)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):  # a numpy or torch scalar
        value = value.item()
    if isinstance(value, float) and not within_use(value):
        return 0.0 if abs(value) < 1 else None
    return value
