"""Parts of embedding tables, and their first values, which do not depend on the number of ranks or the sharding."""

from collections.abc import Iterator
from math import sqrt
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch._subclasses import FakeTensor

BLOCK_ROWS = 2**16  # drawn from one seed, and sent to rank 0 at once (32 MiB at 128 columns)


class Piece(NamedTuple):
    """A part of a table on this rank; `values` is a view of its weights or squares."""

    rows: slice
    columns: slice
    values: Float[Tensor, "rows columns"]

    def within(self, rows: slice) -> Tensor:
        """Returns some of its rows; the range counts from the table's first row."""
        return self.values[rows.start - self.rows.start : rows.stop - self.rows.start]


class Start(NamedTuple):
    """What the first values of a network's tables depend on: a seed, and the kind of device that draws them."""

    seed: int
    kind: str  # cpu or cuda, whose generators differ

    @classmethod
    def drawn(cls, kind: str) -> "Start":
        """Returns a start whose seed is a random number of the CPU, so that two networks begin with other tables."""
        seed = torch.randint(2**62, (), device="cpu")
        return cls(int(seed) if has_numbers(seed) else 0, kind)


def has_numbers(tensor: Tensor) -> bool:
    """Returns whether a tensor has more than a shape."""
    return not (tensor.is_meta or isinstance(tensor, FakeTensor))


def blocks(rows: slice) -> Iterator[slice]:
    """Cuts a range of a table's rows at the multiples of BLOCK_ROWS."""
    begin = rows.start
    while begin < rows.stop:
        end = min(rows.stop, (begin // BLOCK_ROWS + 1) * BLOCK_ROWS)
        yield slice(begin, end)
        begin = end


def initialise(piece: Piece, shape: tuple[int, int], start: Start, table: int) -> None:
    """Draws the piece of table number `table` from U(-1/sqrt(rows), 1/sqrt(rows)) of the whole table.

    Each block of rows has a seed of its own, so that a rank draws the blocks of its own rows alone, one at a time.
    """
    if not has_numbers(piece.values):
        return
    (rows, dim), bound = shape, 1 / sqrt(shape[0])
    device = piece.values.device if piece.values.device.type == start.kind else torch.device(start.kind)
    random = torch.Generator(device)
    for span in blocks(piece.rows):
        begin = span.start // BLOCK_ROWS * BLOCK_ROWS
        random.manual_seed(hash((start.seed, table, begin)))  # of integers: the same in every process
        block = torch.empty(min(BLOCK_ROWS, rows - begin), dim, device=device).uniform_(-bound, bound, generator=random)
        piece.within(span).copy_(block[span.start - begin : span.stop - begin, piece.columns])
