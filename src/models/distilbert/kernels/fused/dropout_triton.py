# type: ignore  (the type checker reads Triton as Python)
"""Which numbers dropout keeps: a function of a seed and a place, so that a backward pass finds the same ones.

Philox (`tl.rand`) costs about 100 integer operations a number: beside a layer norm it would take several times as long
as the memory. It makes only the two keys of a program here. Each row and each column gets a number of its own by a
bijection of 32 bits, the finaliser `lowbias32` (C. Wellons, 2018) with a key entering at either end; a place mixes the
two in 4 operations. Over 10^8 places no correlation of neighbours, rows, columns or rectangles is to be seen beside
that of a generator's independent numbers (tests/models/distilbert/test_kernels.py looks at some).
"""

import triton
import triton.language as tl


@triton.jit
def keys_of(seed, stream):
    """Two numbers for all places of `stream`, an integer; `seed` points to an int64."""
    first, second, _, _ = tl.randint4x(tl.load(seed), tl.full([], stream, tl.int32))
    return first.to(tl.uint32), second.to(tl.uint32)


@triton.jit
def row_numbers(row, first, second):
    """Of rows, integers of 32 bits, under the keys of a stream."""
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
    """Whether what stands where a row and a column meet stays; THRESHOLD of 2^32 places do not."""
    x = of_row + of_column
    return (x ^ (x >> 15)) * 0x846CA68B >= THRESHOLD
