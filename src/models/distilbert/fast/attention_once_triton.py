# type: ignore  (the type checker reads Triton as Python)
"""The backward pass of padded sentences' attention with each weight computed once.

A program handles one head of one sentence. The gradient of its queries is summed over tiles of keys in memory by its
own additions, one after another, so that equal inputs give equal bits.
"""

import triton
import triton.language as tl

from src.models.distilbert.fast.attention_triton import (
    _end_of_full,
    _keys_backward_tile,
    _numbers,
    _numbers_of,
    _rows,
    _store_rows,
)


@triton.jit
def _add_of_queries(sums, of_score, key, row, left, column, HEAD: tl.constexpr, STRIDE: tl.constexpr,
                    FULL: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """Adds a tile's part of the gradient of its queries to `sums`."""
    part = tl.dot(tl.trans(of_score.to(key.dtype)), key, input_precision=PRECISION)
    places = sums + (row[:, None] * STRIDE + column[None, :])
    if FULL and column.shape[0] == HEAD:
        tl.atomic_add(places, part, sem="relaxed")
    else:
        tl.atomic_add(places, part, mask=(row < left)[:, None] & (column < HEAD)[None, :], sem="relaxed")


@triton.jit
def attend_backward_once(
    q, k, v, grad, out, logs, along, sums, grad_q, grad_k, grad_v, partials, bounds, numbers, tokens,
    q_stride, k_stride, factor, scale,
    LONGEST: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr, THRESHOLD: tl.constexpr,
    SCALE: tl.constexpr, TILE: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Writes what `attend_backward` does, and to `along` what `products` does; a row of `partials` is a sentence's.

    `sums` [tokens, HEADS * HEAD] of float32 is memory for the sums of the queries' gradients.
    """
    s, head = tl.program_id(1), tl.program_id(0)
    begin, keys = s * LONGEST, tl.minimum(tl.load(bounds + s), LONGEST)
    column, row, other = tl.arange(0, WIDTH), tl.arange(0, TILE), tl.arange(0, KEYS)
    STRIDE: tl.constexpr = HEADS * HEAD
    q, k, v, grad, out = q + head * HEAD, k + head * HEAD, v + head * HEAD, grad + head * HEAD, out + head * HEAD
    grad_q, grad_k, grad_v = grad_q + head * HEAD, grad_k + head * HEAD, grad_v + head * HEAD
    sums += head * HEAD + begin.to(tl.int64) * STRIDE
    logs += head.to(tl.int64) * tokens + begin
    along += head.to(tl.int64) * tokens + begin
    partials += s.to(tl.int64) * (3 * STRIDE) + head * HEAD + column
    of_rows, of_columns = _numbers_of(numbers, None, s, head, begin, tokens, HEADS, THRESHOLD)
    for start in range(0, LONGEST, TILE):
        left = LONGEST - start
        above = _rows(grad, begin + start, STRIDE, row, left, column, HEAD, True)
        values = _rows(out, begin + start, STRIDE, row, left, column, HEAD, True)
        tl.store(along + start + row, tl.sum(above * values, 1) / SCALE, mask=row < left)
        _store_rows(sums, start, STRIDE, row, left, column, tl.zeros([TILE, WIDTH], tl.float32), HEAD)
    tl.debug_barrier()  # other threads of this program load and add
    sum_of_q, sum_of_k, sum_of_v = (
        tl.zeros([WIDTH], tl.float32), tl.zeros([WIDTH], tl.float32), tl.zeros([WIDTH], tl.float32),
    )  # fmt: skip
    # Kept weights are multiplied by SCALE. Here all other terms are divided by it, and the results multiplied.
    for start_key in range(0, LONGEST, KEYS):
        left = keys - start_key
        of_column = _numbers(of_columns, start_key, other, left) if THRESHOLD > 0 else other
        key = _rows(k, begin + start_key, k_stride, other, left, column, HEAD, UPCAST)
        value = _rows(v, begin + start_key, k_stride, other, left, column, HEAD, UPCAST)
        of_key, of_value = tl.zeros([KEYS, WIDTH], tl.float32), tl.zeros([KEYS, WIDTH], tl.float32)
        end = tl.where(left > 0, LONGEST, 0)
        full = tl.where(left >= KEYS, _end_of_full(end, TILE), 0)
        for start in range(0, full, TILE):
            of_key, of_value, of_score = _keys_backward_tile(
                key, value, of_column, of_key, of_value, q, grad, out, logs, along, of_rows, begin, q_stride, start,
                LONGEST, column, factor, True, HEADS, HEAD, THRESHOLD, SCALE, TILE, PRECISION, UPCAST,
            )  # fmt: skip
            of_start = sums + tl.cast(start, tl.int64) * STRIDE
            _add_of_queries(of_start, of_score, key, row, TILE, column, HEAD, STRIDE, True, PRECISION)
        for start in tl.range(full, end, TILE, num_stages=1):
            of_key, of_value, of_score = _keys_backward_tile(
                key, value, of_column, of_key, of_value, q, grad, out, logs, along, of_rows, begin, q_stride, start,
                LONGEST, column, factor, False, HEADS, HEAD, THRESHOLD, SCALE, TILE, PRECISION, UPCAST,
            )  # fmt: skip
            of_score = tl.where((other < left)[:, None], of_score, 0.0)
            of_start = sums + tl.cast(start, tl.int64) * STRIDE
            _add_of_queries(of_start, of_score, key, row, LONGEST - start, column, HEAD, STRIDE, False, PRECISION)
        of_key = tl.where((other < left)[:, None], of_key * (scale * SCALE), 0.0)
        of_value = tl.where((other < left)[:, None], of_value * SCALE, 0.0)
        _store_rows(grad_k, begin + start_key, k_stride, other, LONGEST - start_key, column, of_key, HEAD)
        _store_rows(grad_v, begin + start_key, k_stride, other, LONGEST - start_key, column, of_value, HEAD)
        sum_of_k += tl.sum(of_key, 0)
        sum_of_v += tl.sum(of_value, 0)
    tl.debug_barrier()
    for start in range(0, LONGEST, TILE):
        left = LONGEST - start
        mask = (row < left)[:, None] & (column < HEAD)[None, :]
        places = sums + tl.cast(start, tl.int64) * STRIDE + (row[:, None] * STRIDE + column[None, :])
        of_query = tl.load(places, mask=mask, other=0.0, cache_modifier=".cg") * (scale * SCALE)  # sums are in L2
        _store_rows(grad_q, begin + start, q_stride, row, left, column, of_query, HEAD)
        sum_of_q += tl.sum(of_query, 0)
    tl.store(partials, sum_of_q, mask=column < HEAD)
    tl.store(partials + STRIDE, sum_of_k, mask=column < HEAD)
    tl.store(partials + 2 * STRIDE, sum_of_v, mask=column < HEAD)
