"""Peaks of this machine's CPU, measured once and kept in the user's cache folder."""

import json
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from src.errors import UserError
from src.measure.environment import cpu_name
from src.system.files import locked, write_text
from src.system.reading import read_json
from src.system.workers import cpu_count

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
SIZE = 1024  # of the matrices
COPY_MIB = 256
LONG_S = 0.2  # for one product: in some dtypes a CPU is slow, smaller matrices do then
UNIMPROVED = 10  # rounds without a better rate, after which the best one stands
MOST_S = 3.0  # for all rounds of a measurement


def cache_file() -> Path:
    """Returns the file that the peaks are kept in."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "reprise" / "cpu_peaks.json"


def kept_peaks(dtype: str, reached: Sequence[float] = (0.0, 0.0)) -> tuple[float, float]:
    """Returns FLOP/s of a matrix product in a dtype and bytes/s of a copy, of as many threads as torch uses here.

    The first run on a machine measures them, one process at a time. They are measured again where a run has reached
    more; the higher rate is kept.

    Args:
        reached: FLOP/s and bytes/s of the run.
    """
    file, threads = cache_file(), torch.get_num_threads()
    key = f"{cpu_name()}, {threads} of {cpu_count()} cores, {dtype}, torch {torch.__version__}"
    peaks = read(file).get(key)
    if peaks is not None and all(map(float.__ge__, peaks, map(float, reached))):
        return peaks
    try:
        with locked(file.with_suffix(".lock")):
            if (of_another := read(file).get(key)) not in (None, peaks):  # which measured meanwhile
                return of_another  # type: ignore[return-value]
            peaks = better(peaks, measured(DTYPES[dtype]))
            write_text(file, json.dumps(read(file) | {key: peaks}, indent=2) + "\n")
            return peaks
    except (OSError, UserError):  # no such folder can be made: measured for this run alone
        return better(peaks, measured(DTYPES[dtype]))


def better(peaks: tuple[float, float] | None, others: tuple[float, float]) -> tuple[float, float]:
    return others if peaks is None else (max(peaks[0], others[0]), max(peaks[1], others[1]))


def read(file: Path) -> dict[str, tuple[float, float]]:
    """Returns the peaks in a file by their keys; none of a file that is missing or damaged."""
    try:
        entries: Any = read_json(file)
        return {str(key): (float(flops), float(nbytes)) for key, (flops, nbytes) in entries.items()
                if 0 < flops < math.inf and 0 < nbytes < math.inf}  # fmt: skip
    except (UserError, ValueError, TypeError, AttributeError, OverflowError):
        return {}


def measured(dtype: torch.dtype, size: int = SIZE, copy_mib: int = COPY_MIB) -> tuple[float, float]:
    """Returns the best rates seen: FLOP/s of a matrix product, and bytes/s that a copy reads and writes.

    Other work on the machine slows some repetitions; they go on until none is better, at most for MOST_S.
    """
    source = torch.ones(copy_mib << 18)
    target = torch.empty_like(source)
    edge = min(128, size)
    while True:
        a, b = (torch.rand(edge, edge).to(dtype) for _ in range(2))
        if edge == size or 8 * min(seconds(torch.mm, a, b) for _ in range(2)) > LONG_S:
            break
        edge *= 2
    product_s = copy_s = math.inf
    begin, unimproved = time.perf_counter(), 0
    while unimproved < UNIMPROVED and time.perf_counter() - begin < MOST_S:
        times = seconds(torch.mm, a, b), seconds(target.copy_, source)
        unimproved = 0 if times[0] < 0.99 * product_s or times[1] < 0.99 * copy_s else unimproved + 1
        product_s, copy_s = min(times[0], product_s), min(times[1], copy_s)
    return 2 * edge**3 / product_s, 2 * source.nbytes / copy_s


def seconds(call: Callable[..., object], *args: object) -> float:
    """Returns the wall seconds of a call."""
    begin = time.perf_counter()
    call(*args)
    return time.perf_counter() - begin
