"""Parts of sharded tables: initialisation that does not depend on the sharding, gathering and scattering."""

from collections.abc import Iterator
from math import sqrt
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, distributed
from torch.distributed._shard.sharded_tensor.api import ShardedTensor

from src.models.dlrm.sharded_plan import Shard

BLOCK_ROWS = 2**16  # drawn from one seed, and sent to rank 0 at once (32 MiB at 128 columns)


class Piece(NamedTuple):
    """A part of a table on this rank; `values` is a view of its weights or squares."""

    rows: slice
    columns: slice
    values: Float[Tensor, "rows columns"]

    def within(self, rows: slice) -> Tensor:
        """Returns some of its rows; the range counts from the table's first row."""
        return self.values[rows.start - self.rows.start : rows.stop - self.rows.start]


def pieces(value: Any) -> list[Piece]:
    """Returns the local parts of TorchRec's ShardedTensor; a plain tensor is one part."""
    if not isinstance(value, ShardedTensor):  # a subclass of Tensor
        return [Piece(slice(0, value.shape[0]), slice(0, value.shape[1]), value.detach())]
    found = []
    for shard in value.local_shards():
        (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
        found.append(Piece(slice(row, row + rows), slice(column, column + columns), shard.tensor.detach()))
    return found


def blocks(rows: slice) -> Iterator[slice]:
    """Cuts a range of a table's rows at the multiples of BLOCK_ROWS."""
    begin = rows.start
    while begin < rows.stop:
        end = min(rows.stop, (begin // BLOCK_ROWS + 1) * BLOCK_ROWS)
        yield slice(begin, end)
        begin = end


def initialise(piece: Piece, shape: tuple[int, int], seed: tuple[int, ...]) -> None:
    """Draws from U(-1/sqrt(rows), 1/sqrt(rows)) of the whole table; the same values for every sharding."""
    (rows, dim), bound = shape, 1 / sqrt(shape[0])
    random = torch.Generator(piece.values.device)
    for own in blocks(piece.rows):
        begin = own.start // BLOCK_ROWS * BLOCK_ROWS
        random.manual_seed(hash((*seed, begin)))  # of integers: the same in every process
        drawn = piece.values.new_empty(min(BLOCK_ROWS, rows - begin), dim).uniform_(-bound, bound, generator=random)
        piece.within(own).copy_(drawn[own.start - begin : own.stop - begin, piece.columns])


def gathered(
    shards: list[Shard], local: list[Piece], shape: tuple[int, int], device: torch.device
) -> Float[Tensor, "rows columns"] | None:
    """Returns the whole table on rank 0's CPU, None on other ranks. Every rank calls it.

    It sends block by block, so that a device never holds more than its own shards and 32 MiB.
    """
    rank = distributed.get_rank()
    mine = {(piece.rows.start, piece.columns.start): piece for piece in local}
    whole = torch.empty(shape) if rank == 0 else None
    for shard in shards:
        own = mine[shard.rows.start, shard.columns.start] if shard.rank == rank else None
        for rows in blocks(shard.rows):
            if whole is None:
                if own is not None:
                    distributed.send(own.within(rows).contiguous(), 0)
            elif own is not None:
                whole[rows, shard.columns] = own.within(rows).cpu()
            else:
                block = torch.empty(rows.stop - rows.start, shard.columns.stop - shard.columns.start, device=device)
                distributed.recv(block, shard.rank)
                whole[rows, shard.columns] = block.cpu()
    return whole


def scattered(whole: Float[Tensor, "rows columns"], local: list[Piece]) -> None:
    """Fills this rank's parts from the whole table, which may be a file mapped into memory."""
    for piece in local:
        for rows in blocks(piece.rows):
            piece.within(rows).copy_(whole[rows, piece.columns])
