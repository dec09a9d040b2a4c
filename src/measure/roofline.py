"""Compares a rate with the peak FLOP/s and memory bandwidth of the hardware."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch

ADAM_BYTES = 28  # per parameter: reads it, its gradient and two moments, writes it and the moments, 4 bytes each
DTYPE_OF_PRECISION = {"fp32": "fp32", "tf32": "tf32", "amp": "fp16", "fp16": "fp16", "bf16": "bf16"}


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
        "of_peak_flops": rate * flops / peaks.flops_per_s if peaks.flops_per_s else None,
        "of_peak_bandwidth": rate * nbytes / peaks.bytes_per_s if peaks.bytes_per_s else None,
        "peak_source": peaks.source,
    }


def peaks_of(
    precision: str, peak_flops: Mapping[str, float | None], peak_bandwidth: float | None, accelerator: str
) -> Peaks:
    """Returns the datasheet's peaks for products in a precision; without one, those measured on a CPU, none else."""
    if not any(peak_flops.values()):
        return cpu_peaks() if accelerator == "cpu" else Peaks(None, None, "unknown")
    return Peaks(peak_flops.get(DTYPE_OF_PRECISION[precision]), peak_bandwidth, "datasheet")


@cache
def cpu_peaks() -> Peaks:
    """Returns the peaks of this CPU, measured once per process."""
    return measured_peaks()


def measured_peaks(size: int = 1024, copy_mib: int = 256) -> Peaks:
    """Returns the CPU's best rate of a float32 matrix product (size^3) and of a copy (bytes read + written).

    Takes about 0.2 s.
    """
    a, b = torch.rand(size, size), torch.rand(size, size)
    source = torch.ones(copy_mib << 18)
    target = torch.empty_like(source)

    def best(call: object, *args: object) -> float:
        times = []
        for _ in range(3):
            begin = time.perf_counter()
            call(*args)  # type: ignore[operator]
            times.append(time.perf_counter() - begin)
        return min(times)

    product_s = best(torch.mm, a, b)
    copy_s = best(target.copy_, source)
    return Peaks(2 * size**3 / product_s, 2 * source.nbytes / copy_s, "measured")
