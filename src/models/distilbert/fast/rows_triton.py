# type: ignore  (the type checker reads Triton as Python)
"""Row-wise kernels of hidden states: dropout, residual and layer norm; embeddings; GELU. Each is one memory pass.

A program of a backward kernel takes every num_programs(0)-th block of rows. It writes its part of sums over rows
(gradients of norms and biases) to a row of `partials`. The sum of these rows is then deterministic. Stages of a loop
load the next block of rows while one is computed.
"""

import triton
import triton.language as tl

from src.gpu.deferred_rows_triton import id_at, place_and_strip, sum_of_id
from src.models.distilbert.fast.dropout_triton import keys_of, tile_is_kept


@triton.jit
def _statistics(x, is_column, eps, COLUMNS: tl.constexpr):
    """Returns each row's mean and 1 / deviation; x must be 0 outside of its columns."""
    mean = tl.sum(x, 1) / COLUMNS
    off = tl.where(is_column[None, :], x - mean[:, None], 0.0)
    return mean, 1.0 / tl.sqrt(tl.sum(off * off, 1) / COLUMNS + eps)


@triton.jit
def _norm_gradient(grad, unit, inverse, w, COLUMNS: tl.constexpr):
    """Returns the gradient of a layer norm's input; `unit` is that input normalised. Outside of its columns w is 0."""
    g = grad * w[None, :]
    shift, along = tl.sum(g, 1) * (inverse / COLUMNS), tl.sum(g * unit, 1) * (inverse / COLUMNS)
    return g * inverse[:, None] - (unit * along[:, None] + shift[:, None])


@triton.jit
def add_norm(
    x, residual, weight, bias, out, statistics, seed, rows, eps,
    THRESHOLD: tl.constexpr, SCALE: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes `out`, the layer norm of residual + dropout(x), and `statistics` [rows, 2], mean and 1 / deviation."""
    row, column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    is_column = column < COLUMNS
    mask = (row < rows)[:, None] & is_column[None, :]
    offset = row.to(tl.int64)[:, None] * COLUMNS + column[None, :]
    total = tl.load(x + offset, mask=mask, other=0.0).to(tl.float32)
    if THRESHOLD > 0:
        first, second = keys_of(seed, 0)
        total *= tl.where(tile_is_kept(first, second, row, column, THRESHOLD), SCALE, 0.0)
    total += tl.load(residual + offset, mask=mask, other=0.0).to(tl.float32)
    mean, inverse = _statistics(total, is_column, eps, COLUMNS)
    w = tl.load(weight + column, mask=is_column, other=0.0).to(tl.float32)
    b = tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)
    normed = (total - mean[:, None]) * inverse[:, None] * w[None, :] + b[None, :]
    tl.store(out + offset, normed.to(out.dtype.element_ty), mask=mask)
    tl.store(statistics + 2 * row, mean, mask=row < rows)
    tl.store(statistics + 2 * row + 1, inverse, mask=row < rows)


@triton.jit
def add_norm_backward(
    grad, x, residual, weight, statistics, grad_x, grad_residual, partials, seed, rows, partials_width,
    THRESHOLD: tl.constexpr, SCALE: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Writes `grad_x`, `grad_residual` and `partials`; without dropout `grad_residual` is the gradient of x as well.

    A row of `partials` is the gradient of the weight, that of the bias, and the sum of that of x (a bias in x has it).
    """
    column = tl.arange(0, WIDTH)
    is_column = column < COLUMNS
    w = tl.load(weight + column, mask=is_column, other=0.0).to(tl.float32)
    of_weight, of_bias, of_x = tl.zeros_like(w), tl.zeros_like(w), tl.zeros_like(w)
    if THRESHOLD > 0:
        first, second = keys_of(seed, 0)
    for start in tl.range(tl.program_id(0) * BLOCK, rows, tl.num_programs(0) * BLOCK, num_stages=STAGES):
        row = start + tl.arange(0, BLOCK)
        mask = (row < rows)[:, None] & is_column[None, :]
        offset = row.to(tl.int64)[:, None] * COLUMNS + column[None, :]
        total = tl.load(x + offset, mask=mask, other=0.0).to(tl.float32)
        if THRESHOLD > 0:
            kept = tile_is_kept(first, second, row, column, THRESHOLD)
            total *= tl.where(kept, SCALE, 0.0)
        total += tl.load(residual + offset, mask=mask, other=0.0).to(tl.float32)
        mean = tl.load(statistics + 2 * row, mask=row < rows, other=0.0)
        inverse = tl.load(statistics + 2 * row + 1, mask=row < rows, other=0.0)
        unit = total * inverse[:, None] - (mean * inverse)[:, None]
        g = tl.load(grad + offset, mask=mask, other=0.0).to(tl.float32)
        of_weight += tl.sum(g * unit, 0)
        of_bias += tl.sum(g, 0)
        gradient = _norm_gradient(g, unit, inverse, w, COLUMNS)
        tl.store(grad_residual + offset, gradient.to(grad_residual.dtype.element_ty), mask=mask)
        if THRESHOLD > 0:
            gradient = tl.where(kept, gradient * SCALE, 0.0)
            tl.store(grad_x + offset, gradient.to(grad_x.dtype.element_ty), mask=mask)
        of_x += tl.sum(gradient, 0)
    begin = partials + tl.program_id(0) * partials_width + column
    tl.store(begin, of_weight, mask=is_column)
    tl.store(begin + COLUMNS, of_bias, mask=is_column)
    tl.store(begin + 2 * COLUMNS, of_x, mask=is_column)


@triton.jit
def sum_partials(
    first, second, out, first_rows, second_rows,
    FIRST: tl.constexpr, SECOND: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes `out`, the sums over rows of `first` [first_rows, FIRST] and those of `second` [second_rows, SECOND]."""
    column = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    partials, rows, columns = first, first_rows, FIRST
    if tl.program_id(0) * WIDTH >= FIRST:
        column -= tl.cdiv(FIRST, WIDTH) * WIDTH
        partials, rows, columns, out = second, second_rows, SECOND, out + FIRST
    total = tl.zeros([BLOCK, WIDTH], tl.float32)
    for start in range(0, rows, BLOCK):
        row = start + tl.arange(0, BLOCK)
        mask = (row < rows)[:, None] & (column < columns)[None, :]
        total += tl.load(partials + row.to(tl.int64)[:, None] * columns + column[None, :], mask=mask, other=0.0)
    tl.store(out + column, tl.sum(total, 0), mask=column < columns)


@triton.jit
def _vectors(
    ids, positions, words, position_vectors, row, column, mask, rows,
    LENGTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Returns each token's word vector plus position vector; with a LENGTH all sentences have that many tokens."""
    word = tl.load(ids + row, mask=row < rows, other=0).to(tl.int64)
    position = row % LENGTH if LENGTH > 0 else tl.load(positions + row, mask=row < rows, other=0)
    total = tl.load(words + word[:, None] * COLUMNS + column[None, :], mask=mask, other=0.0).to(tl.float32)
    offset = position.to(tl.int64)[:, None] * COLUMNS + column[None, :]
    return total + tl.load(position_vectors + offset, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def embed(
    ids, positions, words, position_vectors, weight, bias, out, statistics, seed, rows, eps,
    LENGTH: tl.constexpr, THRESHOLD: tl.constexpr, SCALE: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes `out`, dropout of the layer norm of each token's vector, and `statistics` as in add_norm."""
    row, column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    is_column = column < COLUMNS
    mask = (row < rows)[:, None] & is_column[None, :]
    total = _vectors(ids, positions, words, position_vectors, row, column, mask, rows, LENGTH, COLUMNS)
    mean, inverse = _statistics(total, is_column, eps, COLUMNS)
    w = tl.load(weight + column, mask=is_column, other=0.0).to(tl.float32)
    b = tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)
    normed = (total - mean[:, None]) * inverse[:, None] * w[None, :] + b[None, :]
    if THRESHOLD > 0:
        first, second = keys_of(seed, 0)
        normed *= tl.where(tile_is_kept(first, second, row, column, THRESHOLD), SCALE, 0.0)
    offset = row.to(tl.int64)[:, None] * COLUMNS + column[None, :]
    tl.store(out + offset, normed.to(out.dtype.element_ty), mask=mask)
    tl.store(statistics + 2 * row, mean, mask=row < rows)
    tl.store(statistics + 2 * row + 1, inverse, mask=row < rows)


@triton.jit
def embed_backward(
    grad, ids, positions, words, position_vectors, weight, statistics, out, partials, seed, rows, partials_width,
    LENGTH: tl.constexpr, THRESHOLD: tl.constexpr, SCALE: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes `out`, the gradient of each token's vector, and `partials`, those of weight and bias."""
    column = tl.arange(0, WIDTH)
    is_column = column < COLUMNS
    w = tl.load(weight + column, mask=is_column, other=0.0).to(tl.float32)
    of_weight, of_bias = tl.zeros_like(w), tl.zeros_like(w)
    if THRESHOLD > 0:
        first, second = keys_of(seed, 0)
    for start in range(tl.program_id(0) * BLOCK, rows, tl.num_programs(0) * BLOCK):
        row = start + tl.arange(0, BLOCK)
        mask = (row < rows)[:, None] & is_column[None, :]
        total = _vectors(ids, positions, words, position_vectors, row, column, mask, rows, LENGTH, COLUMNS)
        mean = tl.load(statistics + 2 * row, mask=row < rows, other=0.0)
        inverse = tl.load(statistics + 2 * row + 1, mask=row < rows, other=0.0)
        unit = total * inverse[:, None] - (mean * inverse)[:, None]
        offset = row.to(tl.int64)[:, None] * COLUMNS + column[None, :]
        g = tl.load(grad + offset, mask=mask, other=0.0).to(tl.float32)
        if THRESHOLD > 0:
            g *= tl.where(tile_is_kept(first, second, row, column, THRESHOLD), SCALE, 0.0)
        of_weight += tl.sum(g * unit, 0)
        of_bias += tl.sum(g, 0)
        gradient = _norm_gradient(g, unit, inverse, w, COLUMNS)
        tl.store(out + offset, gradient.to(out.dtype.element_ty), mask=mask)
    begin = partials + tl.program_id(0) * partials_width + column
    tl.store(begin, of_weight, mask=is_column)
    tl.store(begin + COLUMNS, of_bias, mask=is_column)


@triton.jit
def sort_ids(ids, in_order, order, count, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """Writes `order`, the stable order of `count` ids, and the ids in it: each id's place is how many come before."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(ids + index, mask=index < count, other=0)
    place = tl.zeros([BLOCK], tl.int32)
    for start in range(0, count, WIDTH):
        other = start + tl.arange(0, WIDTH)
        of_other = tl.load(ids + other, mask=other < count, other=2147483647)
        is_before = (of_other[None, :] == value[:, None]) & (other[None, :] < index[:, None])
        place += tl.sum(((of_other[None, :] < value[:, None]) | is_before).to(tl.int32), 1)
    tl.store(order + place, index.to(tl.int64), mask=index < count)
    tl.store(in_order + place, value, mask=index < count)


@triton.jit
def sum_by_id(
    grad, in_order, order, out, count, padding,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Writes each id's sum of rows to its row of `out` [ids, COLUMNS], except that of `padding`.

    Rows are order[...]; `in_order` are their `count` ids. The program of an id's first row adds them all.
    """
    first, strip = place_and_strip(COLUMNS, WIDTH)
    column = strip * WIDTH + tl.arange(0, WIDTH)
    number, is_first = id_at(in_order, first)
    is_wanted = is_first & (number != padding)
    total = sum_of_id(grad, in_order, order, number, first, column, count, is_wanted, COLUMNS, WIDTH, BLOCK, WINDOW)
    pointers = out + number.to(tl.int64) * COLUMNS + column
    tl.store(pointers, total.to(out.dtype.element_ty), mask=(column < COLUMNS) & is_wanted)


@triton.jit
def _normal(x):
    """Returns the normal distribution function and density, by formula 26.2.17 of Abramowitz and Stegun (1964).

    The function's error is below 7.5e-8, about the rounding of float32. Both share one exponential. 1 / y is computed
    as the root of 1 / y^2, one instruction of a GPU, where a division of floats of any size takes nine.
    """
    density = 0.3989422804014327 * tl.exp2(-0.7213475204444817 * x * x)
    y = 1.0 + 0.2316419 * tl.abs(x)
    t = tl.rsqrt(y * y)
    tail = 1.781477937 + t * (-1.821255978 + t * 1.330274429)
    tail = density * t * (0.319381530 + t * (-0.356563782 + t * tail))
    return tl.where(x < 0, tail, 1.0 - tail), density


@triton.jit
def gelu(x, out, total, BLOCK: tl.constexpr):
    """Writes `out`, x times the normal distribution function of x."""
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    h = tl.load(x + offset, mask=offset < total, other=0.0).to(tl.float32)
    below, _ = _normal(h)
    tl.store(out + offset, (h * below).to(out.dtype.element_ty), mask=offset < total)


@triton.jit
def gelu_backward(
    grad, x, out, partials, rows, partials_width,
    COLUMNS: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Writes `out`, the gradient of x, and `partials`, that of a bias in x.

    Programs that run side by side have columns of the same rows, which are adjacent in memory.
    """
    column = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    is_column = column < COLUMNS
    of_bias = tl.zeros([BLOCK, WIDTH], tl.float32)
    for start in tl.range(tl.program_id(1) * BLOCK, rows, tl.num_programs(1) * BLOCK, num_stages=STAGES):
        row = start + tl.arange(0, BLOCK)
        mask = (row < rows)[:, None] & is_column[None, :]
        offset = row.to(tl.int64)[:, None] * COLUMNS + column[None, :]
        h = tl.load(x + offset, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(grad + offset, mask=mask, other=0.0).to(tl.float32)
        below, density = _normal(h)
        gradient = g * (below + h * density)
        tl.store(out + offset, gradient.to(out.dtype.element_ty), mask=mask)
        of_bias += gradient
    tl.store(partials + tl.program_id(1) * partials_width + column, tl.sum(of_bias, 0), mask=is_column)
