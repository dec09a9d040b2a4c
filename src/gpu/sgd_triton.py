# type: ignore  (the type checker reads Triton as Python)
"""Steps of SGD and Adagrad, and the search for overflows, over many float32 tensors in one launch.

They read tables of `src.training.tables`: addresses of parameter, gradient and the rule's state, elements, first block
and copy. `scale` divides gradients. A `found_inf` that is not 0 keeps every number as it is. The learning rate is the
scalar `lr`, or `rate` if that is None.
"""

import triton
import triton.language as tl

from src.gpu.table_triton import column_of, pointers, store_copies


@triton.jit
def find_overflow(table, found_inf, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Sets `found_inf` to 1 if a number of this block is infinite or NaN."""
    column, offset = column_of(table, 1, ROWS, BLOCK)
    mask = offset < tl.multiple_of(tl.load(column + ROWS), 4)
    values = tl.load(pointers(column, offset, tl.float32), mask=mask, other=0.0)
    is_finite = tl.abs(values) <= 3.4028234663852886e38
    tl.store(found_inf, 1.0, mask=tl.sum(tl.where(is_finite, 0, 1), 0) > 0)


@triton.jit
def update_sgd(
    table, found_inf, scale, copies, lr, rate, momentum, penalty,
    NESTEROV: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Updates a block of a parameter and its momentum, the third tensor; none if `momentum` is None."""
    column, offset = column_of(table, 3, ROWS, BLOCK)
    mask = offset < _count(column + 3 * ROWS, found_inf)
    parameters = pointers(column, offset, tl.float32)
    parameter = tl.load(parameters, mask=mask, other=0.0, eviction_policy="evict_first")
    gradient = _gradient(column + ROWS, offset, mask, scale, penalty, parameter)
    if momentum is not None:
        buffers = pointers(column + 2 * ROWS, offset, tl.float32)
        buffer = momentum * tl.load(buffers, mask=mask, other=0.0, eviction_policy="evict_first") + gradient
        tl.store(buffers, buffer, mask=mask, eviction_policy="evict_first")
        gradient = gradient + momentum * buffer if NESTEROV else buffer
    parameter -= _rate(lr, rate) * gradient
    tl.store(parameters, parameter, mask=mask)
    store_copies(column + 5 * ROWS, offset, parameter, mask, copies)


@triton.jit
def update_adagrad(
    table, found_inf, scale, copies, lr, rate, fade, penalty, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Updates a block of a parameter and its sum of squares; the fourth tensor are the steps taken before."""
    column, offset = column_of(table, 4, ROWS, BLOCK)
    mask = offset < _count(column + 4 * ROWS, found_inf)
    parameters, squares = pointers(column, offset, tl.float32), pointers(column + 2 * ROWS, offset, tl.float32)
    steps = tl.load(tl.load(column + 3 * ROWS).to(tl.pointer_type(tl.float32)))
    parameter = tl.load(parameters, mask=mask, other=0.0, eviction_policy="evict_first")
    gradient = _gradient(column + ROWS, offset, mask, scale, penalty, parameter)
    square = tl.load(squares, mask=mask, other=0.0, eviction_policy="evict_first") + gradient * gradient
    tl.store(squares, square, mask=mask, eviction_policy="evict_first")
    parameter -= _rate(lr, rate) / (1 + steps * fade) * gradient / (tl.sqrt(square) + eps)
    tl.store(parameters, parameter, mask=mask)
    store_copies(column + 6 * ROWS, offset, parameter, mask, copies)


@triton.jit
def count_steps(table, found_inf, count, ROWS: tl.constexpr):
    """Adds 1 to the steps of `count` parameters of `update_adagrad`; one program."""
    row = tl.arange(0, ROWS)
    steps = tl.load(table + 3 * ROWS + row).to(tl.pointer_type(tl.float32))
    step = tl.load(steps, mask=row < count, other=0.0) + 1
    if found_inf is not None:
        step -= tl.where(tl.load(found_inf) == 0, 0.0, 1.0)
    tl.store(steps, step, mask=row < count)


@triton.jit
def _count(entry, found_inf):
    """Returns the elements of a column to update: none if `found_inf` is not 0."""
    count = tl.load(entry)
    if found_inf is not None:
        count = tl.where(tl.load(found_inf) == 0, count, 0)
    return tl.multiple_of(count, 4)


@triton.jit
def _gradient(entry, offset, mask, scale, penalty, parameter):
    """Returns the gradient / `scale` + `penalty` * parameter."""
    gradient = tl.load(pointers(entry, offset, tl.float32), mask=mask, other=0.0, eviction_policy="evict_first")
    if scale is not None:
        gradient *= 1 / tl.load(scale).to(tl.float32)
    return gradient + penalty * parameter


@triton.jit
def _rate(lr, rate):
    return rate if lr is None else tl.load(lr).to(tl.float32)
