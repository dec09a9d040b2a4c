# type: ignore  (the type checker reads Triton as Python)
"""Attention within sentences of any length, in tiles of rows, forward and backward.

`bounds` locates the sentences. If PADDED, sentence s is the LONGEST rows from s * LONGEST on, and the first bounds[s]
are keys. Otherwise it is the rows from bounds[s] to bounds[s + 1]. Each row of a sentence is a query; with FIRST only
its first row is, and query s is that of sentence s. Tiles without keys are skipped.

A program handles one head and one tile of one sentence. Rows after the last packed sentence (padding) get zeros.
Logarithms and exponents are of base 2.
"""

import triton
import triton.language as tl

from src.models.distilbert.fast.dropout_triton import column_numbers, is_kept, keys_of, row_numbers


@triton.jit
def _sentence(
    bounds, s, sentences, tokens, PADDED: tl.constexpr, FIRST: tl.constexpr, LONGEST: tl.constexpr,
):  # fmt: skip
    """Returns first row, number of rows and of keys of sentence s, and first row and number of its queries.

    The sentence after the last one is a packed batch's padding: it has rows and no keys.
    """
    if PADDED:
        begin, rows, keys = s * LONGEST, LONGEST, tl.load(bounds + s)
        keys = tl.minimum(keys, LONGEST)
    else:
        begin = tl.load(bounds + s)
        rows = tl.load(bounds + tl.minimum(s + 1, sentences), mask=s < sentences, other=tokens) - begin
        keys = tl.where(s < sentences, rows, 0)
    if FIRST:
        first_query, queries = s, tl.where(s < sentences, 1, 0)
    else:
        first_query, queries = begin, rows
    return begin, rows, keys, first_query, queries


@triton.jit
def _rows(
    pointer, first, stride, row, count, column, HEAD: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Returns a head's [rows, columns]; 0 after the last row."""
    offset = (first + row).to(tl.int64)[:, None] * stride + column[None, :]
    values = tl.load(pointer + offset, mask=(row < count)[:, None] & (column < HEAD)[None, :], other=0.0)
    return values.to(tl.float32) if UPCAST else values


@triton.jit
def _store_rows(pointer, first, stride, row, count, column, values, HEAD: tl.constexpr):
    offset = (first + row).to(tl.int64)[:, None] * stride + column[None, :]
    mask = (row < count)[:, None] & (column < HEAD)[None, :]
    tl.store(pointer + offset, values.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def number(
    numbers, bounds, seed, sentences, tokens,
    PADDED: tl.constexpr, LONGEST: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes `numbers` [2, HEADS, tokens]: what dropout masks hash of rows, and of columns, of the sentences.

    Tiles load them: all programs of a head and a sentence would compute the same ones again.
    """
    s, head = tl.program_id(2), tl.program_id(1)
    begin, rows, _, _, _ = _sentence(bounds, s, sentences, tokens, PADDED, False, LONGEST)
    first, second = keys_of(seed, s * HEADS + head)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    of_rows = numbers + head.to(tl.int64) * tokens + begin
    of_columns = numbers + (HEADS + head).to(tl.int64) * tokens + begin
    tl.store(of_rows + row, row_numbers(row, first, second).to(tl.int32), mask=row < rows)
    tl.store(of_columns + row, column_numbers(row, first, second).to(tl.int32), mask=row < rows)


@triton.jit
def _numbers(pointer, index, count):
    return tl.load(pointer + index, mask=index < count, other=0).to(tl.uint32)


@triton.jit
def attend(
    q, k, v, out, logs, bounds, numbers, sentences, tokens, num_queries, q_stride, k_stride, factor,
    PADDED: tl.constexpr, FIRST: tl.constexpr, LONGEST: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr,
    WIDTH: tl.constexpr, THRESHOLD: tl.constexpr, SCALE: tl.constexpr, TILE: tl.constexpr, KEYS: tl.constexpr,
    PRECISION: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Writes `out` [queries, HEADS * HEAD] and `logs` [HEADS, queries], the log2-sum-exp2 of each query's scores.

    `factor` is the scale of the scores times log2(e).
    """
    s, head, tile = tl.program_id(2), tl.program_id(1), tl.program_id(0)
    begin, _, keys, first_query, queries = _sentence(bounds, s, sentences, tokens, PADDED, FIRST, LONGEST)
    column = tl.arange(0, WIDTH)
    q, k, v, out = q + head * HEAD, k + head * HEAD, v + head * HEAD, out + head * HEAD
    if THRESHOLD > 0:
        of_rows = numbers + head.to(tl.int64) * tokens + begin
        of_columns = numbers + (HEADS + head).to(tl.int64) * tokens + begin
    # The padding may have more rows than the tiles cover.
    for start in range(tile * TILE, queries, tl.num_programs(0) * TILE):
        row = start + tl.arange(0, TILE)
        query = _rows(q, first_query, q_stride, row, queries, column, HEAD, UPCAST)
        of_row = _numbers(of_rows, row, queries) if THRESHOLD > 0 else row
        largest = tl.full([TILE], -float("inf"), tl.float32)
        total = tl.zeros([TILE], tl.float32)
        context = tl.zeros([TILE, WIDTH], tl.float32)
        for start_key in range(0, keys, KEYS):
            other = start_key + tl.arange(0, KEYS)
            key = _rows(k, begin, k_stride, other, keys, column, HEAD, UPCAST)
            value = _rows(v, begin, k_stride, other, keys, column, HEAD, UPCAST)
            score = tl.dot(query, tl.trans(key), input_precision=PRECISION)
            score = tl.where((other < keys)[None, :], score, -float("inf"))
            new = tl.maximum(largest, tl.max(score, 1) * factor)
            weight = tl.exp2(score * factor - new[:, None])
            shrink = tl.exp2(largest - new)
            total = total * shrink + tl.sum(weight, 1)
            if THRESHOLD > 0:
                of_column = _numbers(of_columns, other, keys)
                # LLVM would move a choice of weights behind their cast, where packed pairs must be taken apart for it.
                weight *= tl.where(is_kept(of_row[:, None], of_column[None, :], THRESHOLD), 1.0, 0.0)
            context = tl.dot(weight.to(value.dtype), value, context * shrink[:, None], input_precision=PRECISION)
            largest = new
        total = tl.where(keys > 0, total, 1.0)
        context = context * (SCALE / total)[:, None]
        _store_rows(out, first_query, HEADS * HEAD, row, queries, column, context, HEAD)
        offset = head.to(tl.int64) * num_queries + first_query + row
        tl.store(logs + offset, largest + tl.log2(total), mask=row < queries)


@triton.jit
def products(
    out, grad, along, num_queries,
    HEADS: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr, SCALE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes `along` [HEADS, queries], the dot product of each head's output and its gradient, divided by SCALE."""
    row, head, column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1), tl.arange(0, WIDTH)
    a = _rows(out + head * HEAD, 0, HEADS * HEAD, row, num_queries, column, HEAD, True)
    b = _rows(grad + head * HEAD, 0, HEADS * HEAD, row, num_queries, column, HEAD, True)
    tl.store(along + head.to(tl.int64) * num_queries + row, tl.sum(a * b, 1) / SCALE, mask=row < num_queries)


@triton.jit
def attend_backward(
    q, k, v, grad, logs, along, grad_q, grad_k, grad_v, partials, bounds, numbers,
    sentences, tokens, num_queries, q_stride, k_stride, factor, scale,
    PADDED: tl.constexpr, FIRST: tl.constexpr, LONGEST: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr,
    WIDTH: tl.constexpr, THRESHOLD: tl.constexpr, SCALE: tl.constexpr, TILE: tl.constexpr, KEYS: tl.constexpr,
    KEY_TILES: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Writes the gradients; the first KEY_TILES programs of a head those of keys and values, the others of queries.

    Gradients have the strides of q, k and v. `scale` is the scale of the scores. `partials` must be 0 and get each
    tile's sums over rows of the gradients of q, k and v, side by side.
    """
    s, head, tile = tl.program_id(2), tl.program_id(1), tl.program_id(0)
    begin, rows, keys, first_query, queries = _sentence(bounds, s, sentences, tokens, PADDED, FIRST, LONGEST)
    column = tl.arange(0, WIDTH)
    q, k, v, grad = q + head * HEAD, k + head * HEAD, v + head * HEAD, grad + head * HEAD
    grad_q, grad_k, grad_v = grad_q + head * HEAD, grad_k + head * HEAD, grad_v + head * HEAD
    logs += head.to(tl.int64) * num_queries + first_query
    along += head.to(tl.int64) * num_queries + first_query
    if THRESHOLD > 0:
        of_rows = numbers + head.to(tl.int64) * tokens + begin
        of_columns = numbers + (HEADS + head).to(tl.int64) * tokens + begin
    query_tiles = tl.num_programs(0) - KEY_TILES
    sums = s.to(tl.int64) * tl.maximum(KEY_TILES, query_tiles)  # this sentence's row of `partials`
    # Kept weights are multiplied by SCALE. Here all other terms are divided by it, and the results multiplied.
    if tile < KEY_TILES:
        for start_key in range(tile * KEYS, rows, KEY_TILES * KEYS):
            other = start_key + tl.arange(0, KEYS)
            of_column = _numbers(of_columns, other, keys) if THRESHOLD > 0 else other
            key = _rows(k, begin, k_stride, other, keys, column, HEAD, UPCAST)
            value = _rows(v, begin, k_stride, other, keys, column, HEAD, UPCAST)
            of_key, of_value = tl.zeros([KEYS, WIDTH], tl.float32), tl.zeros([KEYS, WIDTH], tl.float32)
            for start in range(0, tl.where(start_key < keys, queries, 0), TILE):
                row = start + tl.arange(0, TILE)
                query = _rows(q, first_query, q_stride, row, queries, column, HEAD, UPCAST)
                above = _rows(grad, first_query, HEADS * HEAD, row, queries, column, HEAD, UPCAST)
                log = tl.load(logs + row, mask=row < queries, other=float("inf"))
                product = tl.load(along + row, mask=row < queries, other=0.0)
                score = tl.dot(key, tl.trans(query), input_precision=PRECISION)
                weight = tl.exp2(score * factor - log[None, :])
                of_weight = tl.dot(value, tl.trans(above), input_precision=PRECISION)
                dropped = weight
                if THRESHOLD > 0:
                    of_row = _numbers(of_rows, row, queries)
                    kept = is_kept(of_row[None, :], of_column[:, None], THRESHOLD)
                    dropped = tl.where(kept, weight, 0.0)
                of_value = tl.dot(dropped.to(above.dtype), above, of_value, input_precision=PRECISION)
                of_score = dropped * of_weight - weight * product[None, :]
                of_key = tl.dot(of_score.to(query.dtype), query, of_key, input_precision=PRECISION)
            # A row depends on its own key alone, so only the results of rows without keys are masked.
            of_key = tl.where((other < keys)[:, None], of_key * (scale * SCALE), 0.0)
            of_value = tl.where((other < keys)[:, None], of_value * SCALE, 0.0)
            _store_rows(grad_k, begin, k_stride, other, rows, column, of_key, HEAD)
            _store_rows(grad_v, begin, k_stride, other, rows, column, of_value, HEAD)
            of_tile = partials + (sums + tile) * (3 * HEADS * HEAD) + head * HEAD + column
            tl.store(of_tile + HEADS * HEAD, tl.sum(of_key, 0), mask=column < HEAD)
            tl.store(of_tile + 2 * HEADS * HEAD, tl.sum(of_value, 0), mask=column < HEAD)
    else:
        for start in range((tile - KEY_TILES) * TILE, queries, query_tiles * TILE):
            row = start + tl.arange(0, TILE)
            of_row = _numbers(of_rows, row, queries) if THRESHOLD > 0 else row
            query = _rows(q, first_query, q_stride, row, queries, column, HEAD, UPCAST)
            above = _rows(grad, first_query, HEADS * HEAD, row, queries, column, HEAD, UPCAST)
            log = tl.load(logs + row, mask=row < queries, other=float("inf"))
            product = tl.load(along + row, mask=row < queries, other=0.0)
            of_query = tl.zeros([TILE, WIDTH], tl.float32)
            for start_key in range(0, keys, KEYS):
                other = start_key + tl.arange(0, KEYS)
                key = _rows(k, begin, k_stride, other, keys, column, HEAD, UPCAST)
                value = _rows(v, begin, k_stride, other, keys, column, HEAD, UPCAST)
                score = tl.dot(query, tl.trans(key), input_precision=PRECISION)
                # At most 1 also of columns after the last key, where the score is 0: then finite times a key of 0 is 0.
                weight = tl.exp2(tl.minimum(score * factor - log[:, None], 0.0))
                of_weight = tl.dot(above, tl.trans(value), input_precision=PRECISION)
                if THRESHOLD > 0:
                    of_column = _numbers(of_columns, other, keys)
                    of_weight = tl.where(is_kept(of_row[:, None], of_column[None, :], THRESHOLD), of_weight, 0.0)
                of_score = weight * (of_weight - product[:, None])
                of_query = tl.dot(of_score.to(key.dtype), key, of_query, input_precision=PRECISION)
            of_query *= scale * SCALE
            _store_rows(grad_q, first_query, q_stride, row, queries, column, of_query, HEAD)
            of_tile = partials + (sums + tile - KEY_TILES) * (3 * HEADS * HEAD) + head * HEAD + column
            tl.store(of_tile, tl.sum(of_query, 0), mask=column < HEAD)
