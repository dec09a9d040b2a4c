# type: ignore  (the type checker reads Triton as Python)
"""Dropout masks as a function of seed, row and column, so that the backward pass recomputes the same mask.

Philox (`tl.rand`) costs about 100 integer operations an element: next to a layer norm it would take several times as
long as the memory traffic. Here it only makes a program's two keys. Each row and each column is hashed by a bijection
of 32 bits, the finaliser `lowbias32` (C. Wellons, 2018) with a key added at either end. An element mixes its two hashes
in 4 operations. Over 10^8 elements the correlations of neighbours, rows, columns and rectangles are no larger than
those of independent random numbers (tests/models/distilbert/test_kernels.py tests some).
"""

import triton
import triton.language as tl


@triton.jit
def keys_of(seed, stream):
    """Returns the two keys of `stream`, an integer; `seed` points to an int64."""
    first, second, _, _ = tl.randint4x(tl.load(seed), tl.full([], stream, tl.int32))
    return first.to(tl.uint32), second.to(tl.uint32)


@triton.jit
def row_numbers(row, first, second):
    """Returns the hashes of rows, integers of 32 bits, under a stream's keys."""
    x = row.to(tl.uint32) + first
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = x ^ second
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def column_numbers(column, first, second):
    return row_numbers(column, second, first)


@triton.jit
def is_kept(of_row, of_column, THRESHOLD: tl.constexpr):
    """Returns the dropout mask of elements (row, column); it drops THRESHOLD of 2^32."""
    x = of_row + of_column
    return (x ^ (x >> 15)) * 0x846CA68B >= THRESHOLD
