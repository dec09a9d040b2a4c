"""Time and memory of preparing raw click logs: `python -m benchmarks.criteo_prepare --rows 20000000`.

Writes 24 day files of random rows in the format of real ones (8-digit ids by power laws over the Terabyte set's
cardinalities, small integers, missing fields) and prepares them. Prints rows per second and core, and the peak memory
of all processes: resident pages, counted once if shared (PSS).
"""

import argparse
import gzip
import os
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
from jaxtyping import UInt8

from src.datamodules.clicks.prepare import MAX_WORKERS, prepare_criteo
from src.datamodules.clicks.raw import NUM_DAYS
from src.system.workers import cpu_count

# Cardinalities of Criteo Terabyte with frequency limit 15 (NVIDIA DeepLearningExamples, DLRM). The large columns have
# many more ids that are rare.
CARDINALITIES = (
    *(7912889, 33823, 17139, 7339, 20046, 4, 7105, 1382, 63, 5554114, 582469, 245828, 11),
    *(2209, 10667, 104, 4, 968, 15, 8165896, 2675940, 7156453, 302516, 12022, 97, 35),
)
RARE = 30
MISSING = 0.08  # of numbers and of ids
CHUNK = 1 << 15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--workers", type=int, default=min(cpu_count(), MAX_WORKERS))
    parser.add_argument("--gzip", action="store_true", help="compress the day files")
    parser.add_argument("--folder", type=Path, help="a folder with 550 bytes of free space a row")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        size = write_days(folder, options.rows, options.gzip)
        print(
            f"generated {options.rows:,} rows, {size / 2**30:.2f} GiB{' of gzip' if options.gzip else ''}", flush=True
        )
        begin, cpu = time.perf_counter(), cpu_seconds()
        with PeakMemory() as memory:
            prepare_criteo(folder, folder / "prepared", workers=options.workers)
        seconds, cpu = time.perf_counter() - begin, cpu_seconds() - cpu
    columns = {
        "rows": f"{options.rows:,}",
        "text": "gzip" if options.gzip else "plain",
        "workers": options.workers,
        "seconds": f"{seconds:.1f}",
        "core seconds": f"{cpu:.1f}",
        "rows/s": f"{options.rows / seconds:,.0f}",
        "rows/s per worker": f"{options.rows / seconds / options.workers:,.0f}",
        "rows per core second": f"{options.rows / cpu:,.0f}",
        "peak memory": f"{memory.peak / 2**30:.2f} GiB ({memory.parent / 2**30:.2f} of it this process)",
        "machine": f"{cpu_count()} cores",
    }
    for row in (columns, ["---"] * len(columns), columns.values()):
        print(f"| {' | '.join(map(str, row))} |")


def cpu_seconds() -> float:
    """CPU seconds of this process and its finished children."""
    return sum(os.times()[:4])


class PeakMemory:
    """Measures the peak memory in bytes of this process and its children, sampled every 0.1 s in a thread."""

    peak = parent = 0

    def __enter__(self) -> "PeakMemory":
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        process = psutil.Process()
        while not self._stop.wait(0.1):
            parent = process.memory_full_info().pss
            total = parent
            for child in process.children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    total += child.memory_full_info().pss
            if total > self.peak:
                self.peak, self.parent = total, parent


def write_days(folder: Path, rows: int, compressed: bool) -> int:
    """Writes the day files; returns their size in bytes."""
    generator = np.random.default_rng(0)
    size = 0
    for day in range(NUM_DAYS):
        count = rows * (day + 1) // NUM_DAYS - rows * day // NUM_DAYS
        path = folder / f"day_{day}{'.gz' * compressed}"
        with gzip.open(path, "wb", compresslevel=6) if compressed else path.open("wb") as file:
            for begin in range(0, count, CHUNK):
                file.write(text(generator, min(CHUNK, count - begin)).tobytes())
        size += path.stat().st_size
    return size


def text(generator: np.random.Generator, rows: int) -> UInt8[np.ndarray, " bytes"]:
    """Random lines: generates all fields at full width, then drops leading zeros and missing fields."""
    parts, kept = [], []
    for column in range(40):
        if column < 14:
            numbers = (generator.random(rows) < 0.03) if column == 0 else np.exp(generator.gamma(2, 1.3, rows)) - 2
            numbers = np.clip(numbers, 0, 9_999_999).astype(np.int64)
            digits = numbers[:, None] // 10 ** np.arange(6, -1, -1) % 10
            wide = numbers[:, None] >= 10 ** np.arange(6, -1, -1)
            wide[:, -1] = True
        else:
            digits = ids(generator, column - 14, rows)[:, None] >> np.arange(28, -4, -4) & 15
            wide = np.ones_like(digits, bool)
        if column:
            wide &= (generator.random(rows) >= MISSING)[:, None]
        parts += [np.frombuffer(b"0123456789abcdef", np.uint8)[digits], np.full((rows, 1), 10 if column == 39 else 9)]
        kept += [wide, np.ones((rows, 1), bool)]
    return np.concatenate(parts, axis=1).astype(np.uint8)[np.concatenate(kept, axis=1)]


def ids(generator: np.random.Generator, column: int, rows: int) -> np.ndarray:
    """Random ids: 32-bit hashes of ranks that follow a power law."""
    cardinality = CARDINALITIES[column] * (RARE if CARDINALITIES[column] > 100_000 else 1)
    rank = (cardinality ** generator.random(rows)).astype(np.uint64) + np.uint64(column << 40)
    for shift, factor in ((33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53)):
        rank = (rank ^ (rank >> np.uint64(shift))) * np.uint64(factor)
    return (rank >> np.uint64(32)).astype(np.int64)


if __name__ == "__main__":
    main()
