"""All-to-all exchange of ids, vectors and gradients between ranks, with sizes that the host knows."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int32
from torch import Tensor, distributed

from src.models.dlrm.embeddings import GradientSlots, PlainEmbeddings
from src.models.dlrm.sharded_plan import Plan


class LookupIds(NamedTuple):
    """The ids of one lookup and their row orders.

    own: all ranks' ids of the tables held here.
    replicated: this rank's ids of the replicated tables.
    """

    own: Int32[Tensor, " own_ids"]
    replicated: Int32[Tensor, " replicated_ids"]
    batch: int
    own_order: Any
    replicated_order: Any


@dataclass(frozen=True)
class TableShards:
    """Which rank holds which tables, and this rank's tables.

    Attributes:
        held_by: the numbers of the tables that each rank holds.
        replicated: the numbers of the tables that all ranks hold.
        own, replicas: this rank's tables and its replicas.
    """

    plan: Plan
    dim: int
    rank: int
    world: int
    device: torch.device
    held_by: list[list[int]]
    replicated: list[int]
    own: PlainEmbeddings
    replicas: PlainEmbeddings

    def spans(self, batch: int) -> list[slice]:
        """Returns the slice of each table's ids among those of a rank's samples."""
        ends = [0, *accumulate(batch * placement.table.hotness for placement in self.plan)]
        return [slice(*span) for span in pairwise(ends)]


class Exchange(ABC):
    """Moves ids, vectors and gradients between ranks that hold tables and ranks that have samples.

    All ranks call each method, in the same order.

    leaves_replicated: whether `vectors` leaves those of replicated tables to `add_replicated`.
    """

    leaves_replicated = False

    def __init__(self, tables: TableShards) -> None:
        self.tables = tables
        self.held_by, self.replicated, self.dim = tables.held_by, tables.replicated, tables.dim
        self.rank, self.world, self.device = tables.rank, tables.world, tables.device
        self.own_hotness = [table.hotness for table in tables.own.tables]

    def ids(self, ids: Int32[Tensor, " ids"], batch: int) -> Int32[Tensor, " own_ids"]:
        """Returns all ranks' ids of the tables held here, table-major, then by rank.

        Args:
            ids: this rank's ids of all tables.
        """
        parts = [ids[span] for span in self.tables.spans(batch)]
        sizes = [batch * sum(self.tables.plan[n].table.hotness for n in held) for held in self.held_by]
        wanted = torch.cat([ids[:0], *(parts[number] for held in self.held_by for number in held)])
        received = self.all_to_all(wanted, sizes, [sizes[self.rank]] * self.world).view(self.world, sizes[self.rank])
        per_table = received.split([batch * hotness for hotness in self.own_hotness], dim=1)
        return torch.cat([part.reshape(-1) for part in (received[:, :0], *per_table)])

    def all_to_all(self, send: Tensor, send_sizes: list[int], receive_sizes: list[int]) -> Tensor:
        """Sends each rank its part of a flat buffer and returns the parts received, in the order of the ranks."""
        received = send.new_empty(sum(receive_sizes))
        distributed.all_to_all_single(received, send, receive_sizes, send_sizes)
        return received

    @abstractmethod
    def vectors(self, lookup: LookupIds, dtype: torch.dtype) -> Float[Tensor, "batch tables {self.dim}"]:
        """Looks up all ranks' ids of the tables held here and returns the vectors of this rank's samples.

        Those of replicated tables are missing where it `leaves_replicated`.
        """

    def add_replicated(self, lookup: LookupIds, vectors: Float[Tensor, "batch tables {self.dim}"]) -> None:
        """Fills in the replicated tables' vectors, on the stream that reads them; the default has nothing to do."""
        return

    @abstractmethod
    def gradients(
        self, gradient: Float[Tensor, "batch tables dim"]
    ) -> tuple[Float[Tensor, "all own dim"], Float[Tensor, "batch replicated dim"]]:
        """Returns all ranks' gradients of the tables held here, and this rank's of the replicated tables."""

    def gradient_slots(self) -> GradientSlots | None:
        """See `Embeddings.gradient_slots`."""
        return None


class AllToAllExchange(Exchange):
    """Exchanges vectors and gradients by all-to-all, over any backend."""

    def __init__(self, tables: TableShards) -> None:
        super().__init__(tables)
        sequence = [number for held in self.held_by for number in held] + self.replicated
        self.order = torch.tensor(sequence, device=self.device).argsort()
        self.groups = [torch.tensor(held, dtype=torch.int64, device=self.device) for held in self.held_by]
        self.replicated_group = torch.tensor(self.replicated, dtype=torch.int64, device=self.device)

    def vectors(self, lookup: LookupIds, dtype: torch.dtype) -> Tensor:
        batch = lookup.batch
        vectors = self.tables.own.look_up(lookup.own, batch * self.world, dtype)
        sizes = self._sizes(batch)
        received = self.all_to_all(vectors.flatten(), [sizes[self.rank]] * self.world, sizes).split(sizes)
        shapes = [(batch, len(held), self.dim) for held in self.held_by]
        parts = [part.view(shape) for part, shape in zip(received, shapes, strict=True)]
        parts.append(self.tables.replicas.look_up(lookup.replicated, batch, dtype))
        return torch.cat(parts, 1).index_select(1, self.order)

    def gradients(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        batch = len(gradient)
        sizes = self._sizes(batch)
        send = torch.cat([gradient.index_select(1, group).flatten() for group in self.groups])
        received = self.all_to_all(send, sizes, [sizes[self.rank]] * self.world)
        return received.view(batch * self.world, -1, self.dim), gradient.index_select(1, self.replicated_group)

    def _sizes(self, batch: int) -> list[int]:
        """Returns the number of elements that a rank receives from each rank."""
        return [batch * len(held) * self.dim for held in self.held_by]
