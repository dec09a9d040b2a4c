# type: ignore  (the type checker reads Triton as Python)
"""An MLP's kernels besides the large products: gradients of ReLU and bias, and the layer to one logit.

Programs begin with the last rows: of what a product has just written these are still in the L2 cache. Those that run
side by side have columns of the same rows.
"""

import triton
import triton.language as tl


@triton.jit
def relu_backward(
    grad, activation, out, shares, rows,
    COLUMNS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Writes `out`, `grad` where the activation is positive, and `shares` [programs, COLUMNS], its sums over rows."""
    column = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    program = tl.num_programs(1) - 1 - tl.program_id(1)
    total = tl.zeros([BLOCK, WIDTH], tl.float32)  # summed over rows at the end: each sum is a barrier of the warps
    for k in range(0, ROWS, BLOCK):
        row = program * ROWS + k + tl.arange(0, BLOCK)
        offset = row.to(tl.int64)[:, None] * COLUMNS + column[None, :]
        mask = (row < rows)[:, None] & (column < COLUMNS)[None, :]
        gradient = tl.load(grad + offset, mask=mask, other=0.0)
        gradient = tl.where(tl.load(activation + offset, mask=mask, other=0.0) > 0, gradient, 0.0)
        tl.store(out + offset, gradient.to(out.dtype.element_ty), mask=mask)
        total += gradient.to(tl.float32)
    tl.store(shares + program * COLUMNS + column, tl.sum(total, 0), mask=column < COLUMNS)


@triton.jit
def first_layer_backward(
    grad, activation, x, shares, rows, length,
    COLUMNS: tl.constexpr, INPUTS: tl.constexpr, STRIDE: tl.constexpr,
    BLOCK: tl.constexpr, WIDTH: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    """Writes `shares` [programs, COLUMNS * (INPUTS + 1)], each `length` rows' part of a layer's gradients.

    Those of the weight [COLUMNS, INPUTS] come first, then those of the bias: a 1 after the inputs `x` [rows, STRIDE]
    makes these another column of the product. `length` is a multiple of BLOCK.
    """
    column, number = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH), tl.arange(0, NUMBERS)
    program = tl.num_programs(1) - 1 - tl.program_id(1)
    total = tl.zeros([WIDTH, NUMBERS], tl.float32)
    for k in range(0, length, BLOCK):
        row = program * length + k + tl.arange(0, BLOCK)
        offset = row.to(tl.int64)[:, None] * COLUMNS + column[None, :]
        mask = (row < rows)[:, None] & (column < COLUMNS)[None, :]
        gradient = tl.load(grad + offset, mask=mask, other=0.0)
        gradient = tl.where(tl.load(activation + offset, mask=mask, other=0.0) > 0, gradient, 0.0)
        at = row.to(tl.int64)[:, None] * STRIDE + number[None, :]
        inputs = tl.load(x + at, mask=(row < rows)[:, None] & (number < STRIDE)[None, :], other=0.0)
        inputs = tl.where(number[None, :] == INPUTS, 1.0, inputs)
        total = tl.dot(tl.trans(gradient), inputs, total)
    is_weight = (number < INPUTS)[None, :]
    at = tl.where(is_weight, column[:, None] * INPUTS + number[None, :], COLUMNS * INPUTS + column[:, None])
    mask = (column < COLUMNS)[:, None] & (number <= INPUTS)[None, :]
    tl.store(shares + program * (COLUMNS * (INPUTS + 1)) + at, total, mask=mask)


@triton.jit
def logit(x, weight, bias, out, rows, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row, column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    w = tl.load(weight + column, mask=column < COLUMNS, other=0.0).to(tl.float32)
    offset = row.to(tl.int64)[:, None] * COLUMNS + column[None, :]
    h = tl.load(x + offset, mask=(row < rows)[:, None] & (column < COLUMNS)[None, :], other=0.0).to(tl.float32)
    tl.store(out + row, tl.sum(h * w[None, :], 1) + tl.load(bias).to(tl.float32), mask=row < rows)


@triton.jit
def logit_backward(
    x, weight, grad, out, shares, rows,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes the gradients of the logit's layer and of the ReLU whose output is `x`.

    `out` [rows, COLUMNS]: the gradient before that ReLU. `shares` [programs, 3, COLUMNS]: a program's part of the
    gradients of the logit's weight, of the bias before the ReLU, and (first element) of the logit's bias.
    """
    column = tl.arange(0, WIDTH)
    is_column = column < COLUMNS
    w = tl.load(weight + column, mask=is_column, other=0.0).to(tl.float32)
    of_weight, of_bias = tl.zeros([BLOCK, WIDTH], tl.float32), tl.zeros([BLOCK, WIDTH], tl.float32)
    of_logit_bias = tl.zeros([BLOCK], tl.float32)
    for k in range(0, ROWS, BLOCK):
        row = tl.program_id(0) * ROWS + k + tl.arange(0, BLOCK)
        g = tl.load(grad + row, mask=row < rows, other=0.0).to(tl.float32)
        offset = row.to(tl.int64)[:, None] * COLUMNS + column[None, :]
        mask = (row < rows)[:, None] & is_column[None, :]
        h = tl.load(x + offset, mask=mask, other=0.0).to(tl.float32)
        gradient = tl.where(h > 0, g[:, None] * w[None, :], 0.0).to(out.dtype.element_ty)
        tl.store(out + offset, gradient, mask=mask)
        of_weight += g[:, None] * h
        of_bias += gradient.to(tl.float32)
        of_logit_bias += g
    begin = shares + tl.program_id(0) * 3 * COLUMNS
    tl.store(begin + column, tl.sum(of_weight, 0), mask=is_column)
    tl.store(begin + COLUMNS + column, tl.sum(of_bias, 0), mask=is_column)
    tl.store(begin + 2 * COLUMNS + column, tl.where(column == 0, tl.sum(of_logit_bias, 0), 0.0), mask=is_column)
