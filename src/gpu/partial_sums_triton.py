# type: ignore  (the type checker reads Triton as Python)
"""Sums of the partial sums that a kernel's programs leave."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["parts"])
def sum_partials(partials, out, parts, size, PARTS: tl.constexpr, COLUMNS: tl.constexpr):
    """out[i] = sum over p of partials[p, i], in float32 and a fixed order."""
    at, part = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, PARTS)
    total = tl.zeros([PARTS, COLUMNS], tl.float32)
    for first in range(0, parts, PARTS):
        row = first + part
        mask = (row < parts)[:, None] & (at < size)[None, :]
        total += tl.load(partials + row[:, None].to(tl.int64) * size + at[None, :], mask=mask, other=0.0)
    tl.store(out + at, tl.sum(total, 0), mask=at < size)
