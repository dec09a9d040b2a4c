"""Last pass over click logs: records to the columns of a split binary directory, ids as their tables number them."""

import os
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from src.datamodules.clicks.records import Files, as_words, columns, is_missing
from src.datamodules.clicks.text import RECORD
from src.datamodules.clicks.vocabulary import look_up


class DealtFiles(NamedTuple):
    """What the first pass left in `folder`, as a bucket needs it.

    Attributes:
        spans: an array of each piece's span.
        index: uint32 [begins, pieces], what `Files.index` says of every piece; a bucket is two neighbouring rows.
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
    """Where rows go: into a split's folder, from row `first` on, which the files have room for already."""

    folder: Path
    first: int


class Vocabulary(NamedTuple):
    """The hash table of one column, the number of ids in it, and the type of the column's file."""

    table: Path
    kept: int
    dtype: str


def write_bucket(dealt: DealtFiles, bucket: int, seed: int, target: Target, vocabularies: list[Vocabulary]) -> None:
    """Writes the rows of one bucket in a random order."""
    spans = np.load(dealt.spans)
    begins, ends = np.fromfile(dealt.index, np.uint32, 2 * len(spans), offset=4 * len(spans) * bucket).reshape(2, -1)
    order = np.random.default_rng([seed, 1, bucket]).permutation(int((ends - begins).sum()))
    rows = np.empty(len(order), RECORD)
    filled = 0
    pieces = zip(spans.tolist(), begins.tolist(), ends.tolist(), strict=True)
    for number, slices in groupby(pieces, itemgetter(0)):
        with Files.of(dealt.folder, number).records.open("rb", buffering=0) as file:
            for _, begin, end in slices:
                data = os.pread(file.fileno(), (end - begin) * RECORD.itemsize, begin * RECORD.itemsize)
                as_words(rows)[order[filled : filled + end - begin]] = as_words(np.frombuffer(data, RECORD))
                filled += end - begin
    _write(rows, target, vocabularies)


def write_slice(part: Slice, target: Target, vocabularies: list[Vocabulary]) -> None:
    """Writes rows in the order that they have."""
    _write(_read(part), target, vocabularies)


def _read(part: Slice) -> np.ndarray:
    return np.fromfile(part.path, RECORD, part.end - part.begin, offset=part.begin * RECORD.itemsize)


def _write(records: np.ndarray, target: Target, vocabularies: list[Vocabulary]) -> None:
    _place(target, "label.bin", records["label"])
    _place(target, "numerical.bin", records["numerical"])
    for column, (ids, vocabulary) in enumerate(zip(columns(records), vocabularies, strict=True)):
        table = np.asarray(np.memmap(vocabulary.table, np.uint64, "r"))
        numbers = look_up(table, vocabulary.kept, ids)
        if look_up(table, vocabulary.kept, np.zeros(1, np.uint32)).any():
            numbers[is_missing(records["missing"], column)] = 0  # which is not the id 0
        _place(target, f"cat_{column}.bin", numbers.astype(vocabulary.dtype))


def _place(target: Target, name: str, values: np.ndarray) -> None:
    values = np.ascontiguousarray(values)
    bytes_per_row = values.nbytes // max(len(values), 1)
    with (target.folder / name).open("r+b") as file:
        file.seek(target.first * bytes_per_row)
        values.tofile(file)
