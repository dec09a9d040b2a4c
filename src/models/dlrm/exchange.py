"""How ids, vectors and gradients get from rank to rank: messages of fixed sizes, over any backend."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int32
from torch import Tensor, distributed

from src.models.dlrm.embeddings import PlainEmbeddings, Targets
from src.models.dlrm.sharded_plan import Plan


class Asked(NamedTuple):
    """The ids of one look-up: of all ranks for the rows held here, and of this rank for the copied tables."""

    own: Int32[Tensor, " own_ids"]
    copied: Int32[Tensor, " copied_ids"]
    batch: int
    own_order: Any
    copied_order: Any


@dataclass(frozen=True)
class Shares:
    """Which rank holds which tables, and those of this rank.

    Attributes:
        held_by: the numbers of the tables that each rank holds.
        copied: the numbers of those that all ranks hold.
        own, copies: this rank's tables and its copies.
    """

    plan: Plan
    dim: int
    rank: int
    world: int
    device: torch.device
    held_by: list[list[int]]
    copied: list[int]
    own: PlainEmbeddings
    copies: PlainEmbeddings

    def spans(self, batch: int) -> list[slice]:
        """The place of each table's ids among those of a rank's samples."""
        ends = [0, *accumulate(batch * placement.table.hotness for placement in self.plan)]
        return [slice(*span) for span in pairwise(ends)]


class Route(ABC):
    """The way between the rank that holds a table and those that have the samples. All ranks call it, alike."""

    def __init__(self, tables: Shares) -> None:
        self.tables = tables
        self.held_by, self.copied, self.dim = tables.held_by, tables.copied, tables.dim
        self.rank, self.world, self.device = tables.rank, tables.world, tables.device
        self.own_hotness = [table.hotness for table in tables.own.tables]

    def ids(self, ids: Int32[Tensor, " ids"], batch: int) -> Int32[Tensor, " own_ids"]:
        """All ranks' ids of the tables held here, table-major; a table's are those of rank 0's samples first.

        Args:
            ids: this rank's of all tables.
        """
        parts = [ids[span] for span in self.tables.spans(batch)]
        sizes = [batch * sum(self.tables.plan[n].table.hotness for n in held) for held in self.held_by]
        wanted = torch.cat([ids[:0], *(parts[number] for held in self.held_by for number in held)])
        received = self.exchanged(wanted, sizes, [sizes[self.rank]] * self.world).view(self.world, sizes[self.rank])
        per_table = received.split([batch * hotness for hotness in self.own_hotness], dim=1)
        return torch.cat([own.reshape(-1) for own in (received[:, :0], *per_table)])

    def exchanged(self, message: Tensor, sent: list[int], received: list[int]) -> Tensor:
        """A message in parts for each rank; returns the parts that come from each."""
        answer = message.new_empty(sum(received))
        distributed.all_to_all_single(answer, message, received, sent)
        return answer

    @abstractmethod
    def vectors(self, asked: Asked, dtype: torch.dtype) -> Float[Tensor, "batch tables {self.dim}"]:
        """Looks up what all ranks have asked for, and returns what this rank's samples get.

        Where the copied tables' vectors are not in it yet, `add_copied` puts them there.
        """

    def add_copied(self, asked: Asked, vectors: Float[Tensor, "batch tables {self.dim}"]) -> None:
        """Called on the stream that the vectors are for."""
        return  # they are there

    @abstractmethod
    def gradients(
        self, gradient: Float[Tensor, "batch tables dim"]
    ) -> tuple[Float[Tensor, "all own dim"], Float[Tensor, "batch copied dim"]]:
        """All ranks' gradients of the tables held here, and this rank's of the copied ones."""

    def targets(self) -> Targets | None:
        """See `Embeddings.targets`."""
        return None


class MessageRoute(Route):
    """Vectors are looked up, sent, and put in order; gradients the same way back."""

    def __init__(self, tables: Shares) -> None:
        super().__init__(tables)
        sequence = [number for held in self.held_by for number in held] + self.copied
        self.order = torch.tensor(sequence, device=self.device).argsort()
        self.groups = [torch.tensor(held, dtype=torch.int64, device=self.device) for held in self.held_by]
        self.copied_group = torch.tensor(self.copied, dtype=torch.int64, device=self.device)

    def vectors(self, asked: Asked, dtype: torch.dtype) -> Tensor:
        batch = asked.batch
        found = self.tables.own.look_up(asked.own, batch * self.world, dtype)
        sizes = self._sizes(batch)
        received = self.exchanged(found.flatten(), [sizes[self.rank]] * self.world, sizes).split(sizes)
        shapes = [(batch, len(held), self.dim) for held in self.held_by]
        parts = [part.view(shape) for part, shape in zip(received, shapes, strict=True)]
        return torch.cat([*parts, self.tables.copies.look_up(asked.copied, batch, dtype)], 1).index_select(
            1, self.order
        )

    def gradients(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        batch = len(gradient)
        sizes = self._sizes(batch)
        message = torch.cat([gradient.index_select(1, group).flatten() for group in self.groups])
        own = self.exchanged(message, sizes, [sizes[self.rank]] * self.world)
        return own.view(batch * self.world, -1, self.dim), gradient.index_select(1, self.copied_group)

    def _sizes(self, batch: int) -> list[int]:
        """Numbers that a rank's samples get from each rank."""
        return [batch * len(held) * self.dim for held in self.held_by]
