# type: ignore  (the type checker reads Triton as Python)
"""Cross layers' kernels besides the large products: each reads and writes a layer's features once."""

import triton
import triton.language as tl


@triton.jit
def cross(x0, y, bias, x, out, rows, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """Writes `out`: x0 * (y + bias) + x."""
    row, column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    offset = row.to(tl.int64)[:, None] * COLUMNS + column[None, :]
    mask = (row < rows)[:, None] & (column < COLUMNS)[None, :]
    factor = tl.load(y + offset, mask=mask, other=0.0).to(tl.float32)
    factor += tl.load(bias + column, mask=column < COLUMNS, other=0.0)[None, :]
    value = tl.load(x0 + offset, mask=mask, other=0.0) * factor + tl.load(x + offset, mask=mask, other=0.0)
    tl.store(out + offset, value.to(out.dtype.element_ty), mask=mask)


@triton.jit
def cross_backward(
    grad, x0, grad_y, shares, rows,
    FIRST: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Adds grad * x0 to `grad_y`, and writes `shares` [programs, COLUMNS], its sums over rows, the bias's gradient.

    In the FIRST layer that is gone through, `grad_y` is set to that.
    """
    column = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    total = tl.zeros([BLOCK, WIDTH], tl.float32)  # summed over rows at the end: each sum is a barrier of the warps
    for k in range(0, ROWS, BLOCK):
        row = tl.program_id(1) * ROWS + k + tl.arange(0, BLOCK)
        offset = row.to(tl.int64)[:, None] * COLUMNS + column[None, :]
        mask = (row < rows)[:, None] & (column < COLUMNS)[None, :]
        of_y = tl.load(grad + offset, mask=mask, other=0.0).to(tl.float32)
        of_y *= tl.load(x0 + offset, mask=mask, other=0.0)
        if not FIRST:
            of_y += tl.load(grad_y + offset, mask=mask, other=0.0)
        of_y = of_y.to(grad_y.dtype.element_ty)
        tl.store(grad_y + offset, of_y, mask=mask)
        total += of_y.to(tl.float32)
    tl.store(shares + tl.program_id(1) * COLUMNS + column, tl.sum(total, 0), mask=column < COLUMNS)


@triton.jit
def split(
    grad, of_inputs, ys, biases, grad_dense, grad_sparse, targets, overflow, samples,
    SPREAD: tl.constexpr, LAYERS: tl.constexpr, TABLES: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """Computes the gradient of x0, splits it by vector, and looks for overflows; see `CrossLayers`.

    `grad` [samples, (1 + TABLES) DIM] is that of the output, `of_inputs` [LAYERS, ...] those of the layers' products'
    inputs; `ys` are without the `biases` [LAYERS, (1 + TABLES) DIM]. It writes `grad_dense` [samples, DIM] and
    `grad_sparse` [TABLES, samples, DIM], and sets `overflow` to 1 if a gradient is not finite in its dtype. If SPREAD,
    table t's part begins `targets[t]` elements after `grad_sparse`.
    """
    vector, block = tl.program_id(0) % (TABLES + 1), tl.program_id(0) // (TABLES + 1)
    sample, column = (block * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)[:, None], tl.arange(0, WIDTH)[None, :]
    mask = (sample < samples) & (column < DIM)
    size = tl.cast(samples, tl.int64) * ((TABLES + 1) * DIM)
    offset = sample * ((TABLES + 1) * DIM) + vector * DIM + column
    value = tl.load(of_inputs + offset, mask=mask, other=0.0).to(tl.float32)
    scale = tl.full([BLOCK, WIDTH], 1.0, tl.float32)
    for layer in tl.static_range(LAYERS):
        bias = tl.load(biases + (layer * (TABLES + 1) + vector) * DIM + column, mask=column < DIM, other=0.0)
        scale += tl.load(ys + layer * size + offset, mask=mask, other=0.0).to(tl.float32) + bias
        after = of_inputs + (layer + 1) * size if layer + 1 < LAYERS else grad
        value += scale * tl.load(after + offset, mask=mask, other=0.0)
    is_wrong = (tl.abs(value) > LARGEST) | (value != value)
    if tl.max(tl.max(is_wrong.to(tl.int32), 1), 0) > 0:
        tl.store(overflow, 1.0)
    value = value.to(grad_sparse.dtype.element_ty)
    if vector == 0:
        tl.store(grad_dense + sample * DIM + column, value, mask=mask)
    else:
        if SPREAD:
            begin = tl.multiple_of(tl.load(targets + vector - 1), 16)
        else:
            begin = (vector - 1) * tl.cast(samples, tl.int64) * DIM
        tl.store(grad_sparse + begin + sample * DIM + column, value, mask=mask)
