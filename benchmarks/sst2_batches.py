"""Speed of tokenising SST-2 and of its loader: `python -m benchmarks.sst2_batches --raw FOLDER --vocabulary FOLDER`.

Times an epoch of training batches without training, its start included; prints the fastest of three.
"""

import argparse
import tempfile
import time
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Any

import torch

from src.datamodules.text.loader import PADDINGS
from src.datamodules.text.sst2 import SST2DataModule
from src.system.workers import cpu_count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--raw", help="a folder with train.tsv and dev.tsv; GLUE's are downloaded if not given")
    parser.add_argument("--vocabulary", default="distilbert-base-uncased", help="a folder with vocab.txt")
    parser.add_argument("--batch-size", type=int, default=96)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        common = {"data_dir": folder, "raw": options.raw, "vocabulary": options.vocabulary, "name": "sst2", "seed": 0}
        modules = [SST2DataModule(**common, batch_size=options.batch_size, padding=padding) for padding in PADDINGS]
        files = modules[0].files() | {"vocabulary": modules[0].vocabulary.path}  # downloads are not timed
        begin = time.perf_counter()
        modules[0].prepare_data()
        print(f"{len(files)} files; tokenised in {time.perf_counter() - begin:.2f} s on {cpu_count()} cores\n")
        print("| padding | sizes | padding share | begin, ms | batch, us | million sentences/s |")
        print("|---|---|---:|---:|---:|---:|")
        for module in modules:
            module.device = options.device
            module.setup("fit")
            print(row(module))


def row(module: SST2DataModule) -> str:
    """Measures one kind of padding; returns a line of the table."""
    metered = module.train_dataloader()
    loader: Any = metered.loader
    begin_s, rest_s = min((epoch(module, metered) for _ in range(3)), key=sum)
    real, processed = module.tokens(slice(len(metered)))
    rate = len(metered) * module.batch_size / (begin_s + rest_s)
    sizes = ", ".join(map(str, loader.sizes.tolist()))
    return (
        f"| `{module.padding}` | {sizes} | {1 - real / processed:.1%} | {begin_s * 1e3:.1f} "
        f"| {rest_s / len(metered) * 1e6:.1f} | {rate / 1e6:.2f} |"
    )


def epoch(module: SST2DataModule, batches: Iterable[Any]) -> tuple[float, float]:
    """Seconds until the first batch, and for the rest of an epoch."""
    times = []
    iterator = iter(batches)
    for part in (islice(iterator, 1), iterator):
        begin = time.perf_counter()
        deque(part, maxlen=0)
        if module.device is not None and module.device.type == "cuda":
            torch.cuda.synchronize(module.device)
        times.append(time.perf_counter() - begin)
    return times[0], times[1]


if __name__ == "__main__":
    main()
