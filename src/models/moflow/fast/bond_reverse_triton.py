# type: ignore  (the type checker reads Triton as Python)
"""A bond step backwards from its network's output on: inverse coupling, inverse ActNorm and `Limit`; see `bond_triton`.

v is the latent behind the inverse coupling, y = v / scaling - loc. LIMITS: y is cut off.
"""

import triton
import triton.language as tl

from src.models.moflow.fast.limit_triton import far, limited, of_limited


@triton.jit
def uncoupled(
    z, outputs, begin, channel, mask, is_other,
    OTHER: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Returns v, and of the transformed half z and exp(-logits); `begin` is the row's first number."""
    values = tl.load(z + begin + channel, mask=mask, other=0.0)
    place, mask = outputs + begin + (channel - OTHER), mask & is_other
    inverse = tl.exp(-tl.load(place, mask=mask, other=0.0).to(tl.float32))
    shifts = tl.load(place + HALF, mask=mask, other=0.0).to(tl.float32)
    return tl.where(is_other, values * (1 + inverse) - shifts, values), values, inverse


@triton.jit
def uncouple(
    z, outputs, loc, scaling, out, beyond, positions,
    OTHER: tl.constexpr, HALF: tl.constexpr, PADDED: tl.constexpr, LIMITS: tl.constexpr, FREE: tl.constexpr,
    BOUND: tl.constexpr,
):  # fmt: skip
    """Writes y of a sample to `out`, and to `beyond` the sum of log(1 + far)."""
    sample, channel = tl.program_id(0).to(tl.int64), tl.arange(0, PADDED)
    mask, is_other = channel < 2 * HALF, (channel >= OTHER) & (channel < OTHER + HALF)
    offset = tl.load(loc + channel, mask=mask, other=0.0)
    scale = tl.load(scaling + channel, mask=mask, other=1.0)
    total = tl.zeros([PADDED], tl.float32)
    for position in range(positions):
        begin = (sample * positions + position) * (2 * HALF)
        v, _, _ = uncoupled(z, outputs, begin, channel, mask, is_other, OTHER, HALF)
        y = v / scale - offset
        if LIMITS:
            total += tl.where(mask, tl.log(1 + far(y, FREE)), 0.0)
            y = limited(y, BOUND)
        tl.store(out + begin + channel, y, mask=mask)
    tl.store(beyond + sample, tl.sum(total, 0))


@triton.jit
def uncouple_backward(
    grad, of_beyond, z, outputs, loc, scaling, out, of_outputs, partials, rows, positions,
    OTHER: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LIMITS: tl.constexpr,
    FREE: tl.constexpr, BOUND: tl.constexpr,
):  # fmt: skip
    """Writes the gradient of z as far as it does not go through the network, and that of its output.

    `partials` [programs, 2, 2 HALF] are sums for the gradients of `scaling` and `loc`.
    """
    across: tl.constexpr = (2 * HALF + COLUMNS - 1) // COLUMNS
    program, channel = tl.program_id(0) // across, tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    row, is_channel = program * ROWS + tl.arange(0, ROWS), channel < 2 * HALF
    begin, is_row = row.to(tl.int64)[:, None] * (2 * HALF), row < rows
    mask = is_row[:, None] & is_channel[None, :]
    is_other = ((channel >= OTHER) & (channel < OTHER + HALF))[None, :]
    v, before, inverse = uncoupled(z, outputs, begin, channel[None, :], mask, is_other, OTHER, HALF)
    offset = tl.load(loc + channel, mask=is_channel, other=0.0)[None, :]
    scale = tl.load(scaling + channel, mask=is_channel, other=1.0)[None, :]
    y = v / scale - offset
    g = tl.load(grad + begin + channel[None, :], mask=mask, other=0.0)
    if LIMITS:
        of_sample = tl.load(of_beyond + row // positions, mask=is_row, other=0.0)
        g = tl.where(mask, of_limited(g, of_sample[:, None], y, FREE, BOUND), 0.0)
    of_v = g / scale
    tl.store(out + begin + channel[None, :], tl.where(is_other, of_v * (1 + inverse), of_v), mask=mask)
    place, is_written = of_outputs + begin + (channel[None, :] - OTHER), mask & is_other
    tl.store(place, (-of_v * before * inverse).to(of_outputs.dtype.element_ty), mask=is_written)
    tl.store(place + HALF, (-of_v).to(of_outputs.dtype.element_ty), mask=is_written)
    to = partials + program.to(tl.int64) * (4 * HALF) + channel
    tl.store(to, -tl.sum(of_v * (y + offset), 0), mask=is_channel)
    tl.store(to + 2 * HALF, -tl.sum(g, 0), mask=is_channel)
