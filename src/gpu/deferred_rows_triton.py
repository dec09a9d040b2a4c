# type: ignore  (the type checker reads Triton as Python)
"""Adam's steps of an embedding's rows: those that a row has missed, and the step of rows with a gradient.

All arrays of rows are float32 [rows, COLUMNS]. `last` [rows] int32 is the step that a row is at, `step` the number of
steps taken. Step n's factors, as `adam_triton` computes them, are row n % RING of `history` [RING, 3].
"""

import triton
import triton.language as tl

from src.gpu.adam_triton import adam_step


@triton.jit
def id_at(in_order, place):
    """Returns the id at a place of the sorted ids, and whether it is the first of its kind."""
    number = tl.load(in_order + place)
    return number, number != tl.load(in_order + place - 1, mask=place > 0, other=-1)


@triton.jit
def place_and_strip(COLUMNS: tl.constexpr, WIDTH: tl.constexpr):
    """Returns a program's place among the sorted ids, and the strip of WIDTH columns it has of that id's row.

    A place's strips are neighbours, so that the longest sums, mostly of low ids, are not begun last.
    """
    STRIPS: tl.constexpr = (COLUMNS + WIDTH - 1) // WIDTH
    return tl.program_id(0) // STRIPS, tl.program_id(0) % STRIPS


@triton.jit
def count_from(in_order, place, end, number, WINDOW: tl.constexpr):
    """Returns how many of the WINDOW sorted ids from `place` on, and before `end`, are `number`."""
    window = place + tl.arange(0, WINDOW)
    ids = tl.load(in_order + window, mask=window < end, other=-1)
    return tl.sum((ids == number).to(tl.int32), 0)


@triton.jit
def sum_of_id(
    grad, in_order, order, number, first, column, count, is_wanted,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Returns the sum of the rows of `grad` that have the id `number`, zeros unless `is_wanted`.

    Rows are order[...]; `in_order` are their `count` ids, of which the one at `first` is the first that is `number`.
    The first row, the only one of most ids, is added without a loop. The others are counted in windows, so that blocks
    of rows are loaded without a look at their ids first.
    """
    block, is_column = tl.arange(0, BLOCK), column < COLUMNS
    place = first + 1
    first_row = tl.load(order + first)
    row = tl.load(order + place + block, mask=place + block < count, other=0)
    rows = count_from(in_order, place, count, number, WINDOW)
    rows = tl.where(is_wanted, rows, 0)
    total = tl.load(grad + first_row * COLUMNS + column, mask=is_column & is_wanted, other=0.0)
    while rows > 0:
        end = place + rows
        for start in range(place, end, BLOCK):
            mask = (start + block < end)[:, None] & is_column[None, :]
            values = tl.load(grad + row[:, None] * COLUMNS + column[None, :], mask=mask, other=0.0)
            following = start + BLOCK + block  # loaded before the values are needed
            row = tl.load(order + following, mask=following < count, other=0)
            total += tl.sum(values, 0)
        place = end
        rows = count_from(in_order, place, tl.where(rows == WINDOW, count, 0), number, WINDOW)
    return total


@triton.jit
def catch_up(
    in_order, powers, parameters, averages, squares, last, step, history, beta1, rest1, beta2, rest2, penalty, eps,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr, RING: tl.constexpr,
):  # fmt: skip
    """Takes the steps that a row has missed, without a gradient: of the sorted ids `in_order`, of all if it is None.

    `powers` [RING] are the roots of beta2^1, beta2^2, ..., or None where `penalty` is not 0 or `eps` is tiny. Without a
    penalty a step only multiplies the averages, so that one root of an element does for all steps.
    """
    place = tl.program_id(0)
    row = place.to(tl.int64)
    now = tl.load(step).to(tl.int32)
    if in_order is not None:
        number, is_first = id_at(in_order, place)
        row = number.to(tl.int64)
        begin = tl.where(is_first, tl.load(last + row), now)
    else:
        begin = tl.load(last + row)
    tl.debug_barrier()  # a warp that is done must not write `last` before another has read it
    if begin < now:
        for start in tl.static_range(0, COLUMNS, WIDTH):
            column = start + tl.arange(0, WIDTH)
            offset, mask = row * COLUMNS + column, column < COLUMNS
            parameter = tl.load(parameters + offset, mask=mask, other=0.0)
            average = tl.load(averages + offset, mask=mask, other=0.0)
            square = tl.load(squares + offset, mask=mask, other=0.0)
            root_of_first = tl.sqrt(square)
            for number in range(begin + 1, now + 1):
                factors = history + number % RING * 3
                size, root, decay = tl.load(factors), tl.load(factors + 1), tl.load(factors + 2)
                if powers is None:
                    parameter, average, square = adam_step(
                        parameter, average, square, 0.0, beta1, rest1, beta2, rest2, penalty, eps, size, root, decay
                    )
                else:
                    root *= tl.load(powers + number - begin - 1)
                    parameter -= decay * parameter
                    average *= beta1
                    square *= beta2
                    # 1 / x as the root of 1 / x^2, for x from 2^-63 to 2^63: two instructions, a division takes eight.
                    divisor = root_of_first * root + eps
                    parameter -= size * average * tl.rsqrt(divisor * divisor)
            tl.store(parameters + offset, parameter, mask=mask)
            tl.store(averages + offset, average, mask=mask)
            tl.store(squares + offset, square, mask=mask)
        tl.store(last + row, now)


@triton.jit
def update_rows(
    grad, in_order, order, count, padding, parameters, averages, squares, last, step, history, factors,
    beta1, rest1, beta2, rest2, penalty, eps,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr, RING: tl.constexpr,
):  # fmt: skip
    """Takes the step of an id's row by its sum of rows of `grad`, except of `padding`.

    Keeps `factors` [3] in `history`. The rows must have taken all steps before this one.
    """
    first, strip = place_and_strip(COLUMNS, WIDTH)
    column = strip * WIDTH + tl.arange(0, WIDTH)
    now = tl.load(step).to(tl.int32)
    size, root, decay = tl.load(factors), tl.load(factors + 1), tl.load(factors + 2)
    if tl.program_id(0) == 0:
        place = history + now % RING * 3
        tl.store(place, size)
        tl.store(place + 1, root)
        tl.store(place + 2, decay)
    number, is_first = id_at(in_order, first)
    is_wanted = is_first & (number != padding)
    gradient = sum_of_id(grad, in_order, order, number, first, column, count, is_wanted, COLUMNS, WIDTH, BLOCK, WINDOW)
    row, mask = number.to(tl.int64), (column < COLUMNS) & is_wanted
    offset = row * COLUMNS + column
    parameter = tl.load(parameters + offset, mask=mask, other=0.0)
    average = tl.load(averages + offset, mask=mask, other=0.0)
    square = tl.load(squares + offset, mask=mask, other=0.0)
    parameter, average, square = adam_step(
        parameter, average, square, gradient, beta1, rest1, beta2, rest2, penalty, eps, size, root, decay
    )
    tl.store(parameters + offset, parameter, mask=mask)
    tl.store(averages + offset, average, mask=mask)
    tl.store(squares + offset, square, mask=mask)
    tl.store(last + row, now, mask=is_wanted)
