"""One rank's embedding tables under table-wise sharding, with our own kernels: a capturable `TorchRecTables`.

The sizes of tables and batches fix the sizes of all exchanges. So the host reads nothing from the device, and a CUDA
graph can hold a whole step with its exchanges. Small tables are replicated and their summed gradients averaged.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int32
from torch import Tensor, distributed

from src.batches.clicks import EmbeddingTable
from src.gpu.side_stream import SideStream
from src.gpu.waiting import Waiting
from src.models.dlrm.embeddings import GradientSlots, Pending, PlainEmbeddings, Rule, whole
from src.models.dlrm.exchange import AllToAllExchange, Exchange, LookupIds, TableShards
from src.models.dlrm.pieces import Piece, Start, initialise
from src.models.dlrm.sharded_plan import Plan
from src.parallel.transports import average


def is_table_wise(plan: Plan) -> bool:
    """Returns whether no table of the plan is cut."""
    return all(placement.sharding in ("table_wise", "data_parallel") for placement in plan)


class ExchangedGradients(NamedTuple):
    """The gradients of one backward pass, exchanged but not applied.

    own: all ranks' gradients of the tables held here.
    average_work: the all-reduce of the replicated tables' sums; None without any.
    overflow: 1 where a gradient of any rank is infinite or NaN, once `overflow_work` is done.
    """

    lookup: LookupIds
    own: Float[Tensor, "all own dim"]
    average_work: Any
    gradient: Tensor  # kept alive: the side stream may still read it
    overflow: Float[Tensor, ""]
    overflow_work: Any


class TableWiseTables:
    """This rank's tables, initialised. All ranks construct it and call its methods in the same order.

    Args:
        start: the same on all ranks.
        kernel_overflow: returns the flag that the interaction's kernel sets to 1 where one of this rank's gradients
            overflows; None if the kernel does not check them.
    """

    def __init__(
        self, plan: Plan, dim: int, optimizer: Rule, eps: float, device: torch.device, start: Start,
        kernel_overflow: Callable[[], Tensor | None],
    ) -> None:  # fmt: skip
        self.plan, self.dim, self.device = plan, dim, device
        self.rank, self.world = distributed.get_rank(), distributed.get_world_size()
        self.waiting, self.kernel_overflow = Waiting(device), kernel_overflow
        self.held_by = [[n for n, p in enumerate(plan) if p.ranks == (r,)] for r in range(self.world)]
        self.replicated = [n for n, p in enumerate(plan) if p.sharding == "data_parallel"]
        if self.world == 1:
            self.held_by, self.replicated = [list(range(len(plan)))], []
        with torch.device(device):
            self.own = HeldTables(self._tables(self.held_by[self.rank]), dim, optimizer, eps)
            self.replicas = ReplicatedTables(self._tables(self.replicated), dim, optimizer, eps)
        for number in range(len(plan)):
            for piece in self.weights(number):
                initialise(piece, (plan[number].table.cardinality, dim), start, number)
        self.shards = TableShards(
            plan, dim, self.rank, self.world, device, self.held_by, self.replicated, self.own, self.replicas
        )
        self.exchange: Exchange = AllToAllExchange(self.shards)
        self.side_stream = SideStream(device)
        self.anchor = torch.empty(0, device=device, requires_grad=True)
        self.pending: list[ExchangedGradients] = []

    def _tables(self, numbers: Sequence[int]) -> list[EmbeddingTable]:
        return [self.plan[number].table for number in numbers]

    def weights(self, number: int) -> list[Piece]:
        """Returns this rank's parts of a table."""
        return self._pieces(number, lambda tables, index: tables.weights[index])

    def squares(self, number: int) -> list[Piece]:
        """Returns this rank's parts of a table's squares accumulated by Adagrad."""
        return self._pieces(number, lambda tables, index: tables.accumulators.get_buffer(str(index)))

    def _pieces(self, number: int, part: Callable[[PlainEmbeddings, int], Tensor]) -> list[Piece]:
        for tables, numbers in ((self.own, self.held_by[self.rank]), (self.replicas, self.replicated)):
            if number in numbers:
                values = part(tables, numbers.index(number)).detach()
                return [Piece(slice(0, len(values)), slice(0, self.dim), values)]
        return []

    def start_lookup(self, ids: Int32[Tensor, " ids"], batch: int, dtype: torch.dtype) -> "SentLookup":
        """Starts the lookup and its exchange on a side stream."""
        grad, spans = torch.is_grad_enabled(), self.shards.spans(batch)
        replicated = torch.cat([ids[:0], *(ids[spans[number]] for number in self.replicated)])
        replicated_order = self.replicas.row_order(replicated, batch) if len(replicated) else None
        with self.side_stream:
            own_ids = self.exchange.ids(ids, batch)
            own_order = self.own.row_order(own_ids, batch * self.world) if len(own_ids) else None
            lookup = LookupIds(own_ids, replicated, batch, own_order, replicated_order)
            with torch.no_grad():
                vectors = self.exchange.vectors(lookup, dtype)

        return SentLookup(self, ids, lookup, vectors, grad)

    def gradient_slots(self) -> GradientSlots | None:
        return self.exchange.gradient_slots()

    def send_gradients(self, lookup: LookupIds, gradient: Float[Tensor, "batch tables dim"]) -> None:
        """Sends gradients to the ranks that hold the tables, and starts to average those of the replicated tables."""
        with self.side_stream, torch.no_grad():
            own, replicated = self.exchange.gradients(gradient)
            flag = self.kernel_overflow()
            flag = 1 - (own.isfinite().all() & replicated.isfinite().all()).float() if flag is None else flag.clone()
            overflow_work = distributed.all_reduce(flag, distributed.ReduceOp.MAX, async_op=True)
            average_work = None
            if self.replicated:
                average_work = self.replicas.start_average(
                    Pending(lookup.replicated, replicated, lookup.replicated_order)
                )
        self.pending.append(ExchangedGradients(lookup, own, average_work, gradient, flag, overflow_work))

    def overflowed(self) -> Float[Tensor, ""]:
        """Returns 1 if a pending gradient of any rank is infinite or NaN, otherwise 0."""
        with self.waiting():
            self.side_stream.join()
            for gradients in self.pending:
                gradients.overflow_work.wait()
        flags = [gradients.overflow for gradients in self.pending]
        return torch.stack([torch.zeros((), device=self.device), *flags]).amax()

    def update(self, rate: Tensor, found_inf: Tensor | None, loss_scale: Tensor | None) -> None:
        """Takes one optimiser step; see `Embeddings.update`."""
        scale = torch.ones_like(rate) if loss_scale is None else loss_scale
        pending, self.pending = self.pending, []
        for gradients in pending:
            with self.waiting():
                self.side_stream.join()
            if self.held_by[self.rank]:  # gradients of each rank are of the mean over its own samples
                part = Pending(gradients.lookup.own, gradients.own, gradients.lookup.own_order)
                self.own.apply([part], rate / self.world, found_inf, scale * self.world)
            if gradients.average_work is not None:
                with self.waiting():
                    gradients.average_work.wait()
                self.replicas.apply_sums(rate, found_inf, scale)


@dataclass(frozen=True, eq=False)  # as `Lookup`
class SentLookup:
    """A lookup whose exchange has begun. A call waits for it and returns the vectors [batch, tables, dim].

    Their backward pass calls `send_gradients`. Some interactions read the rows of replicated tables themselves.
    """

    tables: TableWiseTables
    ids: Int32[Tensor, " ids"]  # of all tables
    lookup: LookupIds
    vectors: Tensor
    grad: bool

    def __call__(self) -> Float[Tensor, "batch tables dim"]:
        with torch.no_grad():
            self.tables.exchange.add_replicated(self.lookup, self.vectors)
        return self.without_replicated()

    def without_replicated(self) -> Float[Tensor, "batch tables dim"]:
        """Returns the vectors; where the exchange leaves those of replicated tables out, these are any numbers."""
        if not self.grad:
            self.tables.side_stream.join()
            return self.vectors
        with self.tables.waiting():
            self.tables.side_stream.join()
        return Vectors.apply(self.tables, self.lookup, self.vectors, self.tables.anchor)  # type: ignore[return-value]


class HeldTables(PlainEmbeddings):
    """Some of a network's tables; whoever makes them sets their first values, which depend on the network's numbers."""

    def initialise(self) -> None:
        """Does nothing."""


class ReplicatedTables(HeldTables):
    """Tables that every rank holds whole, updated by the gradients averaged over the ranks.

    sums: gradients of the latest backward pass summed for each row, [rows of all tables, dim].
    """

    def __init__(self, tables: Sequence[EmbeddingTable], dim: int, optimizer: Rule, eps: float) -> None:
        super().__init__(tables, dim, optimizer, eps)
        self.adding = HeldTables(tables, dim)  # its update with rate -1 adds gradients up
        self.sums = whole(list(self.adding.weights)) if tables else torch.empty(0, dim)
        self.minus_one = torch.tensor(-1.0)

    def start_average(self, part: Pending) -> Any:
        """Computes `sums` and starts to average them over the ranks; returns the work to wait for."""
        self.sums.zero_()
        self.adding.apply([part], self.minus_one, None, None)
        return average(self.sums)

    def apply_sums(self, rate: Tensor, found_inf: Tensor | None, loss_scale: Tensor) -> None:
        """Updates all rows with the averaged `sums`; see `update`."""
        total = self.sums if found_inf is None else self.sums.masked_fill(found_inf != 0, 0)
        step = rate * total
        if self.optimizer == "adagrad":
            squares = whole(list(self.accumulators.buffers()))
            squares += (total / loss_scale).square()
            step = step / (squares.sqrt() + self.eps)
        rows = whole(list(self.weights))
        rows -= step


class Vectors(torch.autograd.Function):
    """Returns the exchanged vectors; the backward pass sends their gradients."""

    @staticmethod
    def forward(ctx: Any, tables: TableWiseTables, lookup: LookupIds, vectors: Tensor, anchor: Tensor) -> Tensor:
        ctx.tables, ctx.lookup = tables, lookup
        return vectors.view_as(vectors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        ctx.tables.send_gradients(ctx.lookup, gradients[0])
        return None, None, None, None
