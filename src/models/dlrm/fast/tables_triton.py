# type: ignore  (the type checker reads Triton as Python)
"""Rows of embedding tables: lookup with sum, and update by the sums of their gradients.

An update processes the sorted ids in chunks, one per warp, which goes through them one after the other: it adds
gradients until a run of equal ids ends, and applies their sum. A run that crosses a chunk's border leaves partial sums,
at most two per chunk. The next round processes these in the same way. So a row that half of all samples use costs no
more than others, and the order of all sums is fixed.
"""

import triton
import triton.language as tl


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
def number_gradients(positions, gradients, table_of, slots, hotness, total, batch, BLOCK: tl.constexpr):
    """Writes `gradients`: the number, among [tables, batch], of the one of the id at each of `positions`."""
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    position = tl.load(positions + offset, mask=offset < total, other=0).to(tl.int32)  # `total` has 32 bits
    table = tl.load(table_of + position // batch)
    sample = (position - tl.load(slots + table) * batch) // tl.load(hotness + table)
    tl.store(gradients + offset, table * batch + sample, mask=offset < total)


@triton.jit
def _row(pointers, table, key, offsets, base, FLAT: tl.constexpr, DIM: tl.constexpr):
    """Returns a pointer to the key's row; adjacent tables (FLAT) need no array of addresses."""
    if FLAT:
        return base + key.to(tl.int64) * DIM
    begin = tl.multiple_of(tl.load(pointers + table).to(tl.pointer_type(tl.float32)), 16)
    return begin + (key.to(tl.int64) - tl.load(offsets + table)) * DIM


@triton.jit
def apply_runs(
    keys, gradients, values, next_keys, next_gradients, next_values,
    pointers, squares, weight_base, square_base, copies, offsets, rate, skip, scale, total, batch, eps,
    FIRST: tl.constexpr, ADAGRAD: tl.constexpr, FLAT: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
    CHUNK: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Does one round. `values` are the gradients [tables, batch, DIM] in the FIRST one, later the partial sums.

    `gradients` are the numbers of the ids' gradients, which give the tables too. A key of -1 is no row. `copies` are
    all tables, one after the other, in another dtype. The values of AHEAD ids are loaded at once.
    """
    column = tl.arange(0, WIDTH)
    is_column = column < DIM
    begin, left = tl.program_id(0) * CHUNK, tl.program_id(0) * 2
    end = tl.minimum(begin + CHUNK, total)
    key, gradient = tl.load(keys + begin), tl.load(gradients + begin)
    # Only the chunk's first run can have begun before, and only its last one can go on.
    is_head = key == tl.load(keys + begin - 1, mask=begin > 0, other=-3)
    last = tl.load(keys + end - 1)
    goes_on = last == tl.load(keys + end, mask=end < total, other=-3)
    tl.store(next_keys + left, tl.where(is_head, key, -1))
    tl.store(next_keys + left + 1, tl.where(goes_on, last, -1))
    tl.store(next_gradients + left, gradient)
    tl.store(next_gradients + left + 1, tl.load(gradients + end - 1))
    factor, inverse, is_alive = tl.load(rate), 1 / tl.load(scale), tl.load(skip) == 0

    sums = tl.zeros([WIDTH], tl.float32)
    for start in range(0, CHUNK, AHEAD):
        following, numbers, loaded, this = (), (gradient,), (), key
        for k in tl.static_range(AHEAD):
            after = begin + start + k + 1
            following += (tl.load(keys + after, mask=after < total, other=-3),)
            numbers += (tl.load(gradients + after, mask=after < end, other=0),)
        for k in tl.static_range(AHEAD):
            entry = begin + start + k
            offset = (numbers[k] if FIRST else entry).to(tl.int64) * DIM + column
            mask = is_column & (entry < end) & (this >= 0)
            loaded += (tl.load(values + offset, mask=mask, other=0.0, eviction_policy="evict_last"),)
            this = following[k]
        for k in tl.static_range(AHEAD):
            entry = begin + start + k
            sums += loaded[k].to(tl.float32)
            is_tail = following[k] == key
            if (entry < end) & ((entry + 1 == end) | (following[k] != key)):
                if is_head | is_tail:
                    target = next_values + left.to(tl.int64) * DIM + column
                    tl.store(target, sums, mask=is_column & is_head)
                    rest = tl.where(is_head, 0.0, sums)  # of a run that fills the chunk
                    tl.store(target + DIM, rest, mask=is_column & is_tail)
                elif (key >= 0) & is_alive:
                    table = numbers[k] // batch
                    weight = _row(pointers, table, key, offsets, weight_base, FLAT, DIM) + column
                    new, step = tl.load(weight, mask=is_column, other=0.0), factor * sums
                    if ADAGRAD:
                        square = _row(squares, table, key, offsets, square_base, FLAT, DIM) + column
                        true = sums * inverse
                        new_square = tl.load(square, mask=is_column, other=1.0) + true * true
                        tl.store(square, new_square, mask=is_column)
                        step = step / (tl.sqrt(new_square) + eps)
                    new -= step
                    tl.store(weight, new, mask=is_column)
                    if copies is not None:
                        copy = copies + key.to(tl.int64) * DIM + column
                        tl.store(copy, new.to(copies.dtype.element_ty), mask=is_column)
                sums, is_head = tl.zeros([WIDTH], tl.float32), False
            key = following[k]
        gradient = numbers[AHEAD]
