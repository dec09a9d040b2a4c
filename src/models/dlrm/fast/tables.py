"""Lookup and update of embedding rows with the kernels of `tables_triton`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Int32
from torch import Tensor

from src.batches.clicks import EmbeddingTable
from src.gpu import weight_copies
from src.gpu.side_stream import SideStream, side_stream
from src.gpu.triton_helpers import launch, power_of_2
from src.models.dlrm.fast import tables_triton as kernels

MAX_DIM = 512
LOOK_UP = {"BLOCK": 16, "num_warps": 4}
CHUNK, LATER_CHUNK = 48, 16  # ids of a warp in the first round, and in the later ones, where there are few
AHEAD = 1024  # numbers of gradients that a warp loads at once; for 8 ids at most
NUMBERING = 1024
MOST_COPIES = 1 / 8  # of a GPU's memory, for copies of the tables in half precision; 0: none


@dataclass(frozen=True)
class TableSizes:
    """The tables' sizes on the device, for the kernels."""

    slots: Tensor  # of each table, int32: a sample's ids of the tables before it
    hotness: Tensor  # of each table, int32
    offsets: Tensor  # of each table, int64: rows of the tables before it
    table_of: Tensor  # of each slot, int32
    one_hot: bool
    key_dtype: torch.dtype


class RowOrder(NamedTuple):
    """The ids' rows, numbered through all tables, in ascending order, and where each one's gradient is."""

    keys: Int[Tensor, " ids"]
    gradients: Int[Tensor, " ids"]  # the number of a bag's gradient among [tables, batch]
    side: SideStream | None = None  # that sorts, if any
    ids_read: torch.Event | None = None  # after it the ids may be overwritten


class Rule(NamedTuple):
    """Arguments of an update; see `Embeddings.update`. `squares` is empty for SGD."""

    rate: Tensor
    skip: Tensor
    scale: Tensor
    squares: Sequence[Tensor]
    eps: float


def supported(dim: int) -> bool:
    """Returns whether a program holds rows of this width."""
    return dim <= MAX_DIM


@cache
def table_sizes(tables: tuple[EmbeddingTable, ...], device: torch.device) -> TableSizes:
    """Returns the sizes, copied to the device once, before a graph is captured."""
    hotness = [table.hotness for table in tables]
    rows = [table.cardinality for table in tables]
    slots, offsets = ([0, *accumulate(sizes)] for sizes in (hotness, rows))
    table_of = [number for number, count in enumerate(hotness) for _ in range(count)]

    def here(numbers: list[int], dtype: torch.dtype) -> Tensor:
        return torch.tensor(numbers, dtype=dtype, device=device)

    return TableSizes(
        slots=here(slots[:-1], torch.int32),
        hotness=here(hotness, torch.int32),
        offsets=here(offsets[:-1], torch.int64),
        table_of=here(table_of, torch.int32),
        one_hot=max(hotness) == 1,
        key_dtype=torch.int32 if sum(rows) < 2**31 else torch.int64,
    )


@cache
def cached_tensor(numbers: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Int[Tensor, " numbers"]:
    """Returns a tensor of the numbers, copied to the device once, before a graph is captured."""
    return torch.tensor(numbers, dtype=dtype, device=device)


def addresses(tensors: Sequence[Tensor]) -> Int[Tensor, " tables"]:
    """Returns the addresses of contiguous tensors of one dtype, on their device."""
    assert all(tensor.dtype == tensors[0].dtype and tensor.is_contiguous() for tensor in tensors)
    return cached_tensor(tuple(tensor.data_ptr() for tensor in tensors), torch.int64, tensors[0].device)


def can_be_copied(weights: Sequence[Tensor], dtype: torch.dtype) -> bool:
    """Returns whether copies of float32 tables in half precision are kept while they train, and fit in memory."""
    if not weight_copies.are_kept() or dtype.itemsize != 2 or not are_adjacent(weights) or weights[0].shape[1] % 8:
        return False
    if any(weight.dtype != torch.float32 for weight in weights):
        return False
    device, needed = weights[0].device, sum(map(torch.numel, weights)) * dtype.itemsize
    memory = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else float("inf")
    return MOST_COPIES > 0 and needed <= MOST_COPIES * memory


def look_up(
    weights: Sequence[Tensor],
    tables: tuple[EmbeddingTable, ...],
    ids: Int32[Tensor, " ids"],
    batch: int,
    dtype: torch.dtype,
    room: int = 0,
) -> Float[Tensor, "{batch} tables dim"]:
    """See `PlainEmbeddings.look_up`; each sample's vectors have `room` others before them in memory, not written."""
    out = torch.empty(batch, room + len(tables), weights[0].shape[1], dtype=dtype, device=ids.device)
    look_up_into([out], range(room, out.shape[1]), weights, tables, ids)
    return out[:, room:] if room else out


def look_up_into(
    outs: Sequence[Float[Tensor, "batch vectors dim"]],
    columns: Sequence[int],
    weights: Sequence[Tensor],
    tables: tuple[EmbeddingTable, ...],
    ids: Int32[Tensor, " ids"],
) -> None:
    """Writes table t's vectors to `columns[t]` of `outs`, those of the first `batch` samples to `outs[0]`, and so on.

    `outs` have one shape and may lie on other GPUs. The ids are those of all samples, table-major.
    """
    batch, vectors, dim = outs[0].shape
    shape = table_sizes(tables, ids.device)
    # A single output has a new address in each step: a captured step must not copy it to the device.
    several = cached_tensor(tuple(out.data_ptr() for out in outs), torch.int64, ids.device) if len(outs) > 1 else None
    launch(
        kernels.look_up, (len(tables) * len(outs) * -(-batch // LOOK_UP["BLOCK"]),),
        addresses(weights), weights[0], shape.slots, shape.hotness,
        cached_tensor(tuple(columns), torch.int32, ids.device), ids, several, outs[0], batch, len(tables),
        PARTS=len(outs), TABLES=vectors, DIM=dim, WIDTH=power_of_2(dim), ONE_HOT=shape.one_hot, **LOOK_UP,
    )  # fmt: skip


def send_ids(ids: Int32[Tensor, " ids"], parts: Sequence[slice], targets: Sequence[Int32[Tensor, " _"]]) -> None:
    """Copies parts of the ids to `targets`, which may be on other GPUs."""
    lengths = [part.stop - part.start for part in parts]
    launch(
        kernels.send_ids, (len(parts), -(-max(lengths) // NUMBERING)), ids,
        cached_tensor(tuple(part.start for part in parts), torch.int64, ids.device),
        cached_tensor(tuple(lengths), torch.int64, ids.device),
        cached_tensor(tuple(target.data_ptr() for target in targets), torch.int64, ids.device),
        BLOCK=NUMBERING, num_warps=4,
    )  # fmt: skip


def row_order(tables: tuple[EmbeddingTable, ...], ids: Int32[Tensor, " ids"], batch: int) -> RowOrder:
    """Sorts the ids' rows for `apply`. It needs the ids only, so it can overlap with the forward pass."""
    return in_order(tables, row_numbers(tables, ids, batch), batch)


def in_order(tables: tuple[EmbeddingTable, ...], keys: Int[Tensor, " ids"], batch: int) -> RowOrder:
    """Returns the order of ids by their rows' numbers."""
    keys, positions = keys.sort(stable=True)
    shape = table_sizes(tables, keys.device)
    if shape.one_hot:
        return RowOrder(keys, positions)
    gradients = torch.empty(len(keys), dtype=torch.int32, device=keys.device)
    launch(
        kernels.number_gradients, (-(-len(keys) // NUMBERING),), positions, gradients,
        shape.table_of, shape.slots, shape.hotness, len(keys), batch, BLOCK=NUMBERING, num_warps=4,
    )  # fmt: skip
    return RowOrder(keys, gradients)


def row_numbers(tables: tuple[EmbeddingTable, ...], ids: Int32[Tensor, " ids"], batch: int) -> Int[Tensor, " ids"]:
    """Returns the ids' rows, numbered through all tables."""
    shape = table_sizes(tables, ids.device)
    keys = torch.empty(len(ids), dtype=shape.key_dtype, device=ids.device)
    launch(
        kernels.number_rows, (-(-len(ids) // NUMBERING),), ids, shape.table_of, shape.offsets, keys, len(ids), batch,
        BLOCK=NUMBERING, num_warps=4,
    )  # fmt: skip
    return keys


def row_order_on_side_stream(tables: tuple[EmbeddingTable, ...], ids: Int32[Tensor, " ids"], batch: int) -> RowOrder:
    """Does `row_order`, on a GPU on a side stream; `apply` waits for it."""
    if not ids.is_cuda:
        return row_order(tables, ids, batch)
    side = side_stream(ids.device)
    with side:
        keys = row_numbers(tables, ids, batch)
        read = torch.cuda.current_stream().record_event()
        return in_order(tables, keys, batch)._replace(side=side, ids_read=read)


def apply(
    weights: Sequence[Tensor],
    tables: tuple[EmbeddingTable, ...],
    order: RowOrder,
    gradient: Float[Tensor, "batch tables dim"],
    rule: Rule,
    copies: Float[Tensor, "rows dim"] | None = None,
) -> None:
    """Updates the rows of `order`, of float32 tables, by the sums of their gradients; and those of `copies`, if any."""
    shape, (batch, _, dim) = table_sizes(tables, gradient.device), gradient.shape
    if order.side is not None:
        order.side.join()
    values, squares, width = gradient.transpose(0, 1).contiguous(), rule.squares or weights, power_of_2(dim)
    ahead = min(max(1, AHEAD // width), 8)
    chunk = CHUNK
    while True:
        total = len(order.keys)
        chunks = -(-total // chunk)
        left = RowOrder(order.keys.new_empty(2 * chunks), order.gradients.new_empty(2 * chunks))
        left_values = values.new_empty(2 * chunks, dim, dtype=torch.float32)
        launch(
            kernels.apply_runs, (chunks,), *order[:2], values, *left[:2], left_values,
            addresses(weights), addresses(squares), weights[0], squares[0], copies,
            shape.offsets, rule.rate, rule.skip, rule.scale, total, batch, rule.eps,
            FIRST=values.dim() == 3, ADAGRAD=bool(rule.squares), FLAT=are_adjacent(weights) and are_adjacent(squares),
            DIM=dim, WIDTH=width, CHUNK=chunk, AHEAD=ahead, num_warps=1,
        )  # fmt: skip
        if chunks == 1:
            return
        order, values, chunk = left, left_values, LATER_CHUNK


def are_adjacent(tensors: Sequence[Tensor]) -> bool:
    """Returns whether each tensor begins in memory where the one before it ends."""
    ends = (tensor.data_ptr() + tensor.numel() * tensor.itemsize for tensor in tensors)
    return all(end == after.data_ptr() for end, after in zip(ends, tensors[1:], strict=False))
