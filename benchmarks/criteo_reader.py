"""Speed of writing synthetic clicks to disk and of reading them: `python -m benchmarks.criteo_reader --rows 8000000`.

Files are read from the page cache. Prints the fastest of three passes, and a first one that compares checksums.
"""

import argparse
import tempfile
import time
from pathlib import Path

from src.datamodules.clicks.check import check_values
from src.datamodules.clicks.feature_spec import FeatureSpec
from src.datamodules.clicks.split_binary import SplitBinary, SplitLoader
from src.datamodules.clicks.synthetic_files import generate
from src.system.workers import cpu_count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--folder", type=Path, help="a folder with 89 bytes of free space a row")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name) / "clicks"
        begin = time.perf_counter()
        generate(folder, train_rows=options.rows, test_rows=1)
        rates = {"generated and written": options.rows / (time.perf_counter() - begin)}
        spec = FeatureSpec.load(folder)
        split = SplitBinary(folder, spec, "train")
        begin = time.perf_counter()
        check_values(folder, {"train": split})
        rates["ids checked"] = options.rows / (time.perf_counter() - begin)
        rates["first read, compared with checksums, batches of 65,536, 4 threads"] = read_rate(
            SplitLoader(split, 65_536, drop_last=False)
        )
        for batch_size in (65_536, 262_144):
            for threads in sorted({1, 2, 4, 8, cpu_count()}):
                loader = SplitLoader(split, batch_size, drop_last=False, threads=threads)
                rates[f"read, batches of {batch_size:,}, {threads} threads"] = max(read_rate(loader) for _ in range(3))
    bytes_per_row = split.layout.bytes_per_row
    print(f"{options.rows:,} rows of {bytes_per_row} bytes, {cpu_count()} cores\n")
    print("| work | million rows/s | GB/s |\n|---|---:|---:|")
    for work, rate in rates.items():
        print(f"| {work} | {rate / 1e6:.1f} | {rate * bytes_per_row / 1e9:.2f} |")


def read_rate(loader: SplitLoader) -> float:
    """Rows per second of one epoch."""
    begin = time.perf_counter()
    rows = sum(batch.count for batch in loader)
    return rows / (time.perf_counter() - begin)


if __name__ == "__main__":
    main()
