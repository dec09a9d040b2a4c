# type: ignore  (the type checker reads Triton as Python)
"""Which numbers dropout keeps: a function of a seed and a place, so that a backward pass finds the same ones.

Philox (`tl.rand`) costs about 100 integer operations a number: beside a layer norm it would take several times as long
as the memory. It makes only the two keys of a program here; a place is mixed with them in 10 operations, by the
multiplications and shifts of the 32-bit finaliser `lowbias32` (C. Wellons, 2018). The second key enters half-way, so
that the numbers of one program cannot be those of another one at other places.
"""

import triton
import triton.language as tl


@triton.jit
def keys_of(seed, stream):
    """Two numbers for all places of `stream`, an integer; `seed` points to an int64."""
    first, second, _, _ = tl.randint4x(tl.load(seed), tl.full([], stream, tl.int32))
    return first.to(tl.uint32), second.to(tl.uint32)


@triton.jit
def is_kept(first, second, place, THRESHOLD: tl.constexpr):
    """Whether the number at `place`, an integer of 32 bits, stays; THRESHOLD of 2^32 places do not."""
    x = place.to(tl.uint32) + first
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = x ^ second
    x = (x ^ (x >> 15)) * 0x846CA68B
    return (x ^ (x >> 16)) >= THRESHOLD
