"""One published result row: figures as printed, in the units of our records, and their corrections."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

FIGURES = (
    "e2e_time_s",
    "train_time_s",
    "p_whole",
    "p_train",
    "p_core",
    "throughput",
    "mem_used_gib",
    "mem_total_gib",
)
PERCENTILES = ("mean", "p90", "p95", "p99")


@dataclass(frozen=True)
class Correction:
    """The correct value of a figure, and the reason in one line."""

    value: float | str
    why: str


@dataclass(frozen=True)
class PublishedMetric:
    """The metric reached by a training; `target` is the publisher's own threshold, if any."""

    name: str
    value: float
    target: float | None


@dataclass(frozen=True)
class PublishedRow:
    """A result row of a published table, or of a reference implementation that we measured (`measured`).

    Rates are `unit` per second, times in seconds, memory in GiB. A figure that the table does not give ('/') is None.

    Attributes:
        trainer: nodes x devices per node.
        fix_hp: the printed change of hyper-parameters, '/' for none.
        url: the address of the source, with https.
        comparable: False for figures that the publisher has withdrawn.
        command: repeats a measured reference; empty for a publication.
        environment: the machine and software that the source names.
        variant: a model or machine of the source. Speed-ups are only computed within one variant.
        train_time_s: a time to train whose start and end the publisher does not define.
        throughput: a rate that is none of p_whole, p_train and p_core.
        corrected: the correction of each wrong figure (or of `precision`).
    """

    model: str
    kind: Literal["train", "predict"]
    trainer: str
    precision: str
    hardware: str
    batch_per: Literal["device", "global"]
    unit: str
    source: str
    url: str = ""
    fix_hp: str = "/"
    batch_size: int | None = None
    measured: bool = False
    comparable: bool = True
    command: str = ""
    variant: str = ""
    environment: str = ""
    note: str = ""
    e2e_time_s: float | None = None
    train_time_s: float | None = None
    p_whole: float | None = None
    p_train: float | None = None
    p_core: float | None = None
    throughput: float | None = None
    mem_used_gib: float | None = None
    mem_total_gib: float | None = None
    latency_s: Mapping[str, float] | None = None
    final_metric: PublishedMetric | None = None
    corrected: Mapping[str, Correction] = field(default_factory=dict)

    @property
    def world_size(self) -> int:
        """Devices over all nodes."""
        nodes, devices = self.trainer.split("x")
        return int(nodes) * int(devices)

    @property
    def global_batch(self) -> int | None:
        """Samples of one step over all devices, None if the batch was not published."""
        if self.batch_size is None:
            return None
        return self.batch_size * (self.world_size if self.batch_per == "device" else 1)

    @property
    def true_precision(self) -> str:
        """The precision of the computation: the corrected one if the printed label is wrong."""
        return str(self.corrected["precision"].value) if "precision" in self.corrected else self.precision

    def figure(self, name: str) -> float | None:
        """Returns the printed figure; `name` is one of FIGURES, 'final_metric' or 'latency_s.mean' (p90, p95, p99)."""
        if name == "final_metric":
            return self.final_metric.value if self.final_metric else None
        group, _, part = name.partition(".")
        if group == "latency_s" and part in PERCENTILES:
            return (self.latency_s or {}).get(part)
        if name not in FIGURES:
            raise ValueError(f"a published row has no figure {name!r}; there are {', '.join(FIGURES)}")
        return getattr(self, name)

    def best(self, name: str) -> float | None:
        """Returns the corrected figure if there is a correction, else the printed one."""
        return float(self.corrected[name].value) if name in self.corrected else self.figure(name)
