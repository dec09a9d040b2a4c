# type: ignore  (the type checker reads Triton as Python)
"""Strips of columns, in which the depthwise kernels move down an image row by row.

A strip is COUNT adjacent columns, a tuple of tensors [STRIPS, BLOCK] over a program's strips and channels. So a thread
holds all columns of its strips, and neighbouring columns and rows are loaded and computed once.

A loop carries a pointer for each column. For any other load or store, Triton's pass TritonGPUCoalesce visits all
operations that are connected with it, which took 97% of 7.5 s. So loads before the loop over rows are in a loop too, of
one pass, and so are stores after it. LLVM makes nearly the same instructions of them.
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
    numbers, image, row, column, channel, COUNT: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    """Returns pointers to COUNT columns of a row, from a column for each strip."""
    start = numbers + image.to(tl.int64) * (HEIGHT * WIDTH * CHANNELS)
    at = start + (((row * WIDTH + column) * CHANNELS)[:, None] + channel[None, :])
    pointers = ()
    for i in tl.static_range(COUNT):
        pointers += (at + i * CHANNELS,)
    return pointers


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
def load_row(row, is_row, mask, COUNT: tl.constexpr):
    """Loads the columns of a row; 0 outside of the image."""
    columns = ()
    for i in tl.static_range(COUNT):
        columns += (tl.load(row[i], mask=mask[i] & is_row, other=0.0),)
    return columns


@triton.jit
def one_pass(count):
    """Returns 1. LLVM finds that out, but no pass of Triton, which would remove the loop."""
    return tl.minimum(tl.maximum(count, 1), 1)


@triton.jit
def load_row_once(row, is_row, mask, once, COUNT: tl.constexpr):
    """Does the same outside of the loop over rows; `once` is 1."""
    columns = ()
    for _ in tl.static_range(COUNT):
        columns += (tl.zeros(row[0].shape, row[0].dtype.element_ty),)
    for _ in range(once):
        columns = load_row(row, is_row, mask, COUNT)
        row = moved(row, 16, COUNT)  # a loop carries what changes; 16 keeps the alignment
    return columns


@triton.jit
def store_partials(
    partials, program, vectors, channel, once, COUNT: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    """Stores a program's vectors in `partials` [programs, COUNT, CHANNELS]."""
    start = partials + program.to(tl.int64) * (COUNT * CHANNELS) + channel
    pointers = ()
    for i in tl.static_range(COUNT):
        pointers += (start + i * CHANNELS,)
    for _ in range(once):
        for i in tl.static_range(COUNT):
            tl.store(pointers[i], vectors[i], mask=channel < CHANNELS)
        pointers = moved(pointers, 16, COUNT)


@triton.jit
def moved(columns, distance, COUNT: tl.constexpr):
    """Returns the pointers `distance` further."""
    pointers = ()
    for i in tl.static_range(COUNT):
        pointers += (columns[i] + distance,)
    return pointers


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
