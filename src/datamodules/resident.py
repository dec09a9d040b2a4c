"""Batches gathered on the device where the data set lives, with a position that a checkpoint can hold."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from src.errors import UserError


class ResidentLoader:
    """Iterates over tensors that share their first dimension, batch by batch, all on one device.

    Every rank walks its own share of one global order, which depends on seed and epoch alone. With `drop_last` each
    global batch has `world_size` full batches; without it no sample is dropped, repeated or padded.
    """

    def __init__(
        self,
        tensors: tuple[Tensor, ...],
        index: Tensor,
        batch_size: int,
        *,
        shuffle: bool,
        drop_last: bool,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """Takes the rows `index` of `tensors`. Raises UserError if these are fewer than one full global batch."""
        if drop_last and batch_size * world_size > len(index):
            raise UserError(
                f"hp.batch_size={batch_size} on {world_size} rank(s) is larger than the training split of {len(index)}"
                f"; choose at most {len(index) // world_size}"
            )
        self.tensors, self.index, self.batch_size = tensors, index, batch_size
        self.shuffle, self.drop_last, self.seed = shuffle, drop_last, seed
        self.rank, self.world_size = rank, world_size
        self.epoch = self.position = 0
        self._resuming = False

    def __len__(self) -> int:
        if self.drop_last:
            return len(self.index) // (self.batch_size * self.world_size)
        mine = len(range(self.rank, len(self.index), self.world_size))
        return -(-mine // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        if self.position and not (self._resuming and self.position < len(self)):
            self.epoch, self.position = self.epoch + 1, 0
        self._resuming = False
        mine = self._order().to(self.tensors[0].device)
        while self.position < len(self):
            rows = mine[self.position * self.batch_size : (self.position + 1) * self.batch_size]
            self.position += 1
            yield tuple(tensor[rows] for tensor in self.tensors)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]
        self._resuming = True

    def _order(self) -> Tensor:
        """This rank's rows of this epoch, in order."""
        order = self.index
        if self.shuffle:
            generator = torch.Generator().manual_seed((self.seed << 20) + self.epoch)
            order = order[torch.randperm(len(order), generator=generator)]
        if self.drop_last:
            whole = order[: len(self) * self.batch_size * self.world_size]
            return whole.view(len(self), self.world_size, self.batch_size)[:, self.rank].reshape(-1)
        return order[self.rank :: self.world_size]
