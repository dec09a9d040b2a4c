"""Compares a rate with the peak FLOP/s and memory bandwidth of the hardware."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml

from src.measure.cpu_peaks import kept_peaks
from src.system.home import CONF
from src.system.workers import cpu_count

ADAM_BYTES = 28  # per parameter: reads it, its gradient and two moments, writes it and the moments, 4 bytes each
DTYPE_OF_PRECISION = {"fp32": "fp32", "tf32": "tf32", "amp": "fp16", "fp16": "fp16", "bf16": "bf16"}


def datasheet(gpu: str) -> Path | None:
    """Returns the file of conf/hardware that matches a GPU's product name, such as 'NVIDIA H200'; None for others."""
    for file in sorted((CONF / "hardware").glob("*.yaml")):
        match = yaml.safe_load(file.read_text(encoding="utf-8")).get("match")
        if match and re.search(match, gpu):
            return file
    return None


@dataclass(frozen=True)
class Cost:
    """The least cost of one sample: useful floating point operations, and bytes read and written in device memory."""

    flops_forward: float
    flops_training: float
    bytes_forward: float
    bytes_training: float


@dataclass(frozen=True)
class Peaks:
    """Peaks of one device, None if unknown; FLOP/s for the dtype in use. `source`: datasheet, measured or unknown."""

    flops_per_s: float | None
    bytes_per_s: float | None
    source: str


def utilisation(rate: float | None, flops: float, nbytes: float, peaks: Peaks) -> dict[str, float | str | None] | None:
    """Returns the achieved FLOP/s and bytes/s of one device and their shares of the peaks; None without a rate.

    A share above 1 is none: the rate or the peak is an error of measurement.

    Args:
        rate: samples per second of one device.
        flops, nbytes: of one sample, from the task's `cost()`.
    """
    if rate is None:
        return None
    return {
        "flops_per_s": rate * flops,
        "bytes_per_s": rate * nbytes,
        "peak_flops_per_s": peaks.flops_per_s,
        "peak_bytes_per_s": peaks.bytes_per_s,
        "of_peak_flops": share(rate * flops, peaks.flops_per_s),
        "of_peak_bandwidth": share(rate * nbytes, peaks.bytes_per_s),
        "peak_source": peaks.source,
    }


def share(reached: float, peak: float | None) -> float | None:
    """Returns the share of a peak; None without a peak, or where more than all of it was reached."""
    return reached / peak if peak and reached <= peak else None


def peaks_of(
    precision: str,
    peak_flops: Mapping[str, float | None],
    peak_bandwidth: float | None,
    accelerator: str,
    reached: Sequence[float] = (0.0, 0.0),
) -> Peaks:
    """Returns the datasheet's peaks for products in a precision; without one, those measured on a CPU, none else.

    Args:
        reached: FLOP/s and bytes/s of the run, of which a CPU's peaks are at least as much unless measured too low.
    """
    dtype = DTYPE_OF_PRECISION[precision]
    if any(peak_flops.values()):
        return Peaks(peak_flops.get(dtype), peak_bandwidth, "datasheet")
    return cpu_peaks(dtype, reached) if accelerator == "cpu" else Peaks(None, None, "unknown")


def cpu_peaks(dtype: str, reached: Sequence[float] = (0.0, 0.0)) -> Peaks:
    """Returns the measured peaks of a rank's share of this machine's cores, of as many threads as it uses at most."""
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    cores = min(1.0, cpu_count() / (torch.get_num_threads() * ranks_here))  # of each thread
    flops_per_s, bytes_per_s = kept_peaks(dtype, [rate / cores for rate in reached])
    return Peaks(flops_per_s * cores, bytes_per_s * cores, "measured")
