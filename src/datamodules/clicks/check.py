"""Looking once at every id and label of a click data set: a wrong one would read or write beyond an embedding table."""

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from src.datamodules.clicks.split_binary import SplitBinary
from src.errors import UserError
from src.system.files import write_text
from src.system.workers import cpu_count

STAMP = "checked.json"
CHUNK = 1 << 22  # numbers that a thread looks at together


class Column(NamedTuple):
    """A file of whole numbers that must lie in 0 .. limit - 1, `width` of them in each row."""

    path: Path
    dtype: str
    limit: int
    width: int
    what: str


def check_values(folder: Path, splits: Mapping[str, SplitBinary]) -> None:
    """Checks all ids and labels, unless the stamp in `folder` says that these files have been checked before.

    Raises UserError naming file, row and value of the first one that is beyond its table or no label.
    """
    columns = [column for split in splits.values() for column in _columns(split)]
    stamp = json.dumps([_state(column, folder) for column in columns], indent=0) + "\n"
    path = folder / STAMP
    if path.is_file() and path.read_text("utf-8") == stamp:
        return
    chunks = [(column, begin) for column in columns for begin in range(0, _numbers(column), CHUNK)]
    bars = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    # A few chunks more than threads are under way: what is behind a bad value need not be looked at.
    with Progress(*bars, console=Console(stderr=True)) as progress, ThreadPoolExecutor(cpu_count()) as executor:
        bar = progress.add_task("checking ids", total=sum(column.path.stat().st_size for column in columns))
        for group in _grouped(chunks, 4 * cpu_count()):
            progress.advance(bar, sum(executor.map(_check_chunk, *zip(*group, strict=True))))
    try:
        write_text(path, stamp)
    except UserError:
        print(f"note: {path} cannot be written, so the ids are checked at every start; datamodule.check=false saves it")


def _columns(split: SplitBinary) -> Iterator[Column]:
    yield Column(split.labels, "uint8", 2, 1, "a label, which is 0 or 1")
    for path, table, dtype in zip(split.tables, split.layout.tables, split.layout.dtypes, strict=True):
        what = f"an id of {table.name}, which has cardinality {table.cardinality}"
        yield Column(path, dtype, table.cardinality, table.hotness, what)


def _state(column: Column, folder: Path) -> list[str | int]:
    """What must not change for a check to stay good."""
    status = column.path.stat()
    return [str(column.path.relative_to(folder)), column.limit, status.st_size, status.st_mtime_ns]


def _numbers(column: Column) -> int:
    return column.path.stat().st_size // np.dtype(column.dtype).itemsize


def _grouped(chunks: list[tuple[Column, int]], size: int) -> Iterator[list[tuple[Column, int]]]:
    for begin in range(0, len(chunks), size):
        yield chunks[begin : begin + size]


def _check_chunk(column: Column, begin: int) -> int:
    """The bytes that were looked at. Raises UserError for a value that is out of bounds."""
    size = np.dtype(column.dtype).itemsize
    values = np.fromfile(column.path, column.dtype, CHUNK, offset=begin * size)
    if values.min(initial=0) < 0 or values.max(initial=0) >= column.limit:
        place = int(((values < 0) | (values >= column.limit)).argmax())
        row = (begin + place) // column.width
        raise UserError(
            f"{column.path} row {row} (counting from 0) has {values[place]} as {column.what}: prepare the data again"
        )
    return len(values) * size
