"""Loaders of data sets that stay on one device; their position in the data can be saved in a checkpoint."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from src.errors import UserError

Batch = TypeVar("Batch")


class OrderedLoader(ABC, Generic[Batch]):
    """Iterates over the rows `index` of a data set, batch by batch; a subclass gathers each batch.

    Every rank takes its own share of one global order, which depends on seed and epoch alone. With `drop_last` each
    global batch has `world_size` full batches; without it no sample is dropped, repeated or padded.
    """

    def __init__(
        self,
        index: Tensor,
        batch_size: int,
        *,
        shuffle: bool,
        drop_last: bool,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """Raises UserError if `drop_last` leaves no full global batch."""
        if drop_last and batch_size * world_size > len(index):
            raise UserError(
                f"hp.batch_size={batch_size} on {world_size} rank(s) is larger than the training split of {len(index)}"
                f"; choose at most {len(index) // world_size}"
            )
        self.index, self.batch_size = index, batch_size
        self.shuffle, self.drop_last, self.seed = shuffle, drop_last, seed
        self.rank, self.world_size = rank, world_size
        self.epoch = self.position = 0
        self._resuming = False

    @abstractmethod
    def begin(self, order: Tensor) -> None:
        """Starts an epoch; `order` has this rank's rows."""

    @abstractmethod
    def batch(self, step: int) -> Batch:
        """Returns the batch number `step` of the epoch."""

    def samples_of_ranks(self, step: int, world_size: int) -> tuple[int, ...]:
        """Returns the samples of every rank in batch number `step` of the epoch; all ranks return the same."""
        if self.drop_last:
            return (self.batch_size,) * world_size
        rows = (len(range(rank, len(self.index), world_size)) for rank in range(world_size))
        return tuple(min(max(count - step * self.batch_size, 0), self.batch_size) for count in rows)

    def __len__(self) -> int:
        if self.drop_last:
            return len(self.index) // (self.batch_size * self.world_size)
        rows = len(range(self.rank, len(self.index), self.world_size))
        return -(-rows // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        if self.position and not (self._resuming and self.position < len(self)):
            self.epoch, self.position = self.epoch + 1, 0
        self._resuming = False
        self.begin(self._order())
        while self.position < len(self):
            self.position += 1
            yield self.batch(self.position - 1)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]
        self._resuming = True

    def _order(self) -> Tensor:
        """Returns this rank's rows of this epoch, in order."""
        order = self.index
        if self.shuffle:
            generator = torch.Generator().manual_seed((self.seed << 20) + self.epoch)
            order = order[torch.randperm(len(order), generator=generator)]
        if self.drop_last:
            full = order[: len(self) * self.batch_size * self.world_size]
            return full.view(len(self), self.world_size, self.batch_size)[:, self.rank].reshape(-1)
        return order[self.rank :: self.world_size]


class PoolLoader(OrderedLoader[Batch]):
    """`steps` batches an epoch, taken in order and repeatedly from a pool of batches on the device.

    Every rank has a pool of its own, of batches of `batch_size` samples.
    """

    def __init__(self, pool: list[Batch], steps: int, batch_size: int) -> None:
        super().__init__(torch.arange(steps), 1, shuffle=False, drop_last=False)
        self.pool, self.samples = pool, batch_size

    def samples_of_ranks(self, step: int, world_size: int) -> tuple[int, ...]:
        return (self.samples,) * world_size

    def begin(self, order: Tensor) -> None:
        """Does nothing: the order is that of the pool."""

    def batch(self, step: int) -> Batch:
        return self.pool[step % len(self.pool)]


class ResidentLoader(OrderedLoader[tuple[Tensor, ...]]):
    """Batches of rows of tensors that share their first dimension, all on one device."""

    def __init__(self, tensors: tuple[Tensor, ...], index: Tensor, batch_size: int, **order: Any) -> None:
        """Takes the rows `index` of `tensors`; `order` as for OrderedLoader."""
        super().__init__(index, batch_size, **order)
        self.tensors = tensors
        self._rows = index

    def begin(self, order: Tensor) -> None:
        self._rows = order.to(self.tensors[0].device)

    def batch(self, step: int) -> tuple[Tensor, ...]:
        rows = self._rows[step * self.batch_size : (step + 1) * self.batch_size]
        return tuple(tensor[rows] for tensor in self.tensors)
