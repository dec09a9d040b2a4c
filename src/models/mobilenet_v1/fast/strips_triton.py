# type: ignore  (the type checker reads Triton as Python)
"""Strips of columns, in which the depthwise kernels move down an image row by row.

A strip is COUNT adjacent columns, a tuple of tensors [STRIPS, BLOCK] over a program's strips and channels. So a thread
holds all columns of its strips, and neighbouring columns and rows are loaded and computed once.
"""

import triton
import triton.language as tl

from src.models.mobilenet_v1.fast.common_triton import relu


@triton.jit
def program_share(segments, rows_each, ROWS: tl.constexpr, GROUPS: tl.constexpr, BLOCKS: tl.constexpr):
    """Returns a program's block of channels, index within the block, group of strips, image, first row, end row.

    Neighbouring programs read the same rows; the end row is excluded.
    """
    block, program = tl.program_id(0) % BLOCKS, tl.program_id(0) // BLOCKS
    group, segment, image = program % GROUPS, program // GROUPS % segments, program // GROUPS // segments
    first = segment * rows_each
    return block, program, group, image, first, tl.minimum(first + rows_each, ROWS)


@triton.jit
def row_pointers(
    numbers, image, row, column, channel, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    """Returns pointers to a row, at a column for each strip."""
    start = numbers + image.to(tl.int64) * (HEIGHT * WIDTH * CHANNELS)
    return start + (((row * WIDTH + column) * CHANNELS)[:, None] + channel[None, :])


@triton.jit
def column_masks(
    column, channel, COUNT: tl.constexpr, FIRST: tl.constexpr, STEP: tl.constexpr, ALL: tl.constexpr,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, STRIPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Returns masks: for each of COUNT columns, whether it is in the image and the channel exists.

    ALL strips of a row begin at FIRST, STEP apart, so that conditions that always hold are removed at compile time.
    """
    masks = ()
    for i in tl.static_range(COUNT):
        mask = tl.full([STRIPS, BLOCK], True, tl.int1)
        if CHANNELS % BLOCK != 0:
            mask = mask & (channel < CHANNELS)[None, :]
        if FIRST + i < 0:
            mask = mask & (column + i >= 0)[:, None]
        if FIRST + i + (ALL - 1) * STEP >= WIDTH:
            mask = mask & (column + i < WIDTH)[:, None]
        masks += (mask,)
    return masks


@triton.jit
def zeros(COUNT: tl.constexpr, STRIPS: tl.constexpr, BLOCK: tl.constexpr):
    columns = ()
    for _ in tl.static_range(COUNT):
        columns += (tl.zeros([STRIPS, BLOCK], tl.float32),)
    return columns


@triton.jit
def load_taps(weight, channel, CHANNELS: tl.constexpr):
    """Returns the 9 weights of each channel."""
    taps = ()
    for i in tl.static_range(9):
        taps += (tl.load(weight + channel * 9 + i, mask=channel < CHANNELS, other=0.0)[None, :],)
    return taps


@triton.jit
def load_row(row, is_row, mask, COUNT: tl.constexpr, CHANNELS: tl.constexpr):
    """Loads the columns of a row; 0 outside of the image."""
    columns = ()
    for i in tl.static_range(COUNT):
        columns += (tl.load(row + i * CHANNELS, mask=mask[i] & is_row, other=0.0),)
    return columns


@triton.jit
def activations(stored, is_row, mask, scale, shift, COUNT: tl.constexpr, CAP: tl.constexpr):
    """Returns the previous layer's output, BatchNorm and ReLU of `stored`; 0 outside of the image."""
    shift = tl.where(is_row, shift, 0.0)
    outputs = ()
    for i in tl.static_range(COUNT):
        outputs += (tl.where(mask[i], relu(stored[i].to(tl.float32) * scale + shift, CAP), 0.0),)
    return outputs


@triton.jit
def output_gradients(g, out, is_row, mask, p, q, r, COUNT: tl.constexpr):
    """Returns the gradients of outputs from g and z; 0 outside of the image."""
    r = tl.where(is_row, r, 0.0)
    gradients = ()
    for i in tl.static_range(COUNT):
        d = p * g[i].to(tl.float32) + (q * out[i].to(tl.float32) + r)
        gradients += (tl.where(mask[i], d, 0.0),)
    return gradients


@triton.jit
def round_to(numbers, dtype: tl.constexpr, COUNT: tl.constexpr):
    """Casts columns to the stored dtype, which halves the registers in half precision."""
    rounded = ()
    for i in tl.static_range(COUNT):
        rounded += (numbers[i].to(dtype),)
    return rounded
