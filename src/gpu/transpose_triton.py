# type: ignore  (the type checker reads Triton as Python)
"""Transposition of a matrix in memory, tile by tile."""

import triton
import triton.language as tl


@triton.jit
def transpose(x, out, rows, columns, row_stride, length, TILE: tl.constexpr):
    """out[c, r] = x[r, c], and 0 from `rows` to `length`; rows of x are `row_stride` elements apart."""
    row, column = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.program_id(1) * TILE + tl.arange(0, TILE)
    is_read = (row < rows)[:, None] & (column < columns)[None, :]
    tile = tl.load(x + row.to(tl.int64)[:, None] * row_stride + column[None, :], mask=is_read, other=0.0)
    is_written = (column < columns)[:, None] & (row < length)[None, :]
    tl.store(
        out + column.to(tl.int64)[:, None] * length + row[None, :],
        tl.trans(tile).to(out.dtype.element_ty),
        mask=is_written,
    )
