"""Synthetic clicks on disk: samples of synthetic.py in split binary format, with their expected metrics."""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import torch
from jaxtyping import Float
from torch import Tensor

from src.batches.clicks import DTYPES, ClickLayout
from src.config.ranges import Count, ManyRows, Seed
from src.datamodules.clicks.feature_spec import SPLITS, FeatureSpec
from src.datamodules.clicks.synthetic import BayesMetrics, ClickDistribution, Rows, Sample, tables_of
from src.datamodules.download import sha256_of
from src.datamodules.prepared import atomic_folder
from src.errors import UserError
from src.system.files import sole_maker
from src.system.progress import item_progress
from src.system.workers import cpu_count

BLOCK = 1 << 14  # rows drawn at a time: they fit in a core's cache
VERSION = 1  # of the distribution


def generate(
    folder: Path,
    *,
    train_rows: ManyRows,
    test_rows: ManyRows,
    cardinalities: Sequence[Rows] | None = None,
    hotness: Sequence[Count] | None = None,
    max_rows: ManyRows | None = None,
    num_numerical: Count = 13,
    seed: Seed = 0,
) -> None:
    """Fills `folder` unless it has these rows already; in bounded memory, on all cores.

    The metadata of its feature_spec.yaml has these settings (`synthetic`) and the expected `bayes_auc`,
    `bayes_log_loss` and `click_rate` on the test rows. Raises UserError for a folder with other rows.
    """
    tables = tables_of(cardinalities, hotness, max_rows)
    sizes, hot = [table.cardinality for table in tables], [table.hotness for table in tables]
    settings = {
        "version": VERSION,
        "train_rows": train_rows,
        "test_rows": test_rows,
        "cardinalities": sizes,
        "hotness": hot,
        "num_numerical": num_numerical,
        "seed": seed,
    }
    with sole_maker(folder):
        if not folder.exists():
            _draw(folder, FeatureSpec.of(sizes, num_numerical, hot), settings)
    if FeatureSpec.load(folder).metadata.get("synthetic") != settings:
        raise UserError(f"{folder} was generated with other settings: delete it, or give another data_dir")


def _draw(folder: Path, spec: FeatureSpec, settings: dict[str, Any]) -> None:
    distribution = ClickDistribution(spec.layout, settings["seed"])
    threads = torch.get_num_threads()
    with atomic_folder(folder) as part, item_progress() as progress:
        try:
            torch.set_num_threads(1)  # the threads that draw blocks are enough
            metrics = BayesMetrics()
            for name in ("train", "test"):
                rows = settings[f"{name}_rows"]
                bar = progress.add_task(f"drawing {name} rows", total=rows)
                for logits in _written(distribution, part / name, rows, test=name == "test"):
                    progress.advance(bar, len(logits))
                    if name == "test":
                        metrics.add(logits)
        finally:
            torch.set_num_threads(threads)
        sums = {file: sha256_of(part / file) for name in SPLITS for file in spec.bytes_per_row(name)}
        replace(spec, metadata={**metrics.compute(), "synthetic": settings, "sha256": sums}).write(part)


def _written(
    distribution: ClickDistribution, folder: Path, rows: int, *, test: bool
) -> Iterator[Float[Tensor, " rows"]]:
    """Writes one split; yields the logits of each block once it is written, in order."""
    folder.mkdir()
    names = ["label.bin", "numerical.bin", *(table.name for table in distribution.layout.tables)]
    files = [(folder / name).open("wb") for name in names]
    in_flight: deque[Future[Float[Tensor, " rows"]]] = deque()

    def draw(number: int) -> Float[Tensor, " rows"]:
        begin = number * BLOCK
        sample = distribution.sample(min(BLOCK, rows - begin), number, test=test)
        _write_at(begin, sample, distribution.layout, files)
        return sample.logits

    with ThreadPoolExecutor(cpu_count()) as executor:
        try:
            for number in range(-(-rows // BLOCK)):
                in_flight.append(executor.submit(draw, number))
                if len(in_flight) > 2 * cpu_count():
                    yield in_flight.popleft().result()
            while in_flight:
                yield in_flight.popleft().result()
        finally:
            executor.shutdown(cancel_futures=True)
            for file in files:
                file.close()


def _write_at(row: int, sample: Sample, layout: ClickLayout, files: Sequence[BinaryIO]) -> None:
    slots = sample.ids.split([table.hotness for table in layout.tables])
    ids = [part.T.to(DTYPES[name]) for part, name in zip(slots, layout.dtypes, strict=True)]
    for file, values in zip(files, [sample.labels, sample.numerical, *ids], strict=True):
        content = values.contiguous().numpy()
        offset = row * (content.nbytes // len(content))
        view = content.reshape(-1).view("uint8").data
        while view:
            written = os.pwrite(file.fileno(), view, offset)
            view, offset = view[written:], offset + written
