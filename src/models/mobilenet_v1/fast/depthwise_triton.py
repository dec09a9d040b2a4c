# type: ignore  (the type checker reads Triton as Python)
"""3 x 3 depthwise convolutions with padding 1, forward, on rows of channels: HEIGHT x WIDTH pixels to DOWN x ACROSS.

A program handles a block of channels of STRIPS strips of COLUMNS output columns (see strips_triton) and moves down
`rows_each` output rows. It adds each loaded row to all outputs that need it, while the next row is being loaded.
`weight` [CHANNELS, 9] is float32.

Statistics are sums of deviations from a reference, an element of the strip's first row, and of their squares. If the
reference is t standard deviations from the mean, the variance of n elements is accurate to about (1 + t^2) n / 2^24.
"""

import triton
import triton.language as tl

from src.models.mobilenet_v1.fast.common_triton import combine_statistics, load_vector, store_partial
from src.models.mobilenet_v1.fast.strips_triton import (
    activations,
    column_masks,
    load_row,
    load_taps,
    program_share,
    row_pointers,
    zeros,
)


@triton.jit
def _accumulate(totals, a, w0, w1, w2, COLUMNS: tl.constexpr, STRIDE: tl.constexpr):
    """Returns the outputs' sums after adding three taps of a row."""
    sums = ()
    for i in tl.static_range(COLUMNS):
        total = totals[i] + w0 * a[i * STRIDE] + w1 * a[i * STRIDE + 1] + w2 * a[i * STRIDE + 2]
        sums += (total,)
    return sums


@triton.jit
def _store_row(out, totals, mask, is_first, near, sums, squares, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr):
    """Stores a row and adds to the statistics' sums of deviations from `near`, an element of the first row."""
    # An element in the middle: at a border fewer taps contribute.
    first = tl.where(mask[COLUMNS // 2], totals[COLUMNS // 2], totals[0])
    near = tl.where(is_first, first.to(out.dtype.element_ty).to(tl.float32), near)
    for i in tl.static_range(COLUMNS):
        output = totals[i].to(out.dtype.element_ty)
        tl.store(out + i * CHANNELS, output, mask=mask[i])
        apart = tl.where(mask[i], output.to(tl.float32) - near, 0.0)
        sums += apart
        squares += apart * apart
    return near, sums, squares


@triton.jit
def forward(
    z, norm, weight, out, partials, segments, rows_each,
    STRIDE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr,
    CHANNELS: tl.constexpr, COLUMNS: tl.constexpr, STRIPS: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr,
    CAP: tl.constexpr,
):  # fmt: skip
    """Writes `out` and `partials` [programs, 3, CHANNELS]: mean, squared deviations, count."""
    SEEN: tl.constexpr = (COLUMNS - 1) * STRIDE + 3
    BLOCKS: tl.constexpr = (CHANNELS + BLOCK - 1) // BLOCK
    block, program, group, image, first, last = program_share(segments, rows_each, DOWN, GROUPS, BLOCKS)
    channel = block * BLOCK + tl.arange(0, BLOCK)
    scale, shift = load_vector(norm, 2, channel, CHANNELS)[None, :], load_vector(norm, 3, channel, CHANNELS)[None, :]
    w0, w1, w2, w3, w4, w5, w6, w7, w8 = load_taps(weight, channel, CHANNELS)
    x = (group * STRIPS + tl.arange(0, STRIPS)) * COLUMNS
    column = x * STRIDE - 1
    mask = column_masks(column, channel, SEEN, -1, COLUMNS * STRIDE, GROUPS * STRIPS, WIDTH, CHANNELS, STRIPS, BLOCK)
    is_output = column_masks(x, channel, COLUMNS, 0, COLUMNS, GROUPS * STRIPS, ACROSS, CHANNELS, STRIPS, BLOCK)
    none = zeros(COLUMNS, STRIPS, BLOCK)
    near, sums, squares = zeros(3, STRIPS, BLOCK)

    y = first * STRIDE - 1
    row = row_pointers(z, image, y, column, channel, HEIGHT, WIDTH, CHANNELS)
    to = row_pointers(out, image, first, x, channel, DOWN, ACROSS, CHANNELS)
    stored = load_row(row, y >= 0, mask, SEEN, CHANNELS)
    one = load_row(row + WIDTH * CHANNELS, True, mask, SEEN, CHANNELS)
    row += 2 * WIDTH * CHANNELS
    two = load_row(row, y + 2 < HEIGHT, mask, SEEN, CHANNELS)
    upper = _accumulate(none, activations(stored, y >= 0, mask, scale, shift, SEEN, CAP), w0, w1, w2, COLUMNS, STRIDE)
    if STRIDE == 1:
        a = activations(one, True, mask, scale, shift, SEEN, CAP)
        upper = _accumulate(upper, a, w3, w4, w5, COLUMNS, 1)
        middle = _accumulate(none, a, w0, w1, w2, COLUMNS, 1)
        for y in range(first + 1, last + 1):
            row += WIDTH * CHANNELS
            ahead = load_row(row, (y < last) & (y + 1 < HEIGHT), mask, SEEN, CHANNELS)
            a = activations(two, y < HEIGHT, mask, scale, shift, SEEN, CAP)
            totals = _accumulate(upper, a, w6, w7, w8, COLUMNS, 1)
            upper = _accumulate(middle, a, w3, w4, w5, COLUMNS, 1)
            middle = _accumulate(none, a, w0, w1, w2, COLUMNS, 1)
            near, sums, squares = _store_row(
                to, totals, is_output, y == first + 1, near, sums, squares, COLUMNS, CHANNELS
            )  # fmt: skip
            to += ACROSS * CHANNELS
            two = ahead
    else:
        for y in range(first, last):
            ahead = load_row(row + WIDTH * CHANNELS, y + 1 < last, mask, SEEN, CHANNELS)
            row += 2 * WIDTH * CHANNELS
            after = load_row(row, (y + 1 < last) & (2 * y + 3 < HEIGHT), mask, SEEN, CHANNELS)
            a = activations(one, True, mask, scale, shift, SEEN, CAP)
            upper = _accumulate(upper, a, w3, w4, w5, COLUMNS, STRIDE)
            a = activations(two, 2 * y + 1 < HEIGHT, mask, scale, shift, SEEN, CAP)
            totals = _accumulate(upper, a, w6, w7, w8, COLUMNS, STRIDE)
            upper = _accumulate(none, a, w0, w1, w2, COLUMNS, STRIDE)
            near, sums, squares = _store_row(to, totals, is_output, y == first, near, sums, squares, COLUMNS, CHANNELS)
            to += ACROSS * CHANNELS
            one, two = ahead, after

    count = ((last - first) * tl.minimum(tl.maximum(ACROSS - x, 0), COLUMNS)).to(tl.float32)
    deviation = sums / tl.maximum(count, 1.0)[:, None]
    mean, squares = combine_statistics(near + deviation, squares - sums * deviation, count)
    store_partial(partials, program, 0, channel, mean, 3, CHANNELS)
    store_partial(partials, program, 1, channel, squares, 3, CHANNELS)
    store_partial(partials, program, 2, channel, tl.zeros([BLOCK], tl.float32) + tl.sum(count, 0), 3, CHANNELS)
