"""Parts of sharded tables: those of TorchRec, gathering and scattering."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, distributed
from torch.distributed._shard.sharded_tensor.api import ShardedTensor

from src.models.dlrm.pieces import Piece, blocks
from src.models.dlrm.sharded_plan import Shard


def pieces(value: Any) -> list[Piece]:
    """Returns the local parts of TorchRec's ShardedTensor; a plain tensor is one part."""
    if not isinstance(value, ShardedTensor):  # a subclass of Tensor
        return [Piece(slice(0, value.shape[0]), slice(0, value.shape[1]), value.detach())]
    parts = []
    for shard in value.local_shards():
        (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
        parts.append(Piece(slice(row, row + rows), slice(column, column + columns), shard.tensor.detach()))
    return parts


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
        piece = mine[shard.rows.start, shard.columns.start] if shard.rank == rank else None
        for rows in blocks(shard.rows):
            if whole is None:
                if piece is not None:
                    distributed.send(piece.within(rows).contiguous(), 0)
            elif piece is not None:
                whole[rows, shard.columns] = piece.within(rows).cpu()
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
