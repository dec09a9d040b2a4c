"""DLRM's embedding tables: the interface, and its implementation in plain torch."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Int32
from torch import Tensor, nn
from torch.nn import functional as F

from src.batches.clicks import EmbeddingTable
from src.config.ranges import Positive
from src.errors import UserError
from src.gpu.triton_helpers import working_dtype
from src.models.dlrm.pieces import Piece, Start, initialise

Rule = Literal["sgd", "adagrad"]


class Embeddings(nn.Module, ABC):
    """The interface of DLRM's embedding tables, which keep and apply their sparse gradients themselves.

    The tables' parameters never get a `.grad`. The backward pass stores the vectors' gradient in the module, and
    `update` applies it to the rows that were looked up.

    kernel_sets_overflow: whether the interaction's backward kernel checks all gradients of vectors until `update`.
    overflow: that kernel sets it to 1 where a gradient is infinite or NaN.
    room: vectors before those of each sample, which a fast look-up leaves in memory for the interaction to write.
    """

    optimizer: Rule
    overflow: Tensor  # float32

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("overflow", torch.zeros(()), persistent=False)
        self.kernel_sets_overflow = False
        self.room = 0

    @abstractmethod
    def forward(self, ids: Int32[Tensor, " ids"], batch: int) -> Float[Tensor, "{batch} tables dim"]:
        """Returns each sample's vector of each table, in autocast's dtype or the tables'; rows of one bag are summed.

        Args:
            ids: table-major, each table's [batch, hotness] flattened; at least 0 and below the table's cardinality.
            batch: number of samples.
        """

    def start_lookup(self, ids: Int32[Tensor, " ids"], batch: int) -> Callable[[], Float[Tensor, "{batch} tables dim"]]:
        """Starts `forward` and returns a function that waits for its result, so that other work can overlap with it."""
        return Lookup(self, ids, batch)

    def can_be_captured(self) -> bool:
        """Returns whether a CUDA graph can hold it: the host reads nothing from the device."""
        return True

    def gradient_slots(self) -> "GradientSlots | None":
        """Returns slots that the interaction writes the latest vectors' gradient to; None: it returns the gradient."""
        return None

    @abstractmethod
    def overflowed(self) -> Float[Tensor, ""]:
        """Returns 1 if a pending gradient is infinite or NaN, otherwise 0, for the loss scaler."""

    @abstractmethod
    def update(
        self,
        rate: Float[Tensor, ""],
        found_inf: Float[Tensor, ""] | None = None,
        loss_scale: Float[Tensor, ""] | None = None,
    ) -> None:
        """Applies the pending gradients, deterministically, and clears them.

        Args:
            rate: learning rate / loss scale.
            found_inf: not 0 if a gradient of the network overflowed: then nothing changes.
            loss_scale: factor in the gradients; Adagrad divides by it before it accumulates squares. None for 1.
        """


@dataclass(frozen=True, eq=False)  # torch.compile of torch 2.11 hashes one without attributes
class Lookup:
    """A lookup that has not begun; a call does it. Some interactions read the rows themselves instead."""

    embeddings: Embeddings
    ids: Tensor
    batch: int

    def __call__(self) -> Float[Tensor, "{self.batch} tables dim"]:
        return self.embeddings(self.ids, self.batch)


class GradientSlots(NamedTuple):
    """Slots for the vectors' gradients: table t's [batch, dim] begins `offsets[t]` elements after `origin`'s first."""

    origin: Tensor
    offsets: Int[Tensor, " tables"]  # divisible by 16


class Pending(NamedTuple):
    """The gradient of one lookup, to be applied by `update`."""

    ids: Tensor
    gradient: Tensor  # [batch, tables, dim]
    order: Any  # of the ids, what `row_order` returns


class PlainEmbeddings(Embeddings):
    """The tables in plain torch, initialised from U(-1/sqrt(rows), 1/sqrt(rows)) as `start` says.

    Nothing here synchronises with the device or has a shape that depends on the ids.

    Args:
        optimizer: `sgd`, or `adagrad` with one accumulated square per weight (buffers `accumulators.<table>`).
        eps: of Adagrad.

    pending: gradients of each backward pass since the last update.

    Raises UserError for an unknown optimizer.
    """

    def __init__(
        self, tables: Sequence[EmbeddingTable], dim: int, optimizer: Rule = "sgd", eps: Positive = 1e-8
    ) -> None:
        super().__init__()
        if optimizer not in ("sgd", "adagrad"):
            raise UserError(f"the embeddings' optimizer={optimizer} is unknown; give sgd or adagrad")
        self.tables, self.dim, self.eps = tuple(tables), dim, eps
        self.optimizer: Rule = optimizer
        # Adjacent in memory, so that the kernels need no array of addresses.
        all_rows = torch.empty(sum(table.cardinality for table in tables), dim)
        begins = [0, *accumulate(table.cardinality for table in tables)]
        spans = [slice(*span) for span in pairwise(begins)]
        self.weights = nn.ParameterList(nn.Parameter(all_rows[span]) for span in spans)
        self.start = Start.drawn(all_rows.device.type)
        self.initialise()
        self.accumulators = nn.Module()
        if optimizer == "adagrad":
            squares = torch.zeros_like(all_rows)
            for number, span in enumerate(spans):
                self.accumulators.register_buffer(str(number), squares[span])
        self.pending: list[Pending] = []

    def initialise(self) -> None:
        """Sets the tables' first values."""
        for number, weight in enumerate(self.weights):
            rows, columns = weight.shape
            initialise(Piece(slice(0, rows), slice(0, columns), weight.detach()), (rows, columns), self.start, number)

    def forward(self, ids: Int32[Tensor, " ids"], batch: int) -> Float[Tensor, "{batch} tables {self.dim}"]:
        order = self.row_order(ids, batch)
        weights = self.weights.parameters()  # torch.compile of torch 2.11 cannot unpack the ParameterList itself
        return LookUp.apply(self, ids, batch, order, working_dtype(self.weights[0]), *weights)  # type: ignore[return-value]

    def row_order(self, ids: Int32[Tensor, " ids"], batch: int) -> Any:
        """Returns what a fast class sorts the ids into for its update, while the forward pass runs; here nothing."""
        return None

    def look_up(
        self, ids: Int32[Tensor, " ids"], batch: int, dtype: torch.dtype
    ) -> Float[Tensor, "{batch} tables {self.dim}"]:
        """Returns the vectors of `forward`, without autograd."""
        vectors = torch.empty(batch, len(self.tables), self.dim, dtype=dtype, device=ids.device)
        for number, (weight, table_ids) in enumerate(zip(self.weights, self.split(ids, batch), strict=True)):
            vectors[:, number] = F.embedding_bag(table_ids.view(batch, -1), weight, mode="sum")
        return vectors

    def split(self, ids: Int32[Tensor, " ids"], batch: int) -> Sequence[Int32[Tensor, " _"]]:
        """Splits table-major ids by table."""
        return ids.split([batch * table.hotness for table in self.tables])

    def overflowed(self) -> Float[Tensor, ""]:
        if self.kernel_sets_overflow or not self.pending:
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
        self.kernel_sets_overflow = False

    def apply(
        self, pending: Sequence["Pending"], rate: Tensor, found_inf: Tensor | None, loss_scale: Tensor | None
    ) -> None:
        """Updates the rows that were looked up; see `update`."""
        per_table = zip(*(self.split(part.ids, len(part.gradient)) for part in pending), strict=True)
        for number, (weight, table_ids) in enumerate(zip(self.weights, per_table, strict=True)):
            gradients = torch.cat([part.gradient[:, number] for part in pending])
            gradients = gradients.to(torch.promote_types(weight.dtype, torch.float32))
            rows, total = summed_by_id(torch.cat(table_ids), gradients)
            if found_inf is not None:
                total = total.masked_fill(found_inf != 0, 0)  # inf times a rate of 0 would be NaN
            step = rate * total
            if self.optimizer == "adagrad":
                squares = self.accumulators.get_buffer(str(number))
                true = total if loss_scale is None else total / loss_scale
                new = squares[rows] + true.square()
                squares[rows] = new.to(squares.dtype)
                step = step / (new.sqrt() + self.eps)
            weight[rows] = (weight[rows] - step).to(weight.dtype)  # a repeated row is written with the same values


class LookUp(torch.autograd.Function):
    """`PlainEmbeddings.look_up`; the backward pass appends ids and gradient to `pending`."""

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
    """Returns all ids sorted, duplicates included, and for each the sum of that id's gradients.

    Every bag has equally many ids, adjacent in `ids`, and each gets the bag's gradient. Sums go in the order of the
    bags, so they are deterministic.
    """
    hotness = len(ids) // len(gradients)
    ids, order = ids.long().sort(stable=True)
    segment = first_of_each(ids).cumsum(0) - 1
    lengths = torch.zeros_like(ids).index_add_(0, segment, torch.ones_like(ids))
    # As many segments as ids, the last ones empty: the number of distinct ids is known to the device only.
    sums = torch.segment_reduce(gradients[order // hotness], "sum", lengths=lengths, unsafe=True)
    return ids, sums[segment]


def first_of_each(ordered: Int[Tensor, " ids"]) -> Bool[Tensor, " ids"]:
    """Returns True where an id differs from the one before it."""
    return ordered.diff(prepend=ordered.new_full((1,), -1)) != 0


def whole(tables: Sequence[Tensor]) -> Float[Tensor, "rows dim"]:
    """Returns all rows of adjacent tables of `PlainEmbeddings` as one view."""
    rows, dim = sum(len(table) for table in tables), tables[0].shape[1]
    return tables[0].detach().as_strided((rows, dim), (dim, 1))
