# type: ignore  (the type checker reads Triton as Python)
"""Rows of embedding tables: lookup with sum, and update by the sums of their gradients.

An update processes the sorted ids in chunks, one per program. A run of equal ids within one chunk is summed by a matrix
product with a 0/1 matrix and applied. A run that crosses a chunk's border leaves partial sums, at most two per chunk.
The next round processes these in the same way. So a row that half of all samples use costs no more than others, and
the order of all sums is fixed.
"""

import triton
import triton.language as tl

RUNS = tl.constexpr(16)  # summed at a time: the fewest rows of a product on tensor cores


@triton.jit
def look_up(
    pointers, typed, slots, hotness, columns, ids, outs, out, batch, tables,
    PARTS: tl.constexpr, TABLES: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    ONE_HOT: tl.constexpr,
):  # fmt: skip
    """Writes each sample's sum of a table's rows as vector `columns[table]` of `out` [batch, TABLES, DIM].

    `pointers` are the tables' addresses; `typed` is any of them, for their dtype. Sums are in float32.
    The samples come in PARTS of `batch`. If there are several, part p goes to the tensor at address `outs[p]`.
    Neighbouring programs write different parts, so that the writes to other GPUs are spread evenly. Unless all tables
    are ONE_HOT, the programs of a table follow each other, so that its frequent rows stay in the caches.
    """
    # One axis for all: the second axis of a grid ends at 65,535.
    part, rest = tl.program_id(0) % PARTS, tl.program_id(0) // PARTS
    if ONE_HOT:
        table, block = rest % tables, rest // tables
    else:
        blocks = tl.cdiv(batch, BLOCK)
        table, block = rest // blocks, rest % blocks
    weight = tl.multiple_of(tl.load(pointers + table).to(tl.pointer_type(typed.dtype.element_ty)), 16)
    if PARTS > 1:
        out = tl.multiple_of(tl.load(outs + part).to(tl.pointer_type(out.dtype.element_ty)), 16)
    sample, column = block * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    is_sample = sample < batch
    mask = is_sample[:, None] & (column < DIM)[None, :]
    first = ids + tl.load(slots + table).to(tl.int64) * (batch * PARTS)
    if ONE_HOT:
        row = tl.load(first + part * batch + sample, mask=is_sample, other=0).to(tl.int64)
        vectors = tl.load(weight + row[:, None] * DIM + column[None, :], mask=mask, other=0.0)
    else:
        count = tl.load(hotness + table)
        vectors = tl.zeros([BLOCK, WIDTH], tl.float32)
        for k in range(count):
            offset = (part * batch + sample).to(tl.int64) * count + k
            row = tl.load(first + offset, mask=is_sample, other=0).to(tl.int64)
            vectors += tl.load(weight + row[:, None] * DIM + column[None, :], mask=mask, other=0.0)
    offset = (sample.to(tl.int64)[:, None] * TABLES + tl.load(columns + table)) * DIM + column[None, :]
    tl.store(out + offset, vectors.to(out.dtype.element_ty), mask=mask)


@triton.jit
def send_ids(ids, begins, lengths, targets, BLOCK: tl.constexpr):
    """Copies slices of `ids` to the addresses in `targets`, which may be on other GPUs."""
    part = tl.program_id(0)
    offset = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_id = offset < tl.load(lengths + part)
    target = tl.load(targets + part).to(tl.pointer_type(tl.int32))
    tl.store(target + offset, tl.load(ids + tl.load(begins + part) + offset, mask=is_id, other=0), mask=is_id)


@triton.jit
def number_rows(ids, table_of, offsets, keys, total, batch, BLOCK: tl.constexpr):
    """Writes `keys`: the ids' rows, numbered through all tables."""
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    table = tl.load(table_of + offset // batch, mask=offset < total, other=0)
    key = tl.load(ids + offset, mask=offset < total, other=0) + tl.load(offsets + table, mask=offset < total, other=0)
    tl.store(keys + offset, key.to(keys.dtype.element_ty), mask=offset < total)


@triton.jit
def _rows(pointers, table, key, offsets, base, FLAT: tl.constexpr, DIM: tl.constexpr):
    """Returns pointers to the keys' rows; adjacent tables (FLAT) need no array of addresses."""
    if FLAT:
        return base + key.to(tl.int64) * DIM
    begin = tl.multiple_of(tl.load(pointers + table).to(tl.pointer_type(tl.float32)), 16)
    return begin + (key.to(tl.int64) - tl.load(offsets + table)) * DIM


@triton.jit
def _prefetch(pointers, mask):
    """Begins to load the lines at `pointers`, where `mask` is true, into the L2 cache, which takes no registers."""
    tl.inline_asm_elementwise(
        "{ .reg .pred wanted; setp.ne.s32 wanted, $2, 0; @wanted prefetch.global.L2 [$1]; mov.b32 $0, 0; }",
        "=r,l,r", [pointers, mask.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def apply_runs(
    keys, positions, values, next_keys, next_positions, next_values,
    pointers, squares, weight_base, square_base, copies, offsets, slots, hotness, table_of, rate, skip, scale,
    total, batch, eps,
    FIRST: tl.constexpr, LAST: tl.constexpr, ADAGRAD: tl.constexpr, ONE_HOT: tl.constexpr, FLAT: tl.constexpr,
    DIM: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, LINES: tl.constexpr,
    PRECISION: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Does one round. `values` are the gradients [tables, batch, DIM] in the FIRST one, later the partial sums.

    `positions` are the ids' positions among all ids, which give table and sample. A key of -1 is no row. A program
    sums the runs of its chunk RUNS at a time, so that it holds registers for rows that it updates, not for each id.
    `copies` are all tables, one after the other, in another dtype.
    LINES of 128 bytes of each of its rows go to the L2 cache while the gradients are loaded; not in the interpreter.
    """
    column = tl.arange(0, WIDTH)
    is_column = (column < DIM)[None, :]
    begin = tl.program_id(0) * CHUNK
    entry = begin + tl.arange(0, CHUNK)
    is_entry = entry < total
    key = tl.load(keys + entry, mask=is_entry, other=-2)
    previous = tl.load(keys + entry - 1, mask=is_entry & (entry > begin), other=-2)
    position = tl.load(positions + entry, mask=is_entry, other=0).to(tl.int32)  # `total` has 32 bits
    table = entry * 0
    if not FLAT or not ONE_HOT:
        table = tl.load(table_of + position // batch)
    if LINES:
        line = tl.arange(0, LINES)[None, :] * 32
        is_line = (is_entry & (key >= 0) & (key != previous))[:, None] & (line < DIM)
        _prefetch(_rows(pointers, table, key, offsets, weight_base, FLAT, DIM)[:, None] + line, is_line)
        if ADAGRAD:
            _prefetch(_rows(squares, table, key, offsets, square_base, FLAT, DIM)[:, None] + line, is_line)
    if not FIRST:
        source, is_value = entry.to(tl.int64), is_entry & (key >= 0)
    elif ONE_HOT:
        source, is_value = position.to(tl.int64), is_entry
    else:
        sample = (position - tl.load(slots + table) * batch) // tl.load(hotness + table)
        source, is_value = table.to(tl.int64) * batch + sample, is_entry
    value = tl.load(values + source[:, None] * DIM + column[None, :], mask=is_value[:, None] & is_column, other=0.0)
    if UPCAST:
        value = value.to(tl.float32)

    before = tl.load(keys + begin - 1, mask=begin > 0, other=-3)
    after = tl.load(keys + begin + CHUNK, mask=begin + CHUNK < total, other=-3)
    left = tl.program_id(0) * 2
    if not LAST:
        end = tl.minimum(begin + CHUNK, total) - 1
        first, last = tl.load(keys + begin), tl.load(keys + end)
        tl.store(next_keys + left, tl.where(first == before, first, -1))
        tl.store(next_keys + left + 1, tl.where(last == after, last, -1))
        tl.store(next_positions + left, tl.load(positions + begin))
        tl.store(next_positions + left + 1, tl.load(positions + end))

    is_alive, factor = tl.load(skip + tl.arange(0, RUNS) * 0) == 0, tl.load(rate)
    # The runs of this chunk are numbered. What is past the end belongs to the last one, with gradients of 0.
    run = tl.cumsum((key != previous).to(tl.int32), 0) - 1
    for number in range(0, tl.max(run, 0) + 1, RUNS):
        same = (number + tl.arange(0, RUNS))[:, None] == run[None, :]
        row = tl.max(tl.where(same, key[None, :], -2), 1)
        row_table = tl.max(tl.where(same, table[None, :], 0), 1)
        # Only the chunk's first run can have begun before, and only its last one can go on.
        is_head, is_tail = (row >= 0) & (row == before), (row >= 0) & (row == after)
        is_whole = (row >= 0) & (row != before) & (row != after) & is_alive
        mask = is_whole[:, None] & is_column
        weight = _rows(pointers, row_table, row, offsets, weight_base, FLAT, DIM)[:, None] + column[None, :]
        old = tl.load(weight, mask=mask, other=0.0)
        if ADAGRAD:
            square = _rows(squares, row_table, row, offsets, square_base, FLAT, DIM)[:, None] + column[None, :]
            old_square = tl.load(square, mask=mask, other=1.0)
        sums = tl.dot(same.to(value.dtype), value, input_precision=PRECISION)
        step = factor * sums
        if ADAGRAD:
            true = sums / tl.load(scale)
            new = old_square + true * true
            tl.store(square, new, mask=mask)
            step = step / (tl.sqrt(new) + eps)
        new_weight = old - step
        tl.store(weight, new_weight, mask=mask)
        if copies is not None:
            copy = copies + row.to(tl.int64)[:, None] * DIM + column[None, :]
            tl.store(copy, new_weight.to(copies.dtype.element_ty), mask=mask)
        if not LAST:
            target = next_values + left.to(tl.int64) * DIM + column[None, :] + tl.zeros([RUNS, 1], tl.int32)
            tl.store(target, sums, mask=is_head[:, None] & is_column)
            rest = tl.where(is_head[:, None], 0.0, sums)  # of a run that fills the chunk
            tl.store(target + DIM, rest, mask=is_tail[:, None] & is_column)
