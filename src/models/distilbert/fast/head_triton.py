# type: ignore  (the type checker reads Triton as Python)
"""The head's kernels besides the large products: ReLU and dropout, and the layer to a few logits."""

import triton
import triton.language as tl

from src.models.distilbert.fast.dropout_triton import keys_of, tile_is_kept


@triton.jit
def _factor(seed, row, column, THRESHOLD: tl.constexpr, SCALE: tl.constexpr):
    """Returns the factors of dropout, [rows, columns]."""
    first, second = keys_of(seed, 0)
    return tl.where(tile_is_kept(first, second, row, column, THRESHOLD), SCALE, 0.0)


@triton.jit
def logits(
    x, weight, bias, out, seed, rows,
    THRESHOLD: tl.constexpr, SCALE: tl.constexpr, LABELS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes `out` [rows, LABELS], the last layer of dropout(x)."""
    row, column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    is_row, is_column = row < rows, column < COLUMNS
    offset = row.to(tl.int64)[:, None] * COLUMNS + column[None, :]
    h = tl.load(x + offset, mask=is_row[:, None] & is_column[None, :], other=0.0).to(tl.float32)
    if THRESHOLD > 0:
        h *= _factor(seed, row, column, THRESHOLD, SCALE)
    for label in tl.static_range(LABELS):
        w = tl.load(weight + label * COLUMNS + column, mask=is_column, other=0.0).to(tl.float32)
        logit = tl.sum(h * w[None, :], 1) + tl.load(bias + label).to(tl.float32)
        tl.store(out + row * LABELS + label, logit, mask=is_row)


@triton.jit
def logits_backward(
    x, weight, grad, out, partials, seed, rows,
    THRESHOLD: tl.constexpr, SCALE: tl.constexpr, LABELS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes the gradients of the last layer and of the ReLU whose output is `x`.

    `out` [rows, COLUMNS]: the gradient before that ReLU. `partials` [row programs, (LABELS + 1) * COLUMNS + LABELS]: a
    program's part of the gradients of the last weight [LABELS, COLUMNS], of the bias before the ReLU, of the last bias.
    """
    row, column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    is_row, is_column = row < rows, column < COLUMNS
    mask = is_row[:, None] & is_column[None, :]
    offset = row.to(tl.int64)[:, None] * COLUMNS + column[None, :]
    h = tl.load(x + offset, mask=mask, other=0.0).to(tl.float32)
    factor = tl.where(h > 0, 1.0, 0.0)
    if THRESHOLD > 0:
        factor *= _factor(seed, row, column, THRESHOLD, SCALE)
    dropped, gradient = h * factor, tl.zeros([BLOCK, WIDTH], tl.float32)
    begin = partials + tl.program_id(0) * ((LABELS + 1) * COLUMNS + LABELS)
    for label in tl.static_range(LABELS):
        g = tl.load(grad + row * LABELS + label, mask=is_row, other=0.0)
        w = tl.load(weight + label * COLUMNS + column, mask=is_column, other=0.0).to(tl.float32)
        gradient += g[:, None] * w[None, :]
        tl.store(begin + label * COLUMNS + column, tl.sum(g[:, None] * dropped, 0), mask=is_column)
        tl.store(begin + (LABELS + 1) * COLUMNS + label, tl.sum(g, 0), mask=tl.program_id(1) == 0)
    gradient = (gradient * factor).to(out.dtype.element_ty)
    tl.store(out + offset, gradient, mask=mask)
    tl.store(begin + LABELS * COLUMNS + column, tl.sum(gradient.to(tl.float32), 0), mask=is_column)
