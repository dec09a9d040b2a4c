# type: ignore  (the type checker reads Triton as Python)
"""The kernels of the mean cross entropy of logits."""

import triton
import triton.language as tl


@triton.jit
def bce(logits, labels, shares, rows, BLOCK: tl.constexpr):
    """Writes `shares` [programs], each program's part of the mean loss."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row, mask=row < rows, other=0.0)
    y = tl.load(labels + row, mask=row < rows, other=0.0)
    rest = tl.exp(-tl.abs(x))
    rounded = 1 + rest
    log1p = tl.log(rounded) + (rest - (rounded - 1)) / rounded  # the second term is what rounding took from `rest`
    # Not max(x, 0) - x * y + log1p, which of an infinite logit gives NaN where torch gives infinity.
    loss = (1 - y) * x - (tl.minimum(x, 0.0) - log1p)
    tl.store(shares + tl.program_id(0), tl.sum(tl.where(row < rows, loss, 0.0), 0) / rows)


@triton.jit
def bce_backward(logits, labels, grad, out, rows, BLOCK: tl.constexpr):
    """Writes `out` [rows], the gradients of logits from `grad` [], that of the mean loss."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row, mask=row < rows, other=0.0)
    y = tl.load(labels + row, mask=row < rows, other=0.0)
    tl.store(out + row, (tl.sigmoid(x) - y) * tl.load(grad) / rows, mask=row < rows)
