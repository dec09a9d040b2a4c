"""Phases, rates, energy and roofline of any training loop, as those of this project's records."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import torch
import yaml

from src.errors import UserError
from src.measure.clock import Clock
from src.measure.energy import energy_counter
from src.measure.memory import peak_memory
from src.measure.over_ranks import energy_figures, training_figures, worst_memory
from src.measure.phases import PHASES
from src.measure.roofline import DTYPE_OF_PRECISION, Peaks, datasheet, peaks_of, utilisation

B = TypeVar("B")

CLOCKS = {"cuda": "CUDA events on the compute stream", "cpu": "the host's monotonic clock"}
FORMULAS = {  # docs/reference/metrics.md has them too
    "p_whole": "trained samples / (first training step .. end of training), evaluation and checkpoints included",
    "p_train": "trained samples / (that time - evaluation)",
    "p_core": "trained samples / compute (with its exposed communication)",
    "steady": "the same after the warm-up steps; p_train counts iterations without evaluation and checkpoints",
    "energy": "joules from NVML's total-energy counter at both ends of training, summed over the ranks' devices",
    "utilisation": "steady p_core per device x FLOPs and bytes of a sample, over the hardware's peak for the precision",
}


@dataclass(frozen=True)
class Work:
    """What one sample costs in training, for the roofline: FLOPs (two per multiply-add) and bytes of device memory.

    `precision` is that of the products: fp32, tf32, amp (float16), fp16 or bf16. The peaks per second are those of the
    device's datasheet, of a CPU measured, unless they are given.
    """

    flops: float
    nbytes: float = 0.0
    precision: str = "fp32"
    peak_flops: float | None = None
    peak_bytes: float | None = None

    def __post_init__(self) -> None:
        if self.precision not in DTYPE_OF_PRECISION:
            names = ", ".join(DTYPE_OF_PRECISION)
            raise UserError(f"precision={self.precision!r} is not allowed; expected one of {names}")


class Meter:
    """Measures one training: `begin`, a `step` for each optimiser step, `end`, then `figures`.

    The time since the last mark is assigned to a phase: by `batches` to `fetch`, by `step` to `compute`, by `mark` to
    the one that it names. The phases add up to the wall time. On a GPU the marks are CUDA events, not waited for.

    Args:
        device: where the network computes.
        warmup_steps: steps that the steady rates leave out.
        work: of a sample, for the roofline.
    """

    def __init__(self, device: torch.device | str, warmup_steps: int = 10, work: Work | None = None) -> None:
        self.device, self.warmup_steps, self.work = torch.device(device), warmup_steps, work
        if self.device.type not in CLOCKS:
            raise UserError(f"device={device} is not supported; expected cpu or cuda")
        self.clock = Clock(perf_counter())
        self._counter = energy_counter(self.device)
        self._joules: float | None = None
        self._peak: Mapping[str, float | None] = {}
        self._is_open = False

    def begin(self) -> None:
        """Begins the training time; what came before is `startup`."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self._counter = energy_counter(self.device)
        self.clock.begin_training(self.device)
        self._is_open = True

    def batches(self, loader: Iterable[B]) -> Iterator[B]:
        """Yields the loader's batches; waiting for them is the phase `fetch`."""
        iterator = iter(loader)
        while True:
            self.clock.mark("other")
            try:
                batch = next(iterator)
            except StopIteration:
                return
            finally:
                self.clock.mark("fetch")
            yield batch

    def mark(self, phase: str) -> None:
        """Assigns the time since the last mark to a phase, such as `transfer`. Raises UserError for an unknown one."""
        check_phase(phase)
        self.clock.mark(phase)

    def within(self, phase: str) -> AbstractContextManager[None]:
        """Assigns the time of a block to a phase: `evaluation` or `checkpoint`. Raises UserError for an unknown one."""
        check_phase(phase)
        return self.clock.within(phase)

    def step(self, samples: int) -> None:
        """Ends an optimiser step of so many samples; the time since the last mark is `compute`."""
        self.clock.mark("compute", samples)
        if len(self.clock.steps) % 100 == 0:
            self.clock.read()

    def end(self) -> None:
        """Ends the training time; waits for the device once. Later calls do nothing."""
        if not self._is_open:
            return
        self._is_open = False
        self.clock.end_training()
        self._joules = None if self._counter is None else self._counter.joules()
        self._peak = peak_memory(self.device)

    def figures(self) -> dict[str, Any]:
        """Returns the figures by their names in a record (docs/reference/record.md), with their clock and formulas.

        With several ranks every rank calls it; rates, energy and samples are of all of them.
        """
        self.end()
        figures = training_figures(self.clock, self.warmup_steps)
        best = (figures["steady"] or figures)["p_core"]
        return figures | {
            "phases_s": {**self.clock.totals_s, "wall": self.clock.marked_s()},
            **energy_figures(self._joules, float(sum(self.clock.steps.samples))),
            "mem": worst_memory(self._peak),
            "utilisation": self._utilisation(best / figures["ranks"]) if best and self.work else None,
            "clock": CLOCKS[self.device.type],
            "formulas": FORMULAS,
        }

    def _utilisation(self, rate: float) -> dict[str, Any] | None:
        work = self.work
        assert work is not None
        if work.peak_flops or work.peak_bytes:
            peaks = Peaks(work.peak_flops, work.peak_bytes, "given")
        else:
            file = datasheet(torch.cuda.get_device_name(self.device)) if self.device.type == "cuda" else None
            flops, bandwidth = peaks_in(file)
            reached = rate * work.flops, rate * work.nbytes
            peaks = peaks_of(work.precision, flops, bandwidth, accelerator=self.device.type, reached=reached)
        return utilisation(rate, work.flops, work.nbytes, peaks)


@contextmanager
def training(device: torch.device | str, warmup_steps: int = 10, work: Work | None = None) -> Iterator[Meter]:
    """Measures the training within the block; see Meter, whose `figures` are complete when the block has ended."""
    meter = Meter(device, warmup_steps, work)
    meter.begin()
    try:
        yield meter
    finally:
        meter.end()


def check_phase(phase: str) -> None:
    if phase not in PHASES:
        raise UserError(f"phase {phase!r} is not allowed; expected one of {', '.join(PHASES)}")


def peaks_in(file: Path | None) -> tuple[dict[str, float | None], float | None]:
    """Returns FLOP/s by dtype and bytes/s of a file of conf/hardware."""
    if file is None:
        return {}, None
    values = yaml.safe_load(file.read_text(encoding="utf-8"))
    flops = {name: None if peak is None else float(peak) for name, peak in values["peak_flops"].items()}
    return flops, float(values["peak_bandwidth"])
