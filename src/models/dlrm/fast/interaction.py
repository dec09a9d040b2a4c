"""The dot interaction as differentiable functions of the kernels in `interaction_triton`."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int32
from torch import Tensor

from src.gpu.triton_helpers import can_take, launch, power_of_2, precision, working_dtype
from src.models.dlrm.embeddings import Embeddings, GradientSlots, Lookup, Pending, whole
from src.models.dlrm.fast import interaction_triton as kernels
from src.models.dlrm.fast.embeddings import FastEmbeddings
from src.models.dlrm.fast.tables import addresses, cached_tensor
from src.models.dlrm.interaction import padded
from src.models.dlrm.network import Dense, Dot, Features, Sparse
from src.models.dlrm.table_wise import SentLookup

MAX_ELEMENTS = 64 * 256  # of a sample's vectors: as many as the registers of one program hold
WARPS = 1  # and one sample a program: on an H200 faster than 2 or 4 of either
# Registers of a thread at most, as measured on an H200: of both kernels where they read all rows in float32, for 12
# programs on a multiprocessor; of the backward kernel in half precision, for 13.
WIDE_REGISTERS, BACKWARD_REGISTERS = 168, 152
GATHERED = True  # whether the kernels read rows of the tables where they can, or vectors that a lookup wrote


def supported(num_tables: int, dim: int) -> bool:
    """Returns whether a sample's vectors fit into one program's registers."""
    rows, width = sizes(num_tables, dim)
    return rows * width <= MAX_ELEMENTS


def sizes(num_tables: int, dim: int) -> tuple[int, int]:
    """Returns the kernel's ROWS and WIDTH: vectors and their elements, rounded up to powers of two."""
    return max(16, power_of_2(num_tables + 1)), max(16, power_of_2(dim))


class Rows(NamedTuple):
    """Tables whose rows the kernels read."""

    rows: Tensor  # in the place of a lookup's vectors any of the tables, beside these the tables one after the other
    places: Tensor  # the tables' addresses; beside vectors their first rows, -1 for tables that have vectors
    ids: Tensor  # [tables, samples]


class Operands(NamedTuple):
    """The kernels' first arguments: the dense vectors, and the tables' vectors or rows, or some of both."""

    dense: Tensor
    sparse: Tensor | None
    rows: Rows | None
    tables: int

    def launch(self, kernel: Any, *arguments: Any, features: int, **more: Any) -> None:
        """Runs a kernel, one program for each sample."""
        samples, dim = self.dense.shape
        rows, width = sizes(self.tables, dim)
        dtype = self.dense.dtype
        registers = BACKWARD_REGISTERS if kernel is kernels.dot_backward and dtype.itemsize == 2 else None
        if self.sparse is None and self.rows is not None and self.rows.rows.dtype == torch.float32:
            registers = WIDE_REGISTERS
        launch(
            kernel, (samples,), self.dense, self.sparse, *(self.rows or (None,) * 3), *arguments, samples,
            TABLES=self.tables, DIM=dim, FEATURES=features, ROWS=rows, WIDTH=width,
            PRECISION=precision(dtype),
            # Triton's interpreter multiplies bfloat16 incorrectly.
            UPCAST=dtype == torch.bfloat16 and not self.dense.is_cuda,
            num_warps=WARPS, maxnreg=registers, **more,
        )  # fmt: skip

    def products(self) -> Tensor:
        """Returns the features."""
        samples, dim = self.dense.shape
        out = self.dense.new_empty(samples, padded(dim + self.tables * (self.tables + 1) // 2))
        self.launch(kernels.dot, out, features=out.shape[1])
        return out

    def gradients(self, grad: Tensor, overflow: Tensor, slots: GradientSlots | None) -> tuple[Tensor, Tensor]:
        """Returns the gradients of the dense vectors and of the tables' [samples, tables, dim]; zeros with `slots`."""
        (samples, dim), grad, grad_dense = self.dense.shape, grad.contiguous(), torch.empty_like(self.dense)
        if slots is None:
            # Table-major like the ids: the update kernel then finds a gradient without a division.
            origin, offsets = self.dense.new_empty(self.tables, samples, dim), None
            grad_sparse = origin.transpose(0, 1)
        else:
            origin, offsets = slots
            grad_sparse = self.dense.new_zeros(()).expand(samples, self.tables, dim)
        self.launch(
            kernels.dot_backward, grad, grad_dense, origin, offsets, overflow, features=grad.shape[1],
            SPREAD=offsets is not None, LARGEST=torch.finfo(grad.dtype).max,
        )  # fmt: skip
        return grad_dense, grad_sparse


class FastDot(Dot):
    """The products as one function, whose backward kernel looks for overflows and writes to the slots, if any.

    Where a sample has one id of each table, the kernels read the rows of tables that the rank holds whole themselves:
    no lookup writes these vectors, neither for the forward nor for the backward pass.
    """

    takes_lookup = True

    def forward(self, dense: Dense, sparse: Sparse | Callable[[], Sparse], embeddings: Embeddings) -> Features:
        embeddings.kernel_sets_overflow = True
        if GATHERED and isinstance(sparse, Lookup) and can_gather(dense, embeddings):
            return gathered_features(dense, embeddings, sparse.ids)  # type: ignore[arg-type]
        rows = None
        if GATHERED and isinstance(sparse, SentLookup) and can_read_replicated(dense, sparse):
            sparse, rows = sparse.without_replicated(), replicated_rows(sparse)
        sparse = sparse if isinstance(sparse, Tensor) else sparse()
        _, tables, dim = sparse.shape
        is_supported = dense.dtype == sparse.dtype and supported(tables, dim)
        if not can_take("interaction", sparse, is_supported, tables=tables, dim=dim, dense=dense.dtype):
            embeddings.kernel_sets_overflow = False
            return super().forward(dense, sparse, embeddings)
        return dot_features(dense, sparse, embeddings.overflow, embeddings.gradient_slots(), rows)


def can_gather(dense: Dense, embeddings: Embeddings) -> bool:
    """Returns whether the kernels can read the tables' rows in the place of vectors from a lookup."""
    return (
        isinstance(embeddings, FastEmbeddings)
        and embeddings.takes_tables()
        and all(table.hotness == 1 for table in embeddings.tables)
        and dense.dtype == working_dtype(embeddings.weights[0])
        and can_take("interaction", dense, supported(len(embeddings.tables), embeddings.dim))
    )


def can_read_replicated(dense: Dense, lookup: SentLookup) -> bool:
    """Returns whether the kernels can read the rows of replicated tables in the place of vectors from a lookup."""
    (_, tables, dim), replicas = lookup.vectors.shape, lookup.tables.replicas
    return (
        lookup.tables.exchange.leaves_replicated
        and isinstance(replicas, FastEmbeddings)
        and replicas.takes_tables()
        and all(placement.table.hotness == 1 for placement in lookup.tables.plan)
        and dense.dtype == lookup.vectors.dtype
        and can_take("interaction", dense, supported(tables, dim))
    )


def replicated_rows(lookup: SentLookup) -> Rows:
    """Returns the replicated tables in the dtype of the vectors: they are small, and are copied anew in each step."""
    tables, vectors = lookup.tables, lookup.vectors
    first, places = 0, [-1] * len(tables.plan)
    for number in tables.replicated:
        places[number], first = first, first + tables.plan[number].table.cardinality
    rows = whole(list(tables.replicas.weights)).detach().to(vectors.dtype)
    return Rows(rows, cached_tensor(tuple(places), torch.int64, vectors.device), lookup.ids)


class DotFeatures(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, dense: Tensor, sparse: Tensor, overflow: Tensor, slots: GradientSlots | None, rows: Rows | None
    ) -> Tensor:
        dense, sparse = dense.contiguous(), sparse.contiguous()
        ctx.save_for_backward(dense, sparse, *(rows or ()))
        ctx.overflow, ctx.slots = overflow, slots
        return Operands(dense, sparse, rows, sparse.shape[1]).products()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        dense, sparse, *rows = ctx.saved_tensors
        operands = Operands(dense, sparse, Rows(*rows) if rows else None, sparse.shape[1])
        return *operands.gradients(grads[0], ctx.overflow, ctx.slots), None, None, None


class GatheredFeatures(torch.autograd.Function):
    """Appends to the tables' pending gradients, as `LookUp` does. The rows must not change before the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, dense: Tensor, embeddings: FastEmbeddings, ids: Tensor, order: Any, *weights: Tensor
    ) -> Tensor:
        dense, read = dense.contiguous(), embeddings.tables_to_read(dense.dtype)
        ctx.save_for_backward(dense, ids)
        ctx.embeddings, ctx.order, ctx.read = embeddings, order, read
        return rows_of(dense, read, ids).products()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (dense, ids), embeddings = ctx.saved_tensors, ctx.embeddings
        grad_dense, grad_sparse = rows_of(dense, ctx.read, ids).gradients(grads[0], embeddings.overflow, None)
        if any(ctx.needs_input_grad[4:]):
            embeddings.pending.append(Pending(ids, grad_sparse, ctx.order))
        return grad_dense, *(None,) * (len(ctx.needs_input_grad) - 1)


def rows_of(dense: Tensor, weights: Sequence[Tensor], ids: Tensor) -> Operands:
    """Returns operands that are rows of the tables."""
    return Operands(dense, None, Rows(weights[0], addresses(weights), ids), len(weights))


def gathered_features(
    dense: Float[Tensor, "batch dim"], embeddings: FastEmbeddings, ids: Int32[Tensor, " ids"]
) -> Float[Tensor, "batch features"]:
    """Returns `dot_features` of the tables' rows, in the dtype of `dense`.

    Its backward pass leaves the rows' gradients in the tables' module, and sets `overflow` as `dot_features` does.
    """
    order = embeddings.row_order(ids, len(dense))
    return GatheredFeatures.apply(dense, embeddings, ids, order, *embeddings.weights)  # type: ignore[return-value]


def dot_features(
    dense: Float[Tensor, "batch dim"],
    sparse: Float[Tensor, "batch tables dim"],
    overflow: Float[Tensor, ""],
    slots: GradientSlots | None = None,
    rows: Rows | None = None,
) -> Float[Tensor, "batch features"]:
    """See `src.models.dlrm.interaction.dot_features`; both inputs have one dtype.

    The backward pass sets `overflow` to 1 if a gradient is infinite or NaN and never resets it. With `slots` it writes
    the gradient of `sparse` there and returns zeros. Vectors of the tables of `rows` are read there, in both passes.
    """
    return DotFeatures.apply(dense, sparse, overflow, slots, rows)  # type: ignore[return-value]
