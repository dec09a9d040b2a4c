# type: ignore  (the type checker reads Triton as Python)
"""1 x 1 convolutions as matrix products; BatchNorm and ReLU, or the gradient of z, are computed as factors are loaded.

Rows are pixels of all images. INPUTS and OUTPUTS are channels; `weight` [OUTPUTS, INPUTS] has the products' dtype.
UPCAST is for Triton's interpreter, which multiplies bfloat16 incorrectly.
"""

import triton
import triton.language as tl

from src.gpu.wgmma_triton import settle
from src.models.mobilenet_v1.fast.common_triton import (
    load_vector,
    merge_statistics,
    norm_gradient,
    relu,
    relu_gradient,
    store_partial,
)


@triton.jit
def _activations(z, norm, row, channel, rows, INPUTS: tl.constexpr, UPCAST: tl.constexpr, CAP: tl.constexpr):
    """Returns the previous layer's output [row, channel]."""
    scale, shift = load_vector(norm, 2, channel, INPUTS), load_vector(norm, 3, channel, INPUTS)
    mask = (row < rows)[:, None] & (channel < INPUTS)[None, :]
    offset = row.to(tl.int64)[:, None] * INPUTS + channel[None, :]
    values = relu(tl.load(z + offset, mask=mask, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :], CAP)
    values = values.to(z.dtype.element_ty)
    return values.to(tl.float32) if UPCAST else values


@triton.jit
def _slopes(g, out, slopes, row, channel, rows, OUTPUTS: tl.constexpr, UPCAST: tl.constexpr):
    """Returns the gradient of the output [row, channel]."""
    p, q, r = (
        load_vector(slopes, 0, channel, OUTPUTS),
        load_vector(slopes, 1, channel, OUTPUTS),
        load_vector(slopes, 2, channel, OUTPUTS),
    )
    mask = (row < rows)[:, None] & (channel < OUTPUTS)[None, :]
    offset = row.to(tl.int64)[:, None] * OUTPUTS + channel[None, :]
    values = norm_gradient(g, out, offset, mask, p[None, :], q[None, :], r[None, :]).to(g.dtype.element_ty)
    return values.to(tl.float32) if UPCAST else values


@triton.jit
def forward(
    z, norm, weight, out, partials, rows, tiles,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr, UPCAST: tl.constexpr, SETTLE: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """Writes `out` [rows, OUTPUTS] and `partials` [programs, 3, OUTPUTS]: mean, squared deviations, count.

    Neighbouring programs read the same rows.
    """
    blocks: tl.constexpr = (OUTPUTS + COLUMNS - 1) // COLUMNS
    program = tl.program_id(0) // blocks
    column = tl.program_id(0) % blocks * COLUMNS + tl.arange(0, COLUMNS)
    mean, squares = tl.zeros([COLUMNS], tl.float32), tl.zeros([COLUMNS], tl.float32)
    count = 0
    for tile in range(tiles):
        begin = (program * tiles + tile) * ROWS
        row = begin + tl.arange(0, ROWS)
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        for k in range(0, INPUTS, DEPTH):
            channel = k + tl.arange(0, DEPTH)
            a = _activations(z, norm, row, channel, rows, INPUTS, UPCAST, CAP)
            mask = (channel < INPUTS)[:, None] & (column < OUTPUTS)[None, :]
            b = tl.load(weight + column[None, :] * INPUTS + channel[:, None], mask=mask, other=0.0)
            b = b.to(tl.float32) if UPCAST else b
            total = tl.dot(a, b, total, input_precision=PRECISION)
            settle(SETTLE)
        output = total.to(out.dtype.element_ty)
        offset = row.to(tl.int64)[:, None] * OUTPUTS + column[None, :]
        tl.store(out + offset, output, mask=(row < rows)[:, None] & (column < OUTPUTS)[None, :])
        number = tl.minimum(tl.maximum(rows - begin, 0), ROWS)
        mean, squares = merge_statistics(mean, squares, count, output.to(tl.float32), row < rows, number)
        count += number
    store_partial(partials, program, 0, column, mean, 3, OUTPUTS)
    store_partial(partials, program, 1, column, squares, 3, OUTPUTS)
    store_partial(partials, program, 2, column, tl.zeros([COLUMNS], tl.float32) + count, 3, OUTPUTS)


@triton.jit
def backward(
    g, out, slopes, weight, z, norm, g_in, partials, rows, tiles,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr, UPCAST: tl.constexpr, SETTLE: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """Writes `g_in` [rows, INPUTS] and `partials` [programs, 2, INPUTS]: sums of g_in and g_in (z - mean)."""
    blocks: tl.constexpr = (INPUTS + COLUMNS - 1) // COLUMNS
    program = tl.program_id(0) // blocks
    column = tl.program_id(0) % blocks * COLUMNS + tl.arange(0, COLUMNS)
    gradients, products = tl.zeros([COLUMNS], tl.float32), tl.zeros([COLUMNS], tl.float32)
    for tile in range(tiles):
        row = (program * tiles + tile) * ROWS + tl.arange(0, ROWS)
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        for k in range(0, OUTPUTS, DEPTH):
            channel = k + tl.arange(0, DEPTH)
            a = _slopes(g, out, slopes, row, channel, rows, OUTPUTS, UPCAST)
            mask = (channel < OUTPUTS)[:, None] & (column < INPUTS)[None, :]
            b = tl.load(weight + channel[:, None] * INPUTS + column[None, :], mask=mask, other=0.0)
            b = b.to(tl.float32) if UPCAST else b
            total = tl.dot(a, b, total, input_precision=PRECISION)
            settle(SETTLE)
        mean = load_vector(norm, 0, column, INPUTS)[None, :]
        scale, shift = load_vector(norm, 2, column, INPUTS)[None, :], load_vector(norm, 3, column, INPUTS)[None, :]
        mask = (row < rows)[:, None] & (column < INPUTS)[None, :]
        offset = row.to(tl.int64)[:, None] * INPUTS + column[None, :]
        before = tl.load(z + offset, mask=mask, other=0.0).to(tl.float32)
        gradient = relu_gradient(total, before * scale + shift, CAP).to(g_in.dtype.element_ty)
        tl.store(g_in + offset, gradient, mask=mask)
        gradient = tl.where(mask, gradient.to(tl.float32), 0.0)
        gradients += tl.sum(gradient, 0)
        products += tl.sum(gradient * (before - mean), 0)
    store_partial(partials, program, 0, column, gradients, 2, INPUTS)
    store_partial(partials, program, 1, column, products, 2, INPUTS)


@triton.jit
def backward_weight(
    g, out, slopes, z, norm, shares, rows, tiles,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr, UPCAST: tl.constexpr, SETTLE: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """Writes `shares` [programs, OUTPUTS, INPUTS], the weight's gradient from DEPTH * tiles rows each.

    A program computes a block of ROWS outputs by COLUMNS inputs.
    """
    across: tl.constexpr = (INPUTS + COLUMNS - 1) // COLUMNS
    blocks: tl.constexpr = across * ((OUTPUTS + ROWS - 1) // ROWS)
    program, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    to, of = block // across * ROWS + tl.arange(0, ROWS), block % across * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for tile in range(tiles):
        row = (program * tiles + tile) * DEPTH + tl.arange(0, DEPTH)
        a = _slopes(g, out, slopes, row, to, rows, OUTPUTS, UPCAST)
        b = _activations(z, norm, row, of, rows, INPUTS, UPCAST, CAP)
        total = tl.dot(tl.trans(a), b, total, input_precision=PRECISION)
        settle(SETTLE)
    offset = (program.to(tl.int64) * OUTPUTS + to[:, None]) * INPUTS + of[None, :]
    tl.store(shares + offset, total, mask=(to < OUTPUTS)[:, None] & (of < INPUTS)[None, :])


@triton.jit
def backward_both(
    g, out, slopes, weight, z, norm, g_in, partials, shares, rows, tiles,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr, UPCAST: tl.constexpr, SETTLE: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """Writes what `backward` and `backward_weight` write, from one pass over g, out and z.

    COLUMNS hold all INPUTS and DEPTH all OUTPUTS, so that a program's share of the weight's gradient is in registers.
    """
    program = tl.program_id(0)
    column, channel = tl.arange(0, COLUMNS), tl.arange(0, DEPTH)
    is_weight = (channel < OUTPUTS)[:, None] & (column < INPUTS)[None, :]
    place = channel[:, None] * INPUTS + column[None, :]
    b = tl.load(weight + place, mask=is_weight, other=0.0)
    b = b.to(tl.float32) if UPCAST else b
    of_weight = tl.zeros([DEPTH, COLUMNS], tl.float32)
    gradients, products = tl.zeros([COLUMNS], tl.float32), tl.zeros([COLUMNS], tl.float32)
    for tile in range(tiles):
        row = (program * tiles + tile) * ROWS + tl.arange(0, ROWS)
        mask = (row < rows)[:, None] & (column < INPUTS)[None, :]
        offset = row.to(tl.int64)[:, None] * INPUTS + column[None, :]
        a = _slopes(g, out, slopes, row, channel, rows, OUTPUTS, UPCAST)
        scale, shift = load_vector(norm, 2, column, INPUTS)[None, :], load_vector(norm, 3, column, INPUTS)[None, :]
        before = tl.load(z + offset, mask=mask, other=0.0).to(tl.float32)
        normalised = before * scale + shift
        active = relu(normalised, CAP).to(z.dtype.element_ty)
        active = active.to(tl.float32) if UPCAST else active
        total = tl.dot(a, b, input_precision=PRECISION)
        of_weight = tl.dot(tl.trans(a), active, of_weight, input_precision=PRECISION)
        settle(SETTLE)
        mean = load_vector(norm, 0, column, INPUTS)[None, :]
        gradient = relu_gradient(total, normalised, CAP).to(g_in.dtype.element_ty)
        tl.store(g_in + offset, gradient, mask=mask)
        gradient = tl.where(mask, gradient.to(tl.float32), 0.0)
        gradients += tl.sum(gradient, 0)
        products += tl.sum(gradient * (before - mean), 0)
    store_partial(partials, program, 0, column, gradients, 2, INPUTS)
    store_partial(partials, program, 1, column, products, 2, INPUTS)
    tl.store(shares + program.to(tl.int64) * (OUTPUTS * INPUTS) + place, of_weight, mask=is_weight)
