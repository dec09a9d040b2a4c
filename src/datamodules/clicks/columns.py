"""Last pass over click logs: writes records as columns of a split binary directory, with ids numbered by table."""

import os
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from src.datamodules.clicks.records import Files, as_words, columns, is_missing
from src.datamodules.clicks.text import RECORD
from src.datamodules.clicks.vocabulary import look_up


class BucketFiles(NamedTuple):
    """The files of the first pass, indexed by bucket.

    Attributes:
        folder: of the spans' files.
        spans: an array with each piece's span.
        index: uint32 [begins, pieces], `Files.index` of every piece; two consecutive rows bound a bucket.
    """

    folder: Path
    spans: Path
    index: Path


class Slice(NamedTuple):
    """Records `begin` to `end` of a file."""

    path: Path
    begin: int
    end: int


class Target(NamedTuple):
    """A position to write rows at: a split's folder and its row `first`; the files have their final size already."""

    folder: Path
    first: int


class Vocabulary(NamedTuple):
    """The hash table file of one column, the number of its ids, and the type of the column's file."""

    table: Path
    kept: int
    dtype: str


def write_bucket(files: BucketFiles, bucket: int, seed: int, target: Target, vocabularies: list[Vocabulary]) -> None:
    """Writes the rows of one bucket in a random order."""
    spans = np.load(files.spans)
    begins, ends = np.fromfile(files.index, np.uint32, 2 * len(spans), offset=4 * len(spans) * bucket).reshape(2, -1)
    order = np.random.default_rng([seed, 1, bucket]).permutation(int((ends - begins).sum()))
    rows = np.empty(len(order), RECORD)
    filled = 0
    pieces = zip(spans.tolist(), begins.tolist(), ends.tolist(), strict=True)
    for number, slices in groupby(pieces, itemgetter(0)):
        with Files.of(files.folder, number).records.open("rb", buffering=0) as file:
            for _, begin, end in slices:
                data = os.pread(file.fileno(), (end - begin) * RECORD.itemsize, begin * RECORD.itemsize)
                as_words(rows)[order[filled : filled + end - begin]] = as_words(np.frombuffer(data, RECORD))
                filled += end - begin
    _write(rows, target, vocabularies)


def write_slice(part: Slice, target: Target, vocabularies: list[Vocabulary]) -> None:
    """Writes rows in their order."""
    _write(_read(part), target, vocabularies)


def _read(part: Slice) -> np.ndarray:
    return np.fromfile(part.path, RECORD, part.end - part.begin, offset=part.begin * RECORD.itemsize)


def _write(records: np.ndarray, target: Target, vocabularies: list[Vocabulary]) -> None:
    _write_at(target, "label.bin", records["label"])
    _write_at(target, "numerical.bin", records["numerical"])
    for column, (ids, vocabulary) in enumerate(zip(columns(records), vocabularies, strict=True)):
        table = np.asarray(np.memmap(vocabulary.table, np.uint64, "r"))
        numbers = look_up(table, vocabulary.kept, ids)
        if look_up(table, vocabulary.kept, np.zeros(1, np.uint32)).any():
            numbers[is_missing(records["missing"], column)] = 0  # `ids` is 0 there, but id 0 is an id too
        _write_at(target, f"cat_{column}.bin", numbers.astype(vocabulary.dtype))


def _write_at(target: Target, name: str, values: np.ndarray) -> None:
    values = np.ascontiguousarray(values)
    bytes_per_row = values.nbytes // max(len(values), 1)
    with (target.folder / name).open("r+b") as file:
        file.seek(target.first * bytes_per_row)
        values.tofile(file)
