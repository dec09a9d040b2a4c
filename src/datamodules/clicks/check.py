"""Checks a click data set once: every id and label, for one out of range is outside its table; and known checksums."""

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from src.datamodules.clicks.split_binary import SplitBinary
from src.datamodules.download import sha256_of
from src.errors import UserError
from src.system.files import write_text
from src.system.progress import byte_progress
from src.system.workers import cpu_count

STAMP = "checked.json"
CHUNK = 1 << 22  # numbers that a thread checks at a time


class Column(NamedTuple):
    """A file of integers that must be in 0 .. limit - 1, `width` of them in each row."""

    path: Path
    dtype: str
    limit: int
    width: int
    description: str


def check_values(folder: Path, splits: Mapping[str, SplitBinary], sums: Mapping[str, Any] = {}) -> None:
    """Checks all ids and labels, unless the stamp in `folder` matches the files: they were checked before.

    `sums` has SHA-256 of files in the folder, which are compared too. Raises UserError with file, row and value of the
    first invalid id or label, or with a file that is not as it was written.
    """
    columns = [column for split in splits.values() for column in _columns(split)]
    states = [_state(column, folder) for column in columns]
    for file in sums:
        status = (folder / file).stat()
        states.append([file, status.st_size, status.st_mtime_ns])
    stamp = json.dumps(states, indent=0) + "\n"
    path = folder / STAMP
    if path.is_file() and path.read_text("utf-8") == stamp:
        return
    chunks = [(column, begin) for column in columns for begin in range(0, _numbers(column), CHUNK)]
    # Only a few more chunks than threads are in flight, so that checking stops soon after a bad value.
    with byte_progress() as progress, ThreadPoolExecutor(cpu_count()) as executor:
        bar = progress.add_task("checking ids", total=sum(column.path.stat().st_size for column in columns))
        for group in _grouped(chunks, 4 * cpu_count()):
            progress.advance(bar, sum(executor.map(_check_chunk, *zip(*group, strict=True))))
        bar = progress.add_task("comparing checksums", total=sum((folder / file).stat().st_size for file in sums))
        for file, found in zip(sums, executor.map(sha256_of, [folder / file for file in sums]), strict=True):
            if found != sums[file]:
                raise UserError(
                    f"{folder / file} is not what was written (its checksum differs): prepare the data again"
                )
            progress.advance(bar, (folder / file).stat().st_size)
    try:
        write_text(path, stamp)
    except UserError:
        print(f"note: {path} cannot be written, so the ids are checked at every start; datamodule.check=false skips it")


def _columns(split: SplitBinary) -> Iterator[Column]:
    yield Column(split.labels, "uint8", 2, 1, "a label, which is 0 or 1")
    for path, table, dtype in zip(split.tables, split.layout.tables, split.layout.dtypes, strict=True):
        description = f"an id of {table.name}, which has cardinality {table.cardinality}"
        yield Column(path, dtype, table.cardinality, table.hotness, description)


def _state(column: Column, folder: Path) -> list[str | int]:
    """Identifies the state of a file; if it changes, the file is checked again."""
    status = column.path.stat()
    return [str(column.path.relative_to(folder)), column.limit, status.st_size, status.st_mtime_ns]


def _numbers(column: Column) -> int:
    return column.path.stat().st_size // np.dtype(column.dtype).itemsize


def _grouped(chunks: list[tuple[Column, int]], size: int) -> Iterator[list[tuple[Column, int]]]:
    for begin in range(0, len(chunks), size):
        yield chunks[begin : begin + size]


def _check_chunk(column: Column, begin: int) -> int:
    """Checks a chunk; returns its size in bytes. Raises UserError for a value out of range."""
    size = np.dtype(column.dtype).itemsize
    values = np.fromfile(column.path, column.dtype, CHUNK, offset=begin * size)
    if values.min(initial=0) < 0 or values.max(initial=0) >= column.limit:
        index = int(((values < 0) | (values >= column.limit)).argmax())
        row = (begin + index) // column.width
        raise UserError(
            f"{column.path} row {row} (counting from 0) has {values[index]} as {column.description}: prepare the data "
            f"again"
        )
    return len(values) * size
