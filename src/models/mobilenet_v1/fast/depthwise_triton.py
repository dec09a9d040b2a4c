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
    load_row_once,
    load_taps,
    moved,
    one_pass,
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
def _store_row(out, totals, mask, is_first, near, sums, squares, COLUMNS: tl.constexpr):
    """Stores a row and adds to the statistics' sums of deviations from `near`, an element of the first row."""
    dtype: tl.constexpr = out[0].dtype.element_ty
    # An element in the middle: at a border fewer taps contribute.
    first = tl.where(mask[COLUMNS // 2], totals[COLUMNS // 2], totals[0])
    near = tl.where(is_first, first.to(dtype).to(tl.float32), near)
    for i in tl.static_range(COLUMNS):
        output = totals[i].to(dtype)
        tl.store(out[i], output, mask=mask[i])
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
    once = one_pass(rows_each)
    scale, shift = load_vector(norm, 2, channel, CHANNELS)[None, :], load_vector(norm, 3, channel, CHANNELS)[None, :]
    w0, w1, w2, w3, w4, w5, w6, w7, w8 = load_taps(weight, channel, CHANNELS)
    x = (group * STRIPS + tl.arange(0, STRIPS)) * COLUMNS
    column = x * STRIDE - 1
    mask = column_masks(column, channel, SEEN, -1, COLUMNS * STRIDE, GROUPS * STRIPS, WIDTH, CHANNELS, STRIPS, BLOCK)
    is_output = column_masks(x, channel, COLUMNS, 0, COLUMNS, GROUPS * STRIPS, ACROSS, CHANNELS, STRIPS, BLOCK)
    none = zeros(COLUMNS, STRIPS, BLOCK)
    near, sums, squares = zeros(3, STRIPS, BLOCK)

    y, down = first * STRIDE - 1, WIDTH * CHANNELS
    row = row_pointers(z, image, y, column, channel, SEEN, HEIGHT, WIDTH, CHANNELS)
    to = row_pointers(out, image, first, x, channel, COLUMNS, DOWN, ACROSS, CHANNELS)
    stored = load_row_once(row, y >= 0, mask, once, SEEN)
    row = moved(row, down, SEEN)
    one = load_row_once(row, True, mask, once, SEEN)
    row = moved(row, down, SEEN)
    two = load_row_once(row, y + 2 < HEIGHT, mask, once, SEEN)
    row = moved(row, down, SEEN)
    upper = _accumulate(none, activations(stored, y >= 0, mask, scale, shift, SEEN, CAP), w0, w1, w2, COLUMNS, STRIDE)
    if STRIDE == 1:
        a = activations(one, True, mask, scale, shift, SEEN, CAP)
        upper = _accumulate(upper, a, w3, w4, w5, COLUMNS, 1)
        middle = _accumulate(none, a, w0, w1, w2, COLUMNS, 1)
        for y in range(first + 1, last + 1):
            ahead = load_row(row, (y < last) & (y + 1 < HEIGHT), mask, SEEN)
            row = moved(row, down, SEEN)
            a = activations(two, y < HEIGHT, mask, scale, shift, SEEN, CAP)
            totals = _accumulate(upper, a, w6, w7, w8, COLUMNS, 1)
            upper = _accumulate(middle, a, w3, w4, w5, COLUMNS, 1)
            middle = _accumulate(none, a, w0, w1, w2, COLUMNS, 1)
            near, sums, squares = _store_row(to, totals, is_output, y == first + 1, near, sums, squares, COLUMNS)
            to = moved(to, ACROSS * CHANNELS, COLUMNS)
            two = ahead
    else:
        lower = moved(row, down, SEEN)
        for y in range(first, last):
            ahead = load_row(row, y + 1 < last, mask, SEEN)
            after = load_row(lower, (y + 1 < last) & (2 * y + 3 < HEIGHT), mask, SEEN)
            row, lower = moved(row, 2 * down, SEEN), moved(lower, 2 * down, SEEN)
            a = activations(one, True, mask, scale, shift, SEEN, CAP)
            upper = _accumulate(upper, a, w3, w4, w5, COLUMNS, STRIDE)
            a = activations(two, 2 * y + 1 < HEIGHT, mask, scale, shift, SEEN, CAP)
            totals = _accumulate(upper, a, w6, w7, w8, COLUMNS, STRIDE)
            upper = _accumulate(none, a, w0, w1, w2, COLUMNS, STRIDE)
            near, sums, squares = _store_row(to, totals, is_output, y == first, near, sums, squares, COLUMNS)
            to = moved(to, ACROSS * CHANNELS, COLUMNS)
            one, two = ahead, after

    count = ((last - first) * tl.minimum(tl.maximum(ACROSS - x, 0), COLUMNS)).to(tl.float32)
    deviation = sums / tl.maximum(count, 1.0)[:, None]
    mean, squares = combine_statistics(near + deviation, squares - sums * deviation, count)
    store_partial(partials, program, 0, channel, mean, 3, CHANNELS)
    store_partial(partials, program, 1, channel, squares, 3, CHANNELS)
    store_partial(partials, program, 2, channel, tl.zeros([BLOCK], tl.float32) + tl.sum(count, 0), 3, CHANNELS)
