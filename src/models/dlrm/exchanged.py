"""Whole tables on single ranks, with exchanges of fixed size: a rank's share, as `RankTables`, but by our own kernels.

How many ids travel is known from the sizes of tables and batches. So the host reads nothing, and a whole step with its
exchanges can be captured in a CUDA graph. Tiny tables are everywhere: the sums of their gradients are averaged.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int32
from torch import Tensor, distributed

from src.batches.clicks import Table
from src.gpu.side_stream import SideStream
from src.gpu.waiting import Waiting
from src.models.dlrm.direct import DirectRoute
from src.models.dlrm.embeddings import Pending, PlainEmbeddings, Rule, Targets, whole
from src.models.dlrm.exchange import Asked, MessageRoute, Route, Shares
from src.models.dlrm.sharded_pieces import Piece, initialise
from src.models.dlrm.sharded_plan import Plan
from src.parallel.transports import average


def can_exchange(plan: Plan) -> bool:
    """Whether all of its tables are whole."""
    return all(placement.sharding in ("table_wise", "data_parallel") for placement in plan)


class Taken(NamedTuple):
    """What a backward pass has brought: of all ranks for the rows held here, and what makes the copies' sums final."""

    asked: Asked
    own: Float[Tensor, "all own dim"]
    averaged: Any
    gradient: Tensor  # that the other stream may still read
    overflow: Float[Tensor, ""]  # of all ranks, when they have `agreed`
    agreed: Any


class ExchangedTables:
    """The tables that lie on this rank, initialised. Every rank makes them, and calls what they have.

    Args:
        seed: the same on all ranks.
        watched: gives what becomes 1 where one of this rank's gradients overflows, if somebody looks at them all.
    """

    def __init__(
        self, plan: Plan, dim: int, optimizer: Rule, eps: float, device: torch.device, seed: int,
        watched: Callable[[], Tensor | None],
    ) -> None:  # fmt: skip
        self.plan, self.dim, self.device = plan, dim, device
        self.rank, self.world = distributed.get_rank(), distributed.get_world_size()
        self.waiting, self.watched = Waiting(device), watched
        self.held_by = [[n for n, p in enumerate(plan) if p.ranks == (r,)] for r in range(self.world)]
        self.copied = [n for n, p in enumerate(plan) if p.sharding == "data_parallel"]
        if self.world == 1:  # a single rank has them all
            self.held_by, self.copied = [list(range(len(plan)))], []
        with torch.device(device):
            self.own = PlainEmbeddings(self._tables(self.held_by[self.rank]), dim, optimizer, eps)
            self.copies = Copies(self._tables(self.copied), dim, optimizer, eps)
        for number in range(len(plan)):
            for piece in self.weights(number):
                initialise(piece, (plan[number].table.cardinality, dim), (seed, number))
        self.shares = Shares(
            plan, dim, self.rank, self.world, device, self.held_by, self.copied, own=self.own, copies=self.copies
        )
        self.route: Route = DirectRoute.of(self.shares) or MessageRoute(self.shares)
        self.aside = SideStream(device)
        self.anchor = torch.empty(0, device=device, requires_grad=True)
        self.pending: list[Taken] = []

    def _tables(self, numbers: Sequence[int]) -> list[Table]:
        return [self.plan[number].table for number in numbers]

    def weights(self, number: int) -> list[Piece]:
        """This rank's parts of a table."""
        return self._pieces(number, lambda tables, place: tables.weights[place])

    def squares(self, number: int) -> list[Piece]:
        """This rank's parts of what Adagrad has accumulated for a table."""
        return self._pieces(number, lambda tables, place: tables.accumulators.get_buffer(str(place)))

    def _pieces(self, number: int, part: Callable[[PlainEmbeddings, int], Tensor]) -> list[Piece]:
        for tables, numbers in ((self.own, self.held_by[self.rank]), (self.copies, self.copied)):
            if number in numbers:
                values = part(tables, numbers.index(number)).detach()
                return [Piece(slice(0, len(values)), slice(0, self.dim), values)]
        return []

    def begin(self, ids: Int32[Tensor, " ids"], batch: int, dtype: torch.dtype) -> Callable[[], Tensor]:
        """Looks up and exchanges beside what the current stream does next; the result waits for it.

        Returns what gives [batch, tables, dim], known to autograd, whose backward leaves the gradients here.
        """
        kept, spans = torch.is_grad_enabled(), self.shares.spans(batch)
        copied = torch.cat([ids[:0], *(ids[spans[number]] for number in self.copied)])
        copied_order = self.copies.order_of(copied, batch) if len(copied) else None
        with self.aside:
            own = self.route.ids(ids, batch)
            own_order = self.own.order_of(own, batch * self.world) if len(own) else None
            asked = Asked(own, copied, batch, own_order, copied_order)
            with torch.no_grad():
                vectors = self.route.vectors(asked, dtype)

        def finish() -> Tensor:
            with torch.no_grad():
                self.route.add_copied(asked, vectors)
            if not kept:
                self.aside.join()
                return vectors
            with self.waiting():
                self.aside.join()
            return Vectors.apply(self, asked, vectors, self.anchor)  # type: ignore[return-value]

        return finish

    def targets(self) -> Targets | None:
        return self.route.targets()

    def take(self, asked: Asked, gradient: Float[Tensor, "batch tables dim"]) -> None:
        """Sends gradients to the ranks that hold the rows, and sums up those of the copied tables."""
        with self.aside, torch.no_grad():
            own, copied = self.route.gradients(gradient)
            flag = self.watched()
            flag = flag.clone() if flag is not None else 1 - (own.isfinite().all() & copied.isfinite().all()).float()
            agreed = distributed.all_reduce(flag, distributed.ReduceOp.MAX, async_op=True)
            averaged = self.copies.sum_up(Pending(asked.copied, copied, asked.copied_order)) if self.copied else None
        self.pending.append(Taken(asked, own, averaged, gradient, flag, agreed))

    def overflowed(self) -> Float[Tensor, ""]:
        """1 where a pending gradient of any rank is infinite or NaN, otherwise 0."""
        with self.waiting():
            self.aside.join()
            for taken in self.pending:
                taken.agreed.wait()
        flags = [taken.overflow for taken in self.pending]
        return torch.stack([torch.zeros((), device=self.device), *flags]).amax()

    def update(self, rate: Tensor, found_inf: Tensor | None, loss_scale: Tensor | None) -> None:
        """One optimiser step; see `Embeddings.update`."""
        scale = torch.ones_like(rate) if loss_scale is None else loss_scale
        pending, self.pending = self.pending, []
        for taken in pending:
            with self.waiting():
                self.aside.join()
            if self.held_by[self.rank]:  # the sum over ranks, each of which has the mean over its samples
                part = Pending(taken.asked.own, taken.own, taken.asked.own_order)
                self.own.apply([part], rate / self.world, found_inf, scale * self.world)
            if taken.averaged is not None:
                with self.waiting():
                    taken.averaged.wait()
                self.copies.apply_sums(rate, found_inf, scale)


class Copies(PlainEmbeddings):
    """Tables of which every rank has the whole, changed by the mean of what all ranks find.

    sums: of the gradients of the newest backward pass, of each row of all tables.
    """

    def __init__(self, tables: Sequence[Table], dim: int, optimizer: Rule, eps: float) -> None:
        super().__init__(tables, dim, optimizer, eps)
        self.adding = PlainEmbeddings(tables, dim)  # whose update adds up
        self.sums = whole(list(self.adding.weights)) if tables else torch.empty(0, dim)
        self.minus_one = torch.tensor(-1.0)

    def sum_up(self, part: Pending) -> Any:
        """Makes `sums` and begins to average them over the ranks; returns what to wait for."""
        self.sums.zero_()
        self.adding.apply([part], self.minus_one, None, None)
        return average(self.sums)

    def apply_sums(self, rate: Tensor, found_inf: Tensor | None, loss_scale: Tensor) -> None:
        """Changes all rows by the averaged `sums`; see `update`."""
        total = self.sums if found_inf is None else self.sums.masked_fill(found_inf != 0, 0)
        step = rate * total
        if self.optimizer == "adagrad":
            squares = whole(list(self.accumulators.buffers()))
            squares += (total / loss_scale).square()
            step = step / (squares.sqrt() + self.eps)
        rows = whole(list(self.weights))
        rows -= step


class Vectors(torch.autograd.Function):
    """What was exchanged; backward leaves the gradients with the tables."""

    @staticmethod
    def forward(ctx: Any, tables: ExchangedTables, asked: Asked, vectors: Tensor, anchor: Tensor) -> Tensor:
        ctx.tables, ctx.asked = tables, asked
        return vectors.view_as(vectors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        ctx.tables.take(ctx.asked, gradients[0])
        return None, None, None, None
