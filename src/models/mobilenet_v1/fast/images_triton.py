# type: ignore  (the type checker reads Triton as Python)
"""Images of bytes or of floating point numbers, standardised by the mean and the deviation of each colour."""

import triton
import triton.language as tl


@triton.jit
def standardise(pixels, scale, shift, out, count, BLOCK: tl.constexpr):
    """Writes `out` [count]: `pixels`, whose last dimension are 3 colours, times `scale` [3] plus `shift` [3]."""
    begin = tl.program_id(0).to(tl.int64) * BLOCK
    offset = tl.arange(0, BLOCK)
    mask = offset < count - begin
    colour = ((begin % 3).to(tl.int32) + offset) % 3
    factor = tl.where(colour == 0, tl.load(scale), tl.where(colour == 1, tl.load(scale + 1), tl.load(scale + 2)))
    added = tl.where(colour == 0, tl.load(shift), tl.where(colour == 1, tl.load(shift + 1), tl.load(shift + 2)))
    values = tl.load(pixels + begin + offset, mask=mask, other=0).to(tl.float32)
    tl.store(out + begin + offset, added + values * factor, mask=mask)
