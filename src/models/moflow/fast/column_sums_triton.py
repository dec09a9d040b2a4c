# type: ignore  (the type checker reads Triton as Python)
"""Sums of columns of a large matrix."""

import triton
import triton.language as tl


@triton.jit
def column_sums(
    values, partials, rows, rows_each, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Writes sums of `rows_each` rows, a multiple of ROWS, of `values` [groups, rows, columns].

    `partials` are [groups, parts, columns] in float32.
    """
    across, parts = tl.cdiv(columns, COLUMNS), tl.cdiv(rows, rows_each)
    part, column = tl.program_id(0) // across, tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    first, row = part % parts * rows_each, tl.arange(0, ROWS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for begin in range(first, tl.minimum(first + rows_each, rows), ROWS):
        block = values + ((part // parts).to(tl.int64) * rows + begin) * columns
        mask = (begin + row < rows)[:, None] & (column < columns)[None, :]
        total += tl.load(block + (row[:, None] * columns + column[None, :]), mask=mask, other=0.0).to(tl.float32)
    tl.store(partials + part * columns + column, tl.sum(total, 0), mask=column < columns)
