"""Checks a click data set once: every id and label, for one out of range is outside its table; and known checksums.

The check leaves a checksum of each block of rows. Every later run compares a block with it when it first reads it, so
that a changed bit is found although size and time of its file are as they were.
"""

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash
from jaxtyping import UInt64

from src.datamodules.clicks.split_binary import BLOCK, SplitBinary, checksums
from src.datamodules.download import sha256_of
from src.errors import UserError
from src.system.files import write_text, written_atomically
from src.system.progress import byte_progress
from src.system.reading import read_bytes, read_json
from src.system.workers import cpu_count

STAMP, SUMS = "checked.json", "checked.bin"  # the state of the files, and the checksums of their blocks, file by file
CHUNK = 64 * BLOCK  # rows that a thread checks at a time
Sums = UInt64[np.ndarray, " blocks"]


class Column(NamedTuple):
    """A file with `row_bytes` in each row; with a `limit`, of integers that must be in 0 .. limit - 1."""

    path: Path
    rows: int
    row_bytes: int
    dtype: str
    limit: int | None
    description: str = ""


def check_values(folder: Path, splits: Mapping[str, SplitBinary], sums: Mapping[str, Any] = {}) -> None:
    """Checks all ids and labels, unless files in `folder` say that they were checked before; see `expect_checked`.

    `sums` has SHA-256 of files in the folder, which are compared too. Raises UserError with file, row and value of the
    first invalid id or label, or with a file that is not as it was written.
    """
    if expect_checked(folder, splits):
        return
    columns = _columns(splits)
    chunks = [(column, begin) for column in columns for begin in range(0, column.rows, CHUNK)]
    blocks: list[Sums] = []
    # Only a few more chunks than threads are in flight, so that checking stops soon after a bad value.
    with byte_progress() as progress, ThreadPoolExecutor(cpu_count()) as executor:
        bar = progress.add_task("checking ids", total=sum(column.path.stat().st_size for column in columns))
        for group in _grouped(chunks, 4 * cpu_count()):
            blocks += executor.map(_check_chunk, *zip(*group, strict=True))
            progress.advance(bar, sum(min(CHUNK, column.rows - begin) * column.row_bytes for column, begin in group))
        bar = progress.add_task("comparing checksums", total=sum((folder / file).stat().st_size for file in sums))
        for file, sha256 in zip(sums, executor.map(sha256_of, [folder / file for file in sums]), strict=True):
            if sha256 != sums[file]:
                raise UserError(
                    f"{folder / file} is not what was written (its checksum differs): prepare the data again"
                )
            progress.advance(bar, (folder / file).stat().st_size)
    table = np.concatenate(blocks) if blocks else np.zeros(0, np.uint64)
    _expect(table, columns, splits)
    try:
        with written_atomically(folder / SUMS) as part:
            table.tofile(part)
        write_text(folder / STAMP, json.dumps(_stamp(columns, folder, table.tobytes()), indent=0) + "\n")
    except UserError:
        print(
            f"note: {folder / STAMP} cannot be written, so the ids are checked at every start; datamodule.check=false "
            "skips it"
        )


def expect_checked(folder: Path, splits: Mapping[str, SplitBinary]) -> bool:
    """Has the splits compare what they read with the checksums of an earlier check; returns whether there was one.

    It counts where size and time of all files are as they were.
    """
    columns = _columns(splits)
    try:
        table = read_bytes(folder / SUMS)
        if len(table) % 8 or read_json(folder / STAMP) != _stamp(columns, folder, table):
            return False
    except UserError:
        return False
    _expect(np.frombuffer(table, np.uint64), columns, splits)
    return True


def _expect(table: Sums, columns: list[Column], splits: Mapping[str, SplitBinary]) -> None:
    ends = np.cumsum([-(-column.rows // BLOCK) for column in columns])
    parts = np.split(table, ends[:-1])
    for split in splits.values():
        split.expect({column.path: part for column, part in zip(columns, parts, strict=True)})


def _columns(splits: Mapping[str, SplitBinary]) -> list[Column]:
    return [column for split in splits.values() for column in _columns_of(split)]


def _columns_of(split: SplitBinary) -> Iterator[Column]:
    rows, widths = split.num_rows, {piece.path: piece.row_bytes for piece in split.pieces}
    checked = {split.labels, *split.tables}
    yield Column(split.labels, rows, widths[split.labels], "uint8", 2, "a label, which is 0 or 1")
    for path, table, dtype in zip(split.tables, split.layout.tables, split.layout.dtypes, strict=True):
        description = f"an id of {table.name}, which has cardinality {table.cardinality}"
        yield Column(path, rows, widths[path], dtype, table.cardinality, description)
    yield from (Column(path, rows, width, "uint8", None) for path, width in widths.items() if path not in checked)


def _stamp(columns: list[Column], folder: Path, table: bytes) -> dict[str, Any]:
    """Identifies the state of the files and the table of checksums; if one changes, all is checked again."""
    files = []
    for column in columns:
        status = column.path.stat()
        name = str(column.path.relative_to(folder))
        files.append([name, column.limit, column.row_bytes, status.st_size, status.st_mtime_ns])
    return {"files": files, "block": BLOCK, "checksums": xxhash.xxh3_64_hexdigest(table)}


def _grouped(chunks: list[tuple[Column, int]], size: int) -> Iterator[list[tuple[Column, int]]]:
    for begin in range(0, len(chunks), size):
        yield chunks[begin : begin + size]


def _check_chunk(column: Column, begin: int) -> Sums:
    """Checks the rows of a chunk; returns the checksums of its blocks. Raises UserError for a value out of range."""
    data = np.fromfile(column.path, np.uint8, CHUNK * column.row_bytes, offset=begin * column.row_bytes)
    if column.limit is not None:
        values = data.view(column.dtype)
        if values.min(initial=0) < 0 or values.max(initial=0) >= column.limit:
            index = int(((values < 0) | (values >= column.limit)).argmax())
            row = begin + index * values.itemsize // column.row_bytes
            raise UserError(
                f"{column.path} row {row} (counting from 0) has {values[index]} as {column.description}: prepare the "
                f"data again"
            )
    return checksums(data.data, column.row_bytes)
