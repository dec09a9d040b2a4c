"""DLRM's embedding tables: what every kind of them is, and the plain ones, which the others must equal."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from math import sqrt
from types import ModuleType
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Int32
from torch import Tensor, nn
from torch.nn import functional as F

from src.batches.clicks import Table
from src.errors import UserError
from src.gpu.triton_helpers import working_dtype
from src.models.dlrm.kernels import dispatch

Rule = Literal["sgd", "adagrad"]


class Embeddings(nn.Module, ABC):
    """What DLRM asks of the module that holds its tables: sparse gradients are its own affair, and so is their update.

    The tables are parameters that never get a gradient: the backward pass leaves it with the module, and `update`
    applies it to the rows that it concerns.

    overflow: becomes 1 where a gradient is infinite or NaN, if the interaction looks at those that it hands back
        (`is_watched`).
    """

    optimizer: Rule
    overflow: Tensor  # float32

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("overflow", torch.zeros(()), persistent=False)
        self.is_watched = False

    @abstractmethod
    def forward(self, ids: Int32[Tensor, " ids"], batch: int) -> Float[Tensor, "{batch} tables dim"]:
        """Each sample's vector of each table, in autocast's dtype or the tables'; a table's ids are summed.

        Args:
            ids: table-major, each table's [batch, hotness] flattened; at least 0 and below the table's cardinality.
            batch: number of samples.
        """

    def begin(self, ids: Int32[Tensor, " ids"], batch: int) -> Callable[[], Float[Tensor, "{batch} tables dim"]]:
        """`forward` in two halves: what is sent to other ranks travels until the second one, the call of the result."""
        return partial(self, ids, batch)

    def can_be_captured(self) -> bool:
        """Whether a CUDA graph can hold it: whether the host reads nothing of the device."""
        return True

    def targets(self) -> "Targets | None":
        """Where the interaction may write the gradient of the newest vectors itself; None: it hands it back."""
        return None

    @abstractmethod
    def overflowed(self) -> Float[Tensor, ""]:
        """1 where a pending gradient is infinite or NaN, otherwise 0: the embeddings' part in a scaler's decision."""

    @abstractmethod
    def update(
        self,
        rate: Float[Tensor, ""],
        found_inf: Float[Tensor, ""] | None = None,
        loss_scale: Float[Tensor, ""] | None = None,
    ) -> None:
        """Applies the pending gradients, the same way every time, and forgets them.

        Args:
            rate: learning rate / loss scale.
            found_inf: not 0 where a gradient of the network overflowed: then nothing changes.
            loss_scale: by which the gradients are too large; Adagrad accumulates the true ones. None for 1.
        """


class Targets(NamedTuple):
    """Where gradients of vectors are wanted: each table's [batch, dim] so many numbers behind `origin`'s first."""

    origin: Tensor
    offsets: Int[Tensor, " tables"]  # divisible by 16


class Pending(NamedTuple):
    """What a backward pass has found: the gradient of what was looked up, [batch, tables, dim]."""

    ids: Tensor
    gradient: Tensor
    order: Any  # of the ids, where the kernels are to apply it


class PlainEmbeddings(Embeddings):
    """The tables in plain torch, from U(-1/sqrt(rows), 1/sqrt(rows)).

    Nothing here waits for the device or has a shape that depends on the ids.

    Args:
        optimizer: `sgd`, or `adagrad` with one accumulated square per weight (buffers `accumulators.<table>`).
        eps: of Adagrad.

    pending: of each backward pass since the last update.
    """

    def __init__(self, tables: Sequence[Table], dim: int, optimizer: Rule = "sgd", eps: float = 1e-8) -> None:
        super().__init__()
        if optimizer not in ("sgd", "adagrad"):
            raise UserError(f"the embeddings' optimizer={optimizer} is unknown; give sgd or adagrad")
        self.tables, self.dim, self.eps = tuple(tables), dim, eps
        self.optimizer: Rule = optimizer
        # One behind the other in memory, which the kernels need no table of addresses for.
        all_rows = torch.empty(sum(table.cardinality for table in tables), dim)
        begins = [0, *accumulate(table.cardinality for table in tables)]
        spans = [slice(*span) for span in pairwise(begins)]
        self.weights = nn.ParameterList(nn.Parameter(uniform_table(all_rows[span])) for span in spans)
        self.accumulators = nn.Module()
        if optimizer == "adagrad":
            squares = torch.zeros_like(all_rows)
            for number, span in enumerate(spans):
                self.accumulators.register_buffer(str(number), squares[span])
        self.pending: list[Pending] = []

    def forward(self, ids: Int32[Tensor, " ids"], batch: int) -> Float[Tensor, "{batch} tables {self.dim}"]:
        order = self.order_of(ids, batch)
        return LookUp.apply(self, ids, batch, order, working_dtype(self.weights[0]), *self.weights)  # type: ignore[return-value]

    def order_of(self, ids: Int32[Tensor, " ids"], batch: int) -> Any:
        """What the kernels of `apply` want to know of the ids; made beside what the device does next."""
        fused = self.fused()
        return fused.tables.ordered_aside(self.tables, ids, batch) if fused and torch.is_grad_enabled() else None

    def fused(self) -> ModuleType | None:
        """The kernels, where they can take these tables."""
        if not len(self.weights) or self.weights[0].dtype != torch.float32:
            return None
        found = dispatch.fused_for(self.weights[0])
        return found if found and found.tables.supported(self.dim) else None

    def look_up(
        self, ids: Int32[Tensor, " ids"], batch: int, dtype: torch.dtype
    ) -> Float[Tensor, "{batch} tables {self.dim}"]:
        """What `forward` returns, unknown to autograd."""
        if fused := self.fused():
            return fused.tables.look_up(list(self.weights), self.tables, ids, batch, dtype)
        vectors = torch.empty(batch, len(self.tables), self.dim, dtype=dtype, device=ids.device)
        for number, (weight, own) in enumerate(zip(self.weights, self.split(ids, batch), strict=True)):
            vectors[:, number] = F.embedding_bag(own.view(batch, -1), weight, mode="sum")
        return vectors

    def split(self, ids: Int32[Tensor, " ids"], batch: int) -> Sequence[Int32[Tensor, " _"]]:
        """Each table's ids."""
        return ids.split([batch * table.hotness for table in self.tables])

    def overflowed(self) -> Float[Tensor, ""]:
        if self.is_watched or not self.pending:
            return self.overflow
        return 1 - torch.stack([part.gradient.isfinite().all() for part in self.pending]).all().float()

    @torch.no_grad()
    def update(
        self,
        rate: Float[Tensor, ""],
        found_inf: Float[Tensor, ""] | None = None,
        loss_scale: Float[Tensor, ""] | None = None,
    ) -> None:
        pending, self.pending = self.pending, []
        if pending:
            self.apply(pending, rate, found_inf, loss_scale)
            self.overflow.zero_()

    def apply(
        self, pending: Sequence["Pending"], rate: Tensor, found_inf: Tensor | None, loss_scale: Tensor | None
    ) -> None:
        """Changes the rows that were looked up; see `update`."""
        if len(pending) == 1 and pending[0].order is not None:
            self.apply_fused(pending[0], rate, found_inf, loss_scale)
        else:
            self.apply_plain(pending, rate, found_inf, loss_scale)

    def apply_plain(
        self, pending: Sequence["Pending"], rate: Tensor, found_inf: Tensor | None, loss_scale: Tensor | None
    ) -> None:
        per_table = zip(*(self.split(part.ids, len(part.gradient)) for part in pending), strict=True)
        for number, (weight, own) in enumerate(zip(self.weights, per_table, strict=True)):
            gradients = torch.cat([part.gradient[:, number] for part in pending])
            gradients = gradients.to(torch.promote_types(weight.dtype, torch.float32))
            rows, total = summed_by_id(torch.cat(own), gradients)
            if found_inf is not None:
                total = total.masked_fill(found_inf != 0, 0)  # an infinite one times a rate of 0 would be NaN
            step = rate * total
            if self.optimizer == "adagrad":
                squares = self.accumulators.get_buffer(str(number))
                true = total if loss_scale is None else total / loss_scale
                new = squares[rows] + true.square()
                squares[rows] = new.to(squares.dtype)
                step = step / (new.sqrt() + self.eps)
            weight[rows] = (weight[rows] - step).to(weight.dtype)  # a repeated row gets the same numbers again

    def apply_fused(self, part: "Pending", rate: Tensor, found_inf: Tensor | None, loss_scale: Tensor | None) -> None:
        fused = self.fused()
        assert fused is not None
        rule = fused.tables.Rule(
            rate=rate,
            skip=torch.zeros_like(rate) if found_inf is None else found_inf,
            scale=torch.ones_like(rate) if loss_scale is None else loss_scale,
            squares=list(self.accumulators.buffers()),
            eps=self.eps,
        )
        fused.tables.apply(list(self.weights), self.tables, part.order, part.gradient, rule)


class LookUp(torch.autograd.Function):
    """`PlainEmbeddings.look_up`, whose backward leaves ids and gradients with the embeddings."""

    @staticmethod
    def forward(
        ctx: Any, embeddings: PlainEmbeddings, ids: Tensor, batch: int, order: Any, dtype: torch.dtype, *weights: Tensor
    ) -> Tensor:
        ctx.embeddings, ctx.order = embeddings, order
        ctx.save_for_backward(ids)
        return embeddings.look_up(ids, batch, dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        (ids,), (gradient,) = ctx.saved_tensors, gradients
        ctx.embeddings.pending.append(Pending(ids, gradient, ctx.order))
        return (None,) * len(ctx.needs_input_grad)


def summed_by_id(
    ids: Int[Tensor, " ids"], gradients: Float[Tensor, "bags dim"]
) -> tuple[Int[Tensor, " ids"], Float[Tensor, "ids dim"]]:
    """All ids in ascending order, repeated ones too, and beside each the sum of that id's gradients.

    The ids of one bag, equally many in each, stand side by side and all get its gradient. Sums go in the order of the
    bags, whatever the device does first.
    """
    hotness = len(ids) // len(gradients)
    ids, order = ids.long().sort(stable=True)
    segment = first_of_each(ids).cumsum(0) - 1
    lengths = torch.zeros_like(ids).index_add_(0, segment, torch.ones_like(ids))
    # As many segments as ids, the last ones empty: the number of different ids would have to be read from the device.
    sums = torch.segment_reduce(gradients[order // hotness], "sum", lengths=lengths, unsafe=True)
    return ids, sums[segment]


def first_of_each(ordered: Int[Tensor, " ids"]) -> Bool[Tensor, " ids"]:
    """True where an id differs from the one before it."""
    return ordered.diff(prepend=ordered.new_full((1,), -1)) != 0


def whole(tables: Sequence[Tensor]) -> Float[Tensor, "rows dim"]:
    """All rows of tables that `PlainEmbeddings` has made one behind the other."""
    rows, dim = sum(len(table) for table in tables), tables[0].shape[1]
    return tables[0].detach().as_strided((rows, dim), (dim, 1))


def uniform_table(rows: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows dim"]:
    bound = 1 / sqrt(len(rows))
    return rows.uniform_(-bound, bound)
