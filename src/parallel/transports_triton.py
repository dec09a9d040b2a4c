# type: ignore  (the type checker reads Triton as Python)
"""The mean of numbers that lie in several places, on this GPU or others of the machine."""

import triton
import triton.language as tl


@triton.jit
def mean(
    addresses, like, numbers, programs,
    PLACES: tl.constexpr, WRITTEN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The mean over `PLACES` stretches of so many numbers, from `addresses` on, into the first `WRITTEN` of them.

    `like` points to a number of theirs.
    """
    for begin in range(tl.program_id(0) * BLOCK, numbers, programs * BLOCK):
        at = begin + tl.arange(0, BLOCK)
        total = tl.zeros([BLOCK], tl.float32)
        for offset in tl.static_range(PLACES):
            stretch = tl.multiple_of(tl.load(addresses + offset).to(tl.pointer_type(like.dtype.element_ty)), 16)
            total += tl.load(stretch + at, mask=at < numbers, other=0.0).to(tl.float32)
        total = total / PLACES
        for offset in tl.static_range(WRITTEN):
            stretch = tl.multiple_of(tl.load(addresses + offset).to(tl.pointer_type(like.dtype.element_ty)), 16)
            tl.store(stretch + at, total.to(like.dtype.element_ty), mask=at < numbers)
