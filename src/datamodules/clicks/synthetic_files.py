"""Synthetic clicks on disk: the law of criteo_synthetic.py in split binary form, with what is known of it."""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import torch
from jaxtyping import Float
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from src.batches.clicks import DTYPES, ClickLayout
from src.datamodules.clicks.feature_spec import FeatureSpec
from src.datamodules.clicks.synthetic import Expectation, Law, Sample, tables_of
from src.datamodules.prepared import atomic_folder
from src.errors import UserError
from src.system.files import sole_maker
from src.system.workers import cpu_count

BLOCK = 1 << 14  # rows that are drawn together: they fit into a core's cache
VERSION = 1  # of the law


def generate(
    folder: Path,
    *,
    train_rows: int,
    test_rows: int,
    cardinalities: Sequence[int] | None = None,
    hotness: Sequence[int] | None = None,
    max_rows: int | None = None,
    num_numerical: int = 13,
    seed: int = 0,
) -> None:
    """Fills `folder`, unless it holds these very rows already; in bounded memory, on all cores.

    The metadata of its feature_spec.yaml has these settings (`synthetic`) and `bayes_auc`, `bayes_log_loss` and
    `click_rate` as expected on the test rows. Raises UserError for a folder that holds something else.
    """
    if min(train_rows, test_rows) < 1:
        raise UserError(f"train_rows={train_rows} and test_rows={test_rows} leave a split empty: give 1 or more")
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
        raise UserError(f"{folder} holds other clicks than asked for: delete it, or give another data_dir")


def _draw(folder: Path, spec: FeatureSpec, settings: dict[str, Any]) -> None:
    law = Law(spec.layout, settings["seed"])
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    threads = torch.get_num_threads()
    with atomic_folder(folder) as part, Progress(*columns, console=Console(stderr=True)) as progress:
        try:
            torch.set_num_threads(1)  # the threads that draw blocks are enough
            expected = Expectation()
            for name in ("train", "test"):
                rows = settings[f"{name}_rows"]
                bar = progress.add_task(f"drawing {name} rows", total=rows)
                for logits in _written(law, part / name, rows, test=name == "test"):
                    progress.advance(bar, len(logits))
                    if name == "test":
                        expected.add(logits)
        finally:
            torch.set_num_threads(threads)
        replace(spec, metadata={**expected.figures(), "synthetic": settings}).write(part)


def _written(law: Law, folder: Path, rows: int, *, test: bool) -> Iterator[Float[Tensor, " rows"]]:
    """Writes one split; yields the logits of each block when it is on disk, in order."""
    folder.mkdir()
    names = ["label.bin", "numerical.bin", *(table.name for table in law.layout.tables)]
    files = [(folder / name).open("wb") for name in names]
    under_way: deque[Future[Float[Tensor, " rows"]]] = deque()

    def draw(number: int) -> Float[Tensor, " rows"]:
        begin = number * BLOCK
        sample = law.sample(min(BLOCK, rows - begin), number, test=test)
        _write_at(begin, sample, law.layout, files)
        return sample.logits

    with ThreadPoolExecutor(cpu_count()) as executor:
        try:
            for number in range(-(-rows // BLOCK)):
                under_way.append(executor.submit(draw, number))
                if len(under_way) > 2 * cpu_count():
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
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
