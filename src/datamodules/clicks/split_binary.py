"""Reads split binary click data: threads fill one buffer a batch, ahead of training.

A batch of 65,536 published rows is 5.8 MB from 28 files, one `pread` each, without the GIL. For a GPU the buffers are
pinned and few, and each batch is copied on a side stream while training uses the batch before it.
"""

import os
import weakref
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import xxhash
from jaxtyping import Int, UInt8, UInt64
from torch import Tensor

from src.batches.clicks import ClickBatch
from src.datamodules.clicks.feature_spec import FeatureSpec
from src.datamodules.copy_ahead import copy_ahead
from src.datamodules.resident import OrderedLoader
from src.errors import UserError
from src.system.reading import open_descriptor

BLOCK = 8192  # rows of a checksum: the share of each of 8 GPUs in the published global batch


class Piece(NamedTuple):
    """An open file and the bytes of one row in it."""

    path: Path
    row_bytes: int
    file: int  # descriptor


class SplitBinary:
    """The rows of one split, which any number of threads can read in any order.

    Args:
        folder: the directory.
        spec: its specification.
        split: `train` or `test`.
    """

    def __init__(self, folder: Path, spec: FeatureSpec, split: str) -> None:
        """Raises UserError for an unreadable file, and if the files differ in their number of rows."""
        files = spec.splits[split]
        self.layout, self.num_rows = spec.layout, spec.num_rows(folder, split)
        self.labels, self.tables = folder / files.label, [folder / file for file in files.ids]
        bytes_in = spec.bytes_per_row(split)
        int32, _, int16, int8, _ = ([files.ids[i] for i in block.tables] for block in self.layout.blocks)
        order = [*int32, files.numerical, *int16, *int8, files.label]  # that of the layout
        self.pieces = [_opened(folder / file, bytes_in[file]) for file in order]
        self._sums: list[UInt64[np.ndarray, " blocks"]] = []  # of each piece
        self._unread = np.zeros(0, bool)  # blocks that are still to be compared with them
        weakref.finalize(self, _close, [piece.file for piece in self.pieces])

    def read(self, begin: int, end: int, out: UInt8[np.ndarray, " bytes"]) -> None:
        """Reads the rows `begin` to `end` (exclusive) into `out`, in the layout of a batch.

        Raises UserError that names a truncated file, or one that is not as it was checked.
        """
        self._compare(begin, end)
        target, offset = out.data, 0
        for piece in self.pieces:
            size = (end - begin) * piece.row_bytes
            _fill(piece, target[offset : offset + size], begin * piece.row_bytes)
            offset += size

    def expect(self, sums: Mapping[Path, UInt64[np.ndarray, " blocks"]]) -> None:
        """Compares each block of rows with these checksums of its files when it is first read."""
        self._sums = [sums[piece.path] for piece in self.pieces]
        self._unread = np.ones(-(-self.num_rows // BLOCK), bool)

    def _compare(self, begin: int, end: int) -> None:
        """Raises UserError for a block with rows of `begin` to `end` that is not as it was checked."""
        unread = begin // BLOCK + np.flatnonzero(self._unread[begin // BLOCK : -(-end // BLOCK)])
        if not len(unread):
            return
        first, last = int(unread[0]), int(unread[-1]) + 1
        rows = min(last * BLOCK, self.num_rows) - first * BLOCK
        for piece, sums in zip(self.pieces, self._sums, strict=True):
            data = np.empty(rows * piece.row_bytes, np.uint8)
            _fill(piece, data.data, first * BLOCK * piece.row_bytes)
            differs = checksums(data.data, piece.row_bytes) != sums[first:last]
            if differs.any():
                row = (first + int(differs.argmax())) * BLOCK
                raise UserError(
                    f"{piece.path} is not as it was checked (rows {row} to {min(row + BLOCK, self.num_rows) - 1}, "
                    f"counting from 0, differ): prepare or copy the data again"
                )
        self._unread[first:last] = False


def checksums(rows: memoryview, row_bytes: int) -> UInt64[np.ndarray, " blocks"]:
    """Returns the checksum of each block of the rows, which begin with one; XXH3 reads 2 GB/s or more of a core."""
    size = BLOCK * row_bytes
    return np.array([xxhash.xxh3_64_intdigest(rows[i : i + size]) for i in range(0, len(rows), size)], np.uint64)


def _opened(path: Path, row_bytes: int) -> Piece:
    return Piece(path, row_bytes, open_descriptor(path, "prepare the data again"))


def _close(files: list[int]) -> None:
    for file in files:
        os.close(file)


def _fill(piece: Piece, target: memoryview, offset: int) -> None:
    done = 0
    while done < len(target):
        read = os.preadv(piece.file, [target[done:]], offset + done)
        if read == 0:
            row = (offset + done) // piece.row_bytes
            raise UserError(f"{piece.path} is truncated: it ends in row {row}; prepare or copy it again")
        done += read


class SplitLoader(OrderedLoader[ClickBatch]):
    """Batches of consecutive rows, read ahead; every rank takes its own slice of each global batch.

    The rows are in the order of the files, which preparation shuffled. With `shuffle` the order of the global batches
    differs in each epoch. With `drop_last` an incomplete last global batch is dropped; without it the ranks divide it,
    so that all have the same number of batches, and the last batch of some may be empty.

    Args:
        split: the rows.
        batch_size: rows of this rank in each batch.
        device: of the batches; copies to a GPU run ahead.
        threads: reading threads; each reads one batch at a time.
        prefetch: batches read ahead.
    """

    def __init__(
        self,
        split: SplitBinary,
        batch_size: int,
        *,
        drop_last: bool,
        shuffle: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | None = None,
        threads: int = 4,
        prefetch: int = 8,
    ) -> None:
        """Raises UserError if `drop_last` leaves no full global batch."""
        full, rest = divmod(split.num_rows, batch_size * world_size)
        if drop_last and not full:
            raise UserError(
                f"hp.batch_size={batch_size} on {world_size} rank(s) is larger than the training split of "
                f"{split.num_rows}; choose at most {split.num_rows // world_size}"
            )
        # The base class orders, counts and resumes global batches of one "row"; ranks only divide each of them.
        batches = torch.arange(full if drop_last or not rest else full + 1)
        super().__init__(batches, 1, shuffle=shuffle, drop_last=False, seed=seed)
        self.split, self.rows = split, batch_size
        self.share, self.ranks = rank, world_size
        self.device = device or torch.device("cpu")
        self.threads, self.prefetch = threads, prefetch
        self._ahead: Generator[ClickBatch] | None = None
        self._numbers: list[int] = []  # of the epoch's global batches, in order

    def __iter__(self) -> Iterator[ClickBatch]:
        try:
            yield from super().__iter__()
        finally:
            if self._ahead is not None:
                self._ahead.close()

    def begin(self, order: Int[Tensor, " batches"]) -> None:
        self._numbers = order.tolist()
        numbers = self._numbers[self.position :]
        if self.device.type == "cuda":
            pinned = PinnedBuffers(self.split.layout.num_bytes(self.rows), self.prefetch + 2)
            self._ahead = copy_ahead(self._read_ahead(numbers, pinned), self.device, pinned.give_back)
        else:
            self._ahead = self._read_ahead(numbers, None)

    def batch(self, step: int) -> ClickBatch:
        assert self._ahead is not None
        return next(self._ahead)

    def samples_of_ranks(self, step: int, world_size: int) -> tuple[int, ...]:
        spans = (self._rows_of(self._numbers[step], rank) for rank in range(world_size))
        return tuple(end - begin for begin, end in spans)

    def _rows_of(self, number: int, rank: int) -> tuple[int, int]:
        """Returns the first and last (exclusive) of a rank's rows in a global batch."""
        begin = number * self.rows * self.ranks
        size = min(self.rows * self.ranks, self.split.num_rows - begin)
        return begin + size * rank // self.ranks, begin + size * (rank + 1) // self.ranks

    def _read_ahead(self, numbers: list[int], pinned: "PinnedBuffers | None") -> Generator[ClickBatch]:
        reading: deque[Future[ClickBatch]] = deque()
        executor = ThreadPoolExecutor(self.threads, "click-reader")
        try:
            for number in numbers:
                begin, end = self._rows_of(number, self.share)
                size = self.split.layout.num_bytes(end - begin)
                data = pinned.take()[:size] if pinned else torch.empty(size, dtype=torch.uint8)
                reading.append(executor.submit(self._read, begin, end, data))
                if len(reading) > self.prefetch:
                    yield reading.popleft().result()
            while reading:
                yield reading.popleft().result()
        finally:
            executor.shutdown(cancel_futures=True)

    def _read(self, begin: int, end: int, data: Tensor) -> ClickBatch:
        self.split.read(begin, end, data.numpy())
        return ClickBatch(data, self.split.layout, end - begin)


class PinnedBuffers:
    """A ring of pinned host buffers; a buffer is reused only after its copy to the device has finished."""

    def __init__(self, size: int, count: int) -> None:
        self._buffers = deque(torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(count))
        self._untouched = count
        self._copies: deque[torch.cuda.Event] = deque()

    def take(self) -> UInt8[Tensor, " bytes"]:
        """Returns the next buffer, once its copy has finished; that takes a few training steps at most."""
        if self._untouched:
            self._untouched -= 1
        else:
            self._copies.popleft().synchronize()
        self._buffers.rotate(-1)
        return self._buffers[-1]

    def give_back(self, copied: torch.cuda.Event) -> None:
        """Returns the buffer that was taken first; its copy finishes at the event `copied`."""
        self._copies.append(copied)
