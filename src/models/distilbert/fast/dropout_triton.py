# type: ignore  (the type checker reads Triton as Python)
"""Dropout masks as a function of seed, row and column, so that the backward pass recomputes the same mask.

Philox (`tl.rand`) costs about 100 integer operations an element: next to a layer norm it would take several times as
long as the memory traffic. Here it only makes a program's two keys. Each row and each column is hashed by a bijection
of 32 bits, the finaliser `lowbias32` (C. Wellons, 2018) with a key added at either end, and made odd. An element is the
product of its two hashes modulo 2^32: an odd integer, uniform for uniform hashes, so that probabilities are exact to 31
bits. Two of 512 rows have equal hashes, hence equal masks, under one pair of keys in 33,000. Over 10^8 elements the
correlations of neighbours, rows, columns and rectangles are otherwise no larger than those of independent random
numbers (tests/models/distilbert/test_kernels.py tests some).
"""

import triton
import triton.language as tl

INFINITY = tl.constexpr(0x7F800000)  # bits of a float32


@triton.jit
def keys_of(seed, stream):
    """Returns the two keys of `stream`, an integer; `seed` points to an int64."""
    first, second, _, _ = tl.randint4x(tl.load(seed), tl.full([], stream, tl.int32))
    return first.to(tl.uint32), second.to(tl.uint32)


@triton.jit
def row_numbers(row, first, second):
    """Returns the hashes of rows, odd integers of 32 bits, under a stream's keys."""
    x = row.to(tl.uint32) + first
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = x ^ second
    x = (x ^ (x >> 15)) * 0x846CA68B
    return (x ^ (x >> 16)) | 1


@triton.jit
def column_numbers(column, first, second):
    return row_numbers(column, second, first)


@triton.jit
def is_kept(of_row, of_column, THRESHOLD: tl.constexpr):
    """Returns the dropout mask of elements (row, column); it drops THRESHOLD of 2^32.

    Write a factor as `tl.where(is_kept(...), 1.0, 0.0)`: a GPU computes this of two floats in one instruction. The
    hashes are therefore compared in the order of floats. Those after a bound are dropped, and NaNs are kept.
    """
    x = of_row * of_column
    if THRESHOLD > 2 * INFINITY:  # more than there are floats that are no NaNs
        return x >= THRESHOLD
    bits: tl.constexpr = INFINITY - THRESHOLD if THRESHOLD <= INFINITY else 0x80000000 + THRESHOLD - INFINITY
    return ~(x.to(tl.float32, bitcast=True) > tl.full([], bits, tl.uint32).to(tl.float32, bitcast=True))


@triton.jit
def tile_is_kept(first, second, row, column, THRESHOLD: tl.constexpr):
    """Returns the dropout mask [rows, columns] under a stream's keys."""
    of_row, of_column = row_numbers(row, first, second), column_numbers(column, first, second)
    return is_kept(of_row[:, None], of_column[None, :], THRESHOLD)
