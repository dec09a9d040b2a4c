"""Vocabularies of 32-bit ids: counted in sorted runs on disk, merged by ranges of ids, looked up in hash tables.

The ids of a column are never all in memory: the Terabyte set has hundreds of millions in one. A run is a sorted array
of (id << 32 | count) of a few hundred thousand rows. Kept ids are numbered by descending count, ties by ascending id.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, UInt32, UInt64

RANGE = 1 << 21  # entries of runs merged at a time
_LOW, _SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32)
_ODD = np.uint32(0x9E3779B1)  # multiplicative hash: one-to-one modulo 2^32 because odd
_STRIDE = 256  # one of _STRIDE entries is sampled to choose the ranges
_STEP = 1 << 14  # ids looked up at a time, few enough for the cache


class RunOnDisk(NamedTuple):
    """A run on disk: entries `begin` to `end` of a file."""

    path: Path
    begin: int
    end: int


def counted(ids: UInt32[np.ndarray, " rows"], missing: int) -> UInt64[np.ndarray, " distinct"]:
    """Returns the run of these ids. Missing ids are 0 and are not counted; `missing` is their number."""
    ordered = _sorted(ids)
    begins = _group_begins(ordered)
    counts = np.diff(begins, append=len(ordered)).astype(np.uint64)
    run = (ordered[begins].astype(np.uint64) << _SHIFT) | counts
    if missing:
        run[0] -= np.uint64(missing)
        run = run[1:] if run[0] == 0 else run
    return run


def merge(runs: Sequence[RunOnDisk], frequency_limit: int, kept: Path) -> int:
    """Writes the ids that occur `frequency_limit` times or more in the runs; returns their number.

    An entry of the file is (2^32 - 1 - count) << 32 | id, so that sorting the entries puts the ids in the order of
    their numbers. Counts are clamped to 2^32 - 1.
    """
    runs = [run for run in runs if run.end > run.begin]
    if not runs:
        kept.write_bytes(b"")
        return 0
    edges = _edges(runs)
    cuts = np.stack([np.searchsorted(_mapped(run), edges) + run.begin for run in runs], axis=1)
    total = 0
    with kept.open("wb") as file:
        for begins, ends in pairwise(cuts):
            parts = [
                np.fromfile(run.path, np.uint64, end - begin, offset=8 * begin)
                for run, begin, end in zip(runs, begins.tolist(), ends.tolist(), strict=True)
                if end > begin
            ]
            if not parts:
                continue
            entries = _sorted(np.concatenate(parts))
            del parts
            groups = _group_begins(entries >> _SHIFT)
            counts = np.add.reduceat(entries & _LOW, groups)
            often = counts >= frequency_limit
            ranks = _LOW - np.minimum(counts[often], _LOW)
            ((ranks << _SHIFT) | (entries[groups[often]] >> _SHIFT)).tofile(file)
            total += int(often.sum())
    return total


def write_table(kept: Path, table: Path) -> None:
    """Numbers the ids that `merge` kept, from 1, and writes the hash table that `look_up` reads.

    An entry is (id * _ODD mod 2^32) << 32 | number. Its home slot is proportional to its upper half; it is stored there
    or in a later slot, with no free slot (0) between. Half of the slots are free. Takes 16 bytes of memory an id.
    """
    entries = np.fromfile(kept, np.uint64)
    entries.sort()
    entries &= _LOW
    entries *= np.uint64(_ODD)
    entries &= _LOW
    entries <<= _SHIFT
    entries |= np.arange(1, len(entries) + 1, dtype=np.uint64)
    entries.sort()
    slots = num_slots(len(entries))
    written, ahead = 0, 0
    with table.open("wb") as file:
        for begin in range(0, len(entries), RANGE):
            chunk = entries[begin : begin + RANGE]
            index = np.arange(begin, begin + len(chunk))
            home = ((chunk >> _SHIFT) * np.uint64(slots) >> _SHIFT).astype(np.int64)
            slot = np.maximum(np.maximum.accumulate(home - index), ahead)
            ahead = int(slot[-1])
            slot += index
            part = np.zeros(slot[-1] + 1 - written, np.uint64)
            part[slot - written] = chunk
            part.tofile(file)
            written += len(part)
        np.zeros(max(slots - written, 0) + 1, np.uint64).tofile(file)


def num_slots(kept: int) -> int:
    return 2 * kept


def look_up(
    table: UInt64[np.ndarray, " slots"], kept: int, ids: UInt32[np.ndarray, " rows"]
) -> Int32[np.ndarray, " rows"]:
    """Returns the number of each id in a table of `kept` ids; 0 for other ids."""
    numbers = np.empty(len(ids), np.int32)
    slots = np.uint64(num_slots(kept))
    for begin in range(0, len(ids), _STEP):
        hashed = (ids[begin : begin + _STEP] * _ODD).astype(np.uint64)
        slot = hashed * slots >> _SHIFT
        entry = table[slot]
        block = numbers[begin : begin + _STEP]
        block[:] = entry & _LOW
        open_ = np.flatnonzero((entry >> _SHIFT != hashed) & (entry != 0))
        while len(open_):
            slot[open_] += np.uint64(1)
            entry = table[slot[open_]]
            block[open_] = entry & _LOW
            open_ = open_[(entry >> _SHIFT != hashed[open_]) & (entry != 0)]
    return numbers


def _edges(runs: Sequence[RunOnDisk]) -> UInt64[np.ndarray, " edges"]:
    """Bounds between ranges of about RANGE entries each, first and last included."""
    ranges = -(-sum(run.end - run.begin for run in runs) // RANGE)
    sample = np.sort(np.concatenate([_mapped(run)[_STRIDE // 2 :: _STRIDE].copy() for run in runs]))
    inner = sample[np.arange(1, ranges) * len(sample) // ranges] >> _SHIFT << _SHIFT
    return np.concatenate([np.zeros(1, np.uint64), np.unique(inner), np.full(1, 2**64 - 1, np.uint64)])


def _mapped(run: RunOnDisk) -> UInt64[np.ndarray, " entries"]:
    # Unmapped once unreferenced, so that its pages do not count as this process's memory.
    return np.asarray(np.memmap(run.path, np.uint64, "r", 8 * run.begin, (run.end - run.begin,)))


def _sorted(values: np.ndarray) -> np.ndarray:
    """Returns the values in ascending order, sorted in a third of numpy's time."""
    import polars as pl  # not at the top: the datamodule imports this module, and prepared data need no polars

    return pl.Series(values).sort(multithreaded=False).to_numpy()


def _group_begins(ordered: np.ndarray) -> np.ndarray:
    """Returns the start of each group of equal values."""
    new = np.empty(len(ordered), bool)
    new[:1] = True
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    return np.flatnonzero(new)
