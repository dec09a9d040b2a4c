# type: ignore  (the type checker reads Triton as Python)
"""Sums of `generated_molecules.kernel` over pairs of samples, and its gradient, in one pass over their products."""

import triton
import triton.language as tl


@triton.jit
def similarities(
    products, squares, other_squares, variance, sums, slopes, rows, columns,
    SKIPS: tl.constexpr, FIRST: tl.constexpr, RATIO: tl.constexpr, SCALES: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Writes for each row the sums of the kernel and of its slopes, -d kernel / d squared distance.

    Overwrites `products` [rows, columns], scalar products of samples, by the kernel's derivatives with respect to them.

    Args:
        squares, other_squares: of the samples of rows and of columns.
        variance: a number; the SCALES scales in it are FIRST, FIRST * RATIO, ...
        SKIPS: leaves out pairs of the same number.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    unit = tl.load(variance)
    square = tl.load(squares + row, mask=row < rows, other=0.0)
    total, total_slope = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    for begin in range(0, columns, COLUMNS):
        column = begin + tl.arange(0, COLUMNS)
        is_inside = (row < rows)[:, None] & (column < columns)[None, :]
        is_pair = is_inside & (row[:, None] != column[None, :]) if SKIPS else is_inside
        place = products + row.to(tl.int64)[:, None] * columns + column[None, :]
        product = tl.load(place, mask=is_inside, other=0.0)
        other = tl.load(other_squares + column, mask=column < columns, other=0.0)
        distance = square[:, None] + other[None, :] - 2 * product
        value, slope, width = product / unit, tl.zeros([ROWS, COLUMNS], tl.float32), unit * FIRST
        for _ in tl.static_range(SCALES):
            share = width / (width + tl.maximum(distance, 0.0))
            value += share / SCALES
            slope += share * share / (width * SCALES)
            width *= RATIO
        slope = tl.where(is_pair & (distance >= 0), slope, 0.0)  # rounding may make a distance negative
        total += tl.sum(tl.where(is_pair, value, 0.0), 1)
        total_slope += tl.sum(slope, 1)
        tl.store(place, tl.where(is_pair, 1 / unit + 2 * slope, 0.0), mask=is_inside)
    tl.store(sums + row, total, mask=row < rows)
    tl.store(slopes + row, total_slope, mask=row < rows)
