"""First pass over click logs: scatters records to random buckets on disk, and writes runs of counted ids.

The training rows are shuffled in two steps: each row goes to a random bucket, and `columns.py` shuffles the rows of a
bucket. All orders of all rows are equally likely, and at most one piece or one bucket is in memory.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, UInt32, UInt64

from src.datamodules.clicks.raw import Span, blocks, lines_before
from src.datamodules.clicks.text import NUM_IDS, PAD, RECORD, explain, parse
from src.datamodules.clicks.vocabulary import counted

_GROUP = 8  # columns extracted at a time
_STEP = 1 << 12  # rows moved at a time, few enough for the cache


class Scattering(NamedTuple):
    """Options of the first pass over one span.

    Attributes:
        training: number of training rows, from the span's first; the others are held out.
        buckets: number of buckets of training rows.
        rows: most rows of a piece.
        seed: of the random buckets.
        count_all: count the held-out rows for the vocabulary too.
    """

    training: int
    buckets: int
    rows: int
    seed: int
    count_all: bool


class Files(NamedTuple):
    """The files of a span.

    `index` has one row for each piece: the offsets in `records` of each bucket, of the held-out rows, and of the
    piece's end. `bounds` has one row for each piece too: the offsets in `runs` of each column's run, and of the end.
    """

    records: Path
    runs: Path
    bounds: Path
    index: Path

    @classmethod
    def of(cls, folder: Path, number: int) -> "Files":
        return cls(*(folder / f"{number:06}{suffix}" for suffix in (".records", ".runs", ".bounds.npy", ".index.npy")))


def scatter(span: Span, number: int, options: Scattering, files: Files) -> None:
    """Writes the files of a span. Raises UserError, with line and column, for text that is not a click log."""
    index: list[Int[np.ndarray, " begins"]] = []
    bounds: list[Int[np.ndarray, " begins"]] = []
    written = counted_entries = 0
    training = options.training
    with files.records.open("wb") as records_file, files.runs.open("wb") as runs_file:
        for records in _pieces(span, options.rows):
            trained = min(training, len(records))
            training -= trained
            generator = np.random.default_rng([options.seed, 0, number, len(index)])
            bucket = generator.integers(options.buckets, size=trained, dtype=np.uint16)
            order = np.concatenate([np.argsort(bucket, kind="stable"), np.arange(trained, len(records))])
            for begin in range(0, len(order), _STEP):
                as_words(records).take(order[begin : begin + _STEP], axis=0).tofile(records_file)
            sizes = np.bincount(bucket, minlength=options.buckets)
            index.append(written + np.concatenate([[0], np.cumsum(sizes), [len(records)]]))
            written += len(records)

            begins = [counted_entries]
            vocabulary = records if options.count_all else records[:trained]
            missing = vocabulary["missing"].copy()
            for column, ids in enumerate(columns(vocabulary) if len(vocabulary) else ()):
                run = counted(ids, int(np.count_nonzero(is_missing(missing, column))))
                run.tofile(runs_file)
                begins.append(begins[-1] + len(run))
            counted_entries = begins[-1]
            bounds.append(np.array(begins + begins[-1:] * (NUM_IDS + 1 - len(begins))))
    np.save(files.bounds, np.reshape(bounds, (-1, NUM_IDS + 1)).astype(np.int64))
    np.save(files.index, np.reshape(index, (-1, options.buckets + 2)).astype(np.uint32))


def columns(records: np.ndarray) -> Iterator[UInt32[np.ndarray, " rows"]]:
    """Yields the ids of each column of RECORDs."""
    for first in range(0, NUM_IDS, _GROUP):
        ids = np.empty((min(_GROUP, NUM_IDS - first), len(records)), np.uint32)
        for begin in range(0, len(records), _STEP):
            ids[:, begin : begin + _STEP] = records["ids"][begin : begin + _STEP, first : first + _GROUP].T
        yield from ids


def is_missing(missing: UInt32[np.ndarray, " rows"], column: int) -> Bool[np.ndarray, " rows"]:
    """Returns whether the id of a column is missing; `missing` is that field of RECORDs."""
    return (missing & np.uint32(1 << column)) != 0


def as_words(records: np.ndarray) -> UInt64[np.ndarray, "rows words"]:
    """Returns a view of RECORDs as rows of uint64, which numpy moves three times as fast."""
    return records.view(np.uint64).reshape(-1, RECORD.itemsize // 8)


def _pieces(span: Span, rows: int) -> Iterator[np.ndarray]:
    """Yields the records of a span, at most `rows` at a time; each array is overwritten by the next."""
    piece = np.empty(rows, RECORD)
    filled = 0
    for block in blocks(span):
        records = parse(block.text)
        if records is None:
            first_line = 1 + lines_before(span.path, block.offset)
            raise explain(block.text[PAD:].tobytes(), first_line, str(span.path))
        while len(records):
            taken = min(len(records), rows - filled)
            piece[filled : filled + taken] = records[:taken]
            filled, records = filled + taken, records[taken:]
            if filled == rows:
                yield piece
                filled = 0
    if filled:
        yield piece[:filled]
