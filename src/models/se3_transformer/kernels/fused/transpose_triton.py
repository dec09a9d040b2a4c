# type: ignore  (the type checker reads Triton as Python)
"""Transposition of a matrix in memory, tile by tile."""

import triton
import triton.language as tl


@triton.jit
def transpose(source, target, rows, columns, length, TILE: tl.constexpr):
    """target[c, r] = source[r, c], and 0 from `rows` to `length`."""
    row, column = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.program_id(1) * TILE + tl.arange(0, TILE)
    is_source = (row < rows)[:, None] & (column < columns)[None, :]
    tile = tl.load(source + row.to(tl.int64)[:, None] * columns + column[None, :], mask=is_source, other=0.0)
    is_target = (column < columns)[:, None] & (row < length)[None, :]
    tl.store(target + column.to(tl.int64)[:, None] * length + row[None, :], tl.trans(tile), mask=is_target)
