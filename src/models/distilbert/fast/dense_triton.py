# type: ignore  (the type checker reads Triton as Python)
"""Softmax and dropout of attention scores in memory, [sentences * HEADS, LONGEST, LONGEST].

A program handles BLOCK queries of one head of one sentence s, whose first bounds[s] positions are keys.
"""

import triton
import triton.language as tl

from src.models.distilbert.fast.dropout_triton import keys_of, tile_is_kept


@triton.jit
def _offsets(bounds, HEADS: tl.constexpr, LONGEST: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Returns a program's rows, columns, offsets, the mask of valid scores, and the mask of keys."""
    row, column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    head = tl.program_id(2) * HEADS + tl.program_id(1)
    offset = (head.to(tl.int64) * LONGEST + row[:, None]) * LONGEST + column[None, :]
    mask = (row < LONGEST)[:, None] & (column < LONGEST)[None, :]
    return row, column, offset, mask, (column < tl.load(bounds + tl.program_id(2)))[None, :]


@triton.jit
def _dropout_mask(seed, row, column, HEADS: tl.constexpr, THRESHOLD: tl.constexpr):
    """Returns the dropout mask, as in `attention_triton`."""
    first, second = keys_of(seed, tl.program_id(2) * HEADS + tl.program_id(1))
    return tile_is_kept(first, second, row, column, THRESHOLD)


@triton.jit
def softmax(
    scores, dropped, bounds, seed, factor,
    HEADS: tl.constexpr, LONGEST: tl.constexpr, WIDTH: tl.constexpr, THRESHOLD: tl.constexpr, SCALE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Replaces scores by weights and writes them after dropout to `dropped`; `factor` as in `attention_triton`."""
    row, column, offset, mask, is_key = _offsets(bounds, HEADS, LONGEST, WIDTH, BLOCK)
    score = tl.load(scores + offset, mask=mask & is_key, other=-float("inf")) * factor
    largest = tl.max(score, 1)
    weight = tl.exp2(score - tl.where(largest > -float("inf"), largest, 0.0)[:, None])
    total = tl.sum(weight, 1)
    weight = weight / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(scores + offset, weight, mask=mask)
    if THRESHOLD > 0:
        weight = tl.where(_dropout_mask(seed, row, column, HEADS, THRESHOLD), weight * SCALE, 0.0)
        tl.store(dropped + offset, weight, mask=mask)


@triton.jit
def softmax_backward(
    weights, grads, dropped, bounds, seed, scale,
    HEADS: tl.constexpr, LONGEST: tl.constexpr, WIDTH: tl.constexpr, THRESHOLD: tl.constexpr, SCALE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Replaces gradients of `dropped` by those of the scores, times `scale`; recomputes `dropped`."""
    row, column, offset, mask, _ = _offsets(bounds, HEADS, LONGEST, WIDTH, BLOCK)
    weight = tl.load(weights + offset, mask=mask, other=0.0)
    grad = tl.load(grads + offset, mask=mask, other=0.0)
    if THRESHOLD > 0:
        kept = _dropout_mask(seed, row, column, HEADS, THRESHOLD)
        grad = tl.where(kept, grad * SCALE, 0.0)
        tl.store(dropped + offset, tl.where(kept, weight * SCALE, 0.0), mask=mask)
    along = tl.sum(grad * weight, 1)
    tl.store(grads + offset, weight * (grad - along[:, None]) * scale, mask=mask)
