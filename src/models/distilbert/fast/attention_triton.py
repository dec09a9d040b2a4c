# type: ignore  (the type checker reads Triton as Python)
"""Attention within sentences of any length, in tiles of rows, forward and backward.

`bounds` locates the sentences. If PADDED, sentence s is the LONGEST rows from s * LONGEST on, and the first bounds[s]
are keys. Otherwise it is the rows from bounds[s] to bounds[s + 1]. Each row of a sentence is a query; with FIRST only
its first row is, and query s is that of sentence s. Tiles without keys are skipped.

A program handles one head and one tile of one sentence. Packed sentences have as many programs as they have tiles: see
`place_of`. Rows after the last packed sentence (padding) get zeros.
Logarithms and exponents are of base 2.
"""

import triton
import triton.language as tl

from src.models.distilbert.fast.dropout_triton import column_numbers, is_kept, keys_of, row_numbers
from src.models.distilbert.fast.sentences_triton import place_of, sentence_of


@triton.jit
def _rows(
    pointer, first, stride, row, count, column, HEAD: tl.constexpr, UPCAST: tl.constexpr, FULL: tl.constexpr = False,
):  # fmt: skip
    """Returns a head's [rows, columns] from row `first` on; 0 from row `count` on, unless FULL says there are none.

    A loop changes `first` alone, so that it computes one address, from which the others differ by constants.
    """
    places = pointer + tl.cast(first, tl.int64) * stride + (row[:, None] * stride + column[None, :])
    if not FULL:
        values = tl.load(places, mask=(row < count)[:, None] & (column < HEAD)[None, :], other=0.0)
    elif column.shape[0] > HEAD:
        values = tl.load(places, mask=(column < HEAD)[None, :], other=0.0)
    else:
        values = tl.load(places)
    return values.to(tl.float32) if UPCAST else values


@triton.jit
def _of_rows(pointer, first, row, count, other, FULL: tl.constexpr = False):
    """Returns a number of each row from row `first` on; `other` from row `count` on, unless FULL."""
    return tl.load(pointer + first + row) if FULL else tl.load(pointer + first + row, mask=row < count, other=other)


@triton.jit
def _store_rows(pointer, first, stride, row, count, column, values, HEAD: tl.constexpr):
    places = pointer + tl.cast(first, tl.int64) * stride + (row[:, None] * stride + column[None, :])
    mask = (row < count)[:, None] & (column < HEAD)[None, :]
    tl.store(places, values.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def _store_zeros(pointers, column, HEAD: tl.constexpr):
    tl.store(pointers, tl.zeros([column.shape[0]], tl.float32), mask=column < HEAD)


@triton.jit
def number(
    numbers, bounds, seed, sentences, tokens,
    PADDED: tl.constexpr, LONGEST: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes `numbers` [2, HEADS, tokens]: what dropout masks hash of rows, and of columns, of the sentences.

    Tiles load them: all programs of a head and a sentence would compute the same ones again.
    """
    s, head = tl.program_id(2), tl.program_id(1)
    begin, rows, _, _, _ = sentence_of(bounds, s, sentences, tokens, PADDED, False, LONGEST)
    first, second = keys_of(seed, s * HEADS + head)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    of_rows = numbers + head.to(tl.int64) * tokens + begin
    of_columns = numbers + (HEADS + head).to(tl.int64) * tokens + begin
    tl.store(of_rows + row, row_numbers(row, first, second).to(tl.int32), mask=row < rows)
    tl.store(of_columns + row, column_numbers(row, first, second).to(tl.int32), mask=row < rows)


@triton.jit
def _numbers_of(numbers, seed, s, head, begin, tokens, HEADS: tl.constexpr, THRESHOLD: tl.constexpr):
    """Returns where `numbers` has those of a sentence's rows and of its columns; 0 without dropout.

    Without `numbers` it returns what `_numbers` computes them from: both keys in 64 bits, the first one hashed lowest.
    """
    of_rows, of_columns = 0, 0
    if THRESHOLD > 0:
        if numbers is None:
            first, second = keys_of(seed, s * HEADS + head)
            of_rows = (second.to(tl.uint64) << 32) | first.to(tl.uint64)
            of_columns = (first.to(tl.uint64) << 32) | second.to(tl.uint64)
        else:
            of_rows = numbers + head.to(tl.int64) * tokens + begin
            of_columns = numbers + (HEADS + head).to(tl.int64) * tokens + begin
    return of_rows, of_columns


@triton.jit
def _numbers(source, first, row, count, FULL: tl.constexpr = False):
    if source.dtype.is_ptr():
        return _of_rows(source, first, row, count, 0, FULL).to(tl.uint32)
    else:
        return row_numbers(first + row, source.to(tl.uint32), (source >> 32).to(tl.uint32))


@triton.jit
def _end_of_full(count, SIZE: tl.constexpr):
    """Returns how many rows are in tiles without masks. Short sentences' small tiles all have masks."""
    return count // SIZE * SIZE if SIZE >= 32 else 0


@triton.jit
def _attend_tile(
    query, of_row, largest, total, context, k, v, of_columns, begin, k_stride, start_key, keys, column, factor,
    FULL: tl.constexpr, HEAD: tl.constexpr, THRESHOLD: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    """Returns largest score, sum of weights and weighted sum of values with a tile of keys, all keys if FULL."""
    other, left = tl.arange(0, KEYS), keys - start_key
    key = _rows(k, begin + start_key, k_stride, other, left, column, HEAD, UPCAST, FULL)
    value = _rows(v, begin + start_key, k_stride, other, left, column, HEAD, UPCAST, FULL)
    score = tl.dot(query, tl.trans(key), input_precision=PRECISION)
    if not FULL:
        score = tl.where((other < left)[None, :], score, -float("inf"))
    new = tl.maximum(largest, tl.max(score, 1) * factor)
    weight = tl.exp2(score * factor - new[:, None])
    shrink = tl.exp2(largest - new)
    total = total * shrink + tl.sum(weight, 1)
    if THRESHOLD > 0:
        of_column = _numbers(of_columns, start_key, other, left, FULL)
        weight *= tl.where(is_kept(of_row[:, None], of_column[None, :], THRESHOLD), 1.0, 0.0)
    context = tl.dot(weight.to(value.dtype), value, context * shrink[:, None], input_precision=PRECISION)
    return new, total, context


@triton.jit
def attend(
    q, k, v, out, logs, bounds, numbers, seed, sentences, tokens, num_queries, q_stride, k_stride, factor,
    PADDED: tl.constexpr, FIRST: tl.constexpr, LONGEST: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr,
    WIDTH: tl.constexpr, THRESHOLD: tl.constexpr, SCALE: tl.constexpr, TILE: tl.constexpr, KEYS: tl.constexpr,
    PRECISION: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Writes `out` [queries, HEADS * HEAD] and `logs` [HEADS, queries], the log2-sum-exp2 of each query's scores.

    `factor` is the scale of the scores times log2(e). `numbers` are those of `seed`, or None to compute them here.
    """
    s, head, tile = tl.program_id(2), tl.program_id(1), tl.program_id(0)
    if FIRST and not PADDED:
        s, tile = tile, 0
    elif not PADDED:
        s, tile = place_of(bounds, tile, sentences, TILE)
    begin, _, keys, first_query, queries = sentence_of(bounds, s, sentences, tokens, PADDED, FIRST, LONGEST)
    column = tl.arange(0, WIDTH)
    q, k, v, out = q + head * HEAD, k + head * HEAD, v + head * HEAD, out + head * HEAD
    of_rows, of_columns = _numbers_of(numbers, seed, s, head, begin, tokens, HEADS, THRESHOLD)
    full = _end_of_full(keys, KEYS)
    row = tl.arange(0, TILE)
    for start in range(tile * TILE, tl.minimum(queries, (tile + 1) * TILE), TILE):  # once or not at all
        left = queries - start
        query = _rows(q, first_query + start, q_stride, row, left, column, HEAD, UPCAST)
        of_row = _numbers(of_rows, start, row, left) if THRESHOLD > 0 else row
        largest = tl.full([TILE], -float("inf"), tl.float32)
        total = tl.zeros([TILE], tl.float32)
        context = tl.zeros([TILE, WIDTH], tl.float32)
        for start_key in range(0, full, KEYS):
            largest, total, context = _attend_tile(
                query, of_row, largest, total, context, k, v, of_columns, begin, k_stride, start_key, keys, column,
                factor, True, HEAD, THRESHOLD, KEYS, PRECISION, UPCAST,
            )  # fmt: skip
        for start_key in tl.range(full, keys, KEYS, num_stages=1 if KEYS >= 32 else None):
            largest, total, context = _attend_tile(
                query, of_row, largest, total, context, k, v, of_columns, begin, k_stride, start_key, keys, column,
                factor, False, HEAD, THRESHOLD, KEYS, PRECISION, UPCAST,
            )  # fmt: skip
        total = tl.where(keys > 0, total, 1.0)
        context = context * (SCALE / total)[:, None]
        _store_rows(out, first_query + start, HEADS * HEAD, row, left, column, context, HEAD)
        offset = head.to(tl.int64) * num_queries + first_query + start + row
        tl.store(logs + offset, largest + tl.log2(total), mask=row < left)


@triton.jit
def products(
    out, grad, along, num_queries,
    HEADS: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr, SCALE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes `along` [HEADS, queries], the dot product of each head's output and its gradient, divided by SCALE."""
    row, head, column = tl.arange(0, BLOCK), tl.program_id(1), tl.arange(0, WIDTH)
    first = tl.program_id(0) * BLOCK
    left = num_queries - first
    a = _rows(out + head * HEAD, first, HEADS * HEAD, row, left, column, HEAD, True)
    b = _rows(grad + head * HEAD, first, HEADS * HEAD, row, left, column, HEAD, True)
    tl.store(along + head.to(tl.int64) * num_queries + first + row, tl.sum(a * b, 1) / SCALE, mask=row < left)


@triton.jit
def _products(
    out, above, along, first_query, start, row, left, column,
    FULL: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr, SCALE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Returns what `products` writes of rows, whose gradient is `above`; programs of small tiles compute it."""
    if TILE < 32:
        values = _rows(out, first_query + start, HEADS * HEAD, row, left, column, HEAD, True, FULL)
        return tl.sum(values * above.to(tl.float32), 1) / SCALE
    else:
        return _of_rows(along, start, row, left, 0.0, FULL)


@triton.jit
def _keys_backward_tile(
    key, value, of_column, of_key, of_value, q, grad, out, logs, along, of_rows, first_query, q_stride, start, queries,
    column, factor,
    FULL: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr, THRESHOLD: tl.constexpr, SCALE: tl.constexpr,
    TILE: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Returns the gradients of keys and values with those from a tile of queries, and that of the tile's scores."""
    row, left = tl.arange(0, TILE), queries - start
    query = _rows(q, first_query + start, q_stride, row, left, column, HEAD, UPCAST, FULL)
    above = _rows(grad, first_query + start, HEADS * HEAD, row, left, column, HEAD, UPCAST, FULL)
    log = _of_rows(logs, start, row, left, float("inf"), FULL)
    product = _products(out, above, along, first_query, start, row, left, column, FULL, HEADS, HEAD, SCALE, TILE)
    score = tl.dot(key, tl.trans(query), input_precision=PRECISION)
    weight = tl.exp2(score * factor - log[None, :])
    of_weight = tl.dot(value, tl.trans(above), input_precision=PRECISION)
    dropped = weight
    if THRESHOLD > 0:
        of_row = _numbers(of_rows, start, row, left, FULL)
        dropped = weight * tl.where(is_kept(of_row[None, :], of_column[:, None], THRESHOLD), 1.0, 0.0)
    of_value = tl.dot(dropped.to(above.dtype), above, of_value, input_precision=PRECISION)
    of_score = dropped * of_weight - weight * product[None, :]
    of_key = tl.dot(of_score.to(query.dtype), query, of_key, input_precision=PRECISION)
    return of_key, of_value, of_score


@triton.jit
def _queries_backward_tile(
    query, above, of_row, log, product, of_query, k, v, of_columns, begin, k_stride, start_key, keys, column, factor,
    FULL: tl.constexpr, HEAD: tl.constexpr, THRESHOLD: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    """Returns the gradient of queries with that from a tile of keys."""
    other, left = tl.arange(0, KEYS), keys - start_key
    key = _rows(k, begin + start_key, k_stride, other, left, column, HEAD, UPCAST, FULL)
    value = _rows(v, begin + start_key, k_stride, other, left, column, HEAD, UPCAST, FULL)
    score = tl.dot(query, tl.trans(key), input_precision=PRECISION)
    exponent = score * factor - log[:, None]
    if not FULL:
        # At most 1 also of columns after the last key, where the score is 0: then finite times a key of 0 is 0.
        exponent = tl.minimum(exponent, 0.0)
    weight = tl.exp2(exponent)
    of_weight = tl.dot(above, tl.trans(value), input_precision=PRECISION)
    if THRESHOLD > 0:
        of_column = _numbers(of_columns, start_key, other, left, FULL)
        of_weight *= tl.where(is_kept(of_row[:, None], of_column[None, :], THRESHOLD), 1.0, 0.0)
    of_score = weight * (of_weight - product[:, None])
    return tl.dot(of_score.to(key.dtype), key, of_query, input_precision=PRECISION)


@triton.jit
def attend_backward(
    q, k, v, grad, out, logs, along, grad_q, grad_k, grad_v, partials, bounds, numbers, seed,
    sentences, tokens, num_queries, q_stride, k_stride, factor, scale,
    PADDED: tl.constexpr, FIRST: tl.constexpr, LONGEST: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr,
    WIDTH: tl.constexpr, THRESHOLD: tl.constexpr, SCALE: tl.constexpr, TILE: tl.constexpr, KEYS: tl.constexpr,
    KEY_TILES: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Writes the gradients; the first KEY_TILES programs of a head those of keys and values, the others of queries.

    Packed sentences have tokens // KEYS + sentences + 1 programs of keys, numbered by `place_of`, and not KEY_TILES.
    A sentence of one tile of less than 32 rows has all of its gradients from the first program.
    Gradients have the strides of q, k and v. `scale` is the scale of the scores. `partials` get each tile's sums over
    rows of the gradients of q, k and v, side by side, 0 for tiles without rows.
    """
    s, head, number = tl.program_id(2), tl.program_id(1), tl.program_id(0)
    key_tiles = KEY_TILES if PADDED else tokens // KEYS + sentences + 1
    query_tiles = tl.num_programs(0) - key_tiles
    is_of_keys = number < key_tiles
    number = tl.where(is_of_keys, number, number - key_tiles)
    tile, of_tile = number, number
    if PADDED:
        of_tile += s * tl.maximum(KEY_TILES, query_tiles)
    else:
        s, tile = place_of(bounds, number, sentences, tl.where(is_of_keys, KEYS, TILE))
        if FIRST:
            s, tile = tl.where(is_of_keys, s, number), tl.where(is_of_keys, tile, 0)
    begin, rows, keys, first_query, queries = sentence_of(bounds, s, sentences, tokens, PADDED, FIRST, LONGEST)
    column = tl.arange(0, WIDTH)
    q, k, v, grad, out = q + head * HEAD, k + head * HEAD, v + head * HEAD, grad + head * HEAD, out + head * HEAD
    grad_q, grad_k, grad_v = grad_q + head * HEAD, grad_k + head * HEAD, grad_v + head * HEAD
    logs += head.to(tl.int64) * num_queries + first_query
    if TILE >= 32:
        along += head.to(tl.int64) * num_queries + first_query
    partials += head * HEAD + column
    of_first = partials  # the first tile of queries
    if not PADDED:
        of_first += (s if FIRST else begin // TILE + s).to(tl.int64) * (3 * HEADS * HEAD)
    else:
        of_first += of_tile.to(tl.int64) * (3 * HEADS * HEAD)
    of_tile = partials + of_tile.to(tl.int64) * (3 * HEADS * HEAD)
    of_rows, of_columns = _numbers_of(numbers, seed, s, head, begin, tokens, HEADS, THRESHOLD)
    is_one = (TILE < 32) & (keys > 0) & (rows <= tl.minimum(KEYS, TILE))
    # Kept weights are multiplied by SCALE. Here all other terms are divided by it, and the results multiplied.
    if is_of_keys:
        other = tl.arange(0, KEYS)
        if tile * KEYS >= rows:
            _store_zeros(of_tile + HEADS * HEAD, column, HEAD)
            _store_zeros(of_tile + 2 * HEADS * HEAD, column, HEAD)
        if number >= query_tiles:
            _store_zeros(of_tile, column, HEAD)
        for start_key in range(tile * KEYS, tl.minimum(rows, (tile + 1) * KEYS), KEYS):  # once or not at all
            left = keys - start_key
            of_column = _numbers(of_columns, start_key, other, left) if THRESHOLD > 0 else other
            key = _rows(k, begin + start_key, k_stride, other, left, column, HEAD, UPCAST)
            value = _rows(v, begin + start_key, k_stride, other, left, column, HEAD, UPCAST)
            of_key, of_value = tl.zeros([KEYS, WIDTH], tl.float32), tl.zeros([KEYS, WIDTH], tl.float32)
            end = tl.where(start_key < keys, queries, 0)
            full = _end_of_full(end, TILE)
            for start in range(0, full, TILE):
                of_key, of_value, _ = _keys_backward_tile(
                    key, value, of_column, of_key, of_value, q, grad, out, logs, along, of_rows, first_query, q_stride,
                    start, queries, column, factor, True, HEADS, HEAD, THRESHOLD, SCALE, TILE, PRECISION, UPCAST,
                )  # fmt: skip
            for start in tl.range(full, end, TILE, num_stages=1 if TILE >= 32 else None):
                of_key, of_value, of_score = _keys_backward_tile(
                    key, value, of_column, of_key, of_value, q, grad, out, logs, along, of_rows, first_query, q_stride,
                    start, queries, column, factor, False, HEADS, HEAD, THRESHOLD, SCALE, TILE, PRECISION, UPCAST,
                )  # fmt: skip
                if TILE < 32:  # noqa: SIM102  (larger tiles do not compile it)
                    if is_one:
                        of_score = tl.where((other < left)[:, None], of_score, 0.0)
                        of_query = tl.dot(tl.trans(of_score.to(key.dtype)), key, input_precision=PRECISION)
                        of_query *= scale * SCALE
                        row = tl.arange(0, TILE)
                        _store_rows(grad_q, first_query, q_stride, row, queries, column, of_query, HEAD)
                        tl.store(of_first, tl.sum(of_query, 0), mask=column < HEAD)
            # A row depends on its own key alone, so only the results of rows without keys are masked.
            of_key = tl.where((other < left)[:, None], of_key * (scale * SCALE), 0.0)
            of_value = tl.where((other < left)[:, None], of_value * SCALE, 0.0)
            _store_rows(grad_k, begin + start_key, k_stride, other, rows - start_key, column, of_key, HEAD)
            _store_rows(grad_v, begin + start_key, k_stride, other, rows - start_key, column, of_value, HEAD)
            tl.store(of_tile + HEADS * HEAD, tl.sum(of_key, 0), mask=column < HEAD)
            tl.store(of_tile + 2 * HEADS * HEAD, tl.sum(of_value, 0), mask=column < HEAD)
    else:
        row = tl.arange(0, TILE)
        if tile * TILE >= queries:
            _store_zeros(of_tile, column, HEAD)
        if number >= key_tiles:
            _store_zeros(of_tile + HEADS * HEAD, column, HEAD)
            _store_zeros(of_tile + 2 * HEADS * HEAD, column, HEAD)
        full = _end_of_full(keys, KEYS)
        end = tl.minimum(tl.where(is_one, 0, queries), (tile + 1) * TILE)
        for start in range(tile * TILE, end, TILE):  # once or not at all
            left = queries - start
            of_row = _numbers(of_rows, start, row, left) if THRESHOLD > 0 else row
            query = _rows(q, first_query + start, q_stride, row, left, column, HEAD, UPCAST)
            above = _rows(grad, first_query + start, HEADS * HEAD, row, left, column, HEAD, UPCAST)
            log = _of_rows(logs, start, row, left, float("inf"))
            product = _products(
                out, above, along, first_query, start, row, left, column, False, HEADS, HEAD, SCALE, TILE
            )
            of_query = tl.zeros([TILE, WIDTH], tl.float32)
            for start_key in range(0, full, KEYS):
                of_query = _queries_backward_tile(
                    query, above, of_row, log, product, of_query, k, v, of_columns, begin, k_stride, start_key, keys,
                    column, factor, True, HEAD, THRESHOLD, KEYS, PRECISION, UPCAST,
                )  # fmt: skip
            for start_key in tl.range(full, keys, KEYS, num_stages=1 if KEYS >= 32 else None):
                of_query = _queries_backward_tile(
                    query, above, of_row, log, product, of_query, k, v, of_columns, begin, k_stride, start_key, keys,
                    column, factor, False, HEAD, THRESHOLD, KEYS, PRECISION, UPCAST,
                )  # fmt: skip
            of_query *= scale * SCALE
            _store_rows(grad_q, first_query + start, q_stride, row, left, column, of_query, HEAD)
            tl.store(of_tile, tl.sum(of_query, 0), mask=column < HEAD)
