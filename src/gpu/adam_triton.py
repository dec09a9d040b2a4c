# type: ignore  (the type checker reads Triton as Python)
"""Adam's update (Kingma and Ba, arXiv:1412.6980) of many float32 parameters in one launch, AdamW's decay included.

Both kernels read a table [8, ROWS] of int64, a column for each parameter: addresses of parameter, gradient, exp_avg,
exp_avg_sq and step, its number of elements, the number of its first block of BLOCK elements, and the address of its
copy in another dtype, 0 without one. Columns after the last parameter begin at block 2^62. `factors` [3, ROWS] are
float32: step size, 1 / root of the second bias correction, and the part of a weight that decays. A `found_inf` that is
not 0 keeps every number as it is.
"""

import triton
import triton.language as tl


@triton.jit
def advance(
    table, factors, found_inf, lr, rate, log_beta1, log_beta2, decay, count, ROWS: tl.constexpr
):  # fmt: skip
    """Counts the step of `count` parameters and writes their factors; one program. `lr` is a scalar or None: `rate`."""
    row = tl.arange(0, ROWS)
    is_row = row < count
    steps = tl.load(table + 4 * ROWS + row).to(tl.pointer_type(tl.float32))
    step = tl.load(steps, mask=is_row, other=1.0) + 1
    if found_inf is not None:
        step -= tl.where(tl.load(found_inf) == 0, 0.0, 1.0)
    tl.store(steps, step, mask=is_row)
    if lr is not None:
        rate = tl.load(lr).to(tl.float32)
    # In float64: 1 - 0.999 has lost 5 of float32's 7 digits.
    step = tl.maximum(step, 1.0).to(tl.float64)  # 0 where the first step is skipped
    correction1, correction2 = 1 - tl.exp(step * log_beta1), 1 - tl.exp(step * log_beta2)
    tl.store(factors + row, (rate / correction1).to(tl.float32))
    tl.store(factors + ROWS + row, (1 / tl.sqrt(correction2)).to(tl.float32))
    tl.store(factors + 2 * ROWS + row, tl.zeros([ROWS], tl.float32) + rate * decay)


@triton.jit
def update(
    table, factors, found_inf, scale, copies, beta1, rest1, beta2, rest2, penalty, eps,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Updates one block of a parameter by its gradient / `scale` + `penalty` * parameter; `rest1` is 1 - `beta1`.

    `copies` is a tensor of the copies' dtype; None where there are none.
    """
    block = tl.program_id(0).to(tl.int64)
    begins = tl.load(table + 6 * ROWS + tl.arange(0, ROWS))
    row = tl.sum((begins <= block).to(tl.int32), 0) - 1
    column = table + row
    count = tl.load(column + 5 * ROWS)
    if found_inf is not None:
        count = tl.where(tl.load(found_inf) == 0, count, 0)
    offset = (block - tl.load(column + 6 * ROWS)) * BLOCK + tl.arange(0, BLOCK)
    mask = offset < tl.multiple_of(count, 4)
    parameters = _pointers(column, offset)
    averages, squares = _pointers(column + 2 * ROWS, offset), _pointers(column + 3 * ROWS, offset)
    gradient = tl.load(_pointers(column + ROWS, offset), mask=mask, other=0.0, eviction_policy="evict_first")
    parameter = tl.load(parameters, mask=mask, other=0.0, eviction_policy="evict_first")
    average = tl.load(averages, mask=mask, other=0.0, eviction_policy="evict_first")
    square = tl.load(squares, mask=mask, other=0.0, eviction_policy="evict_first")
    if scale is not None:
        gradient *= 1 / tl.load(scale).to(tl.float32)
    size, root, decay = tl.load(factors + row), tl.load(factors + ROWS + row), tl.load(factors + 2 * ROWS + row)
    parameter, average, square = adam_step(
        parameter, average, square, gradient, beta1, rest1, beta2, rest2, penalty, eps, size, root, decay
    )
    tl.store(parameters, parameter, mask=mask)
    tl.store(averages, average, mask=mask, eviction_policy="evict_first")
    tl.store(squares, square, mask=mask, eviction_policy="evict_first")
    if copies is not None:
        address = tl.load(column + 7 * ROWS)
        places = tl.multiple_of(address.to(tl.pointer_type(copies.dtype.element_ty)), 16) + offset
        tl.store(places, parameter.to(copies.dtype.element_ty), mask=mask & (address != 0))


@triton.jit
def adam_step(
    parameter, average, square, gradient, beta1, rest1, beta2, rest2, penalty, eps, size, root, decay
):  # fmt: skip
    """Returns a parameter and its averages after a step; `size`, `root` and `decay` are its factors."""
    gradient += penalty * parameter
    parameter -= decay * parameter
    average = beta1 * average + rest1 * gradient
    square = beta2 * square + rest2 * gradient * gradient
    # Division and root of 2 units in the last place: exact ones branch for each element.
    parameter -= size * average / (tl.sqrt(square) * root + eps)
    return parameter, average, square


@triton.jit
def _pointers(entry, offset):
    """Returns pointers to elements of the tensor whose address is at `entry`."""
    return tl.multiple_of(tl.load(entry).to(tl.pointer_type(tl.float32)), 16) + offset
