# type: ignore  (the type checker reads Triton as Python)
"""The first convolution, 3 x 3 with padding 1 over all colours, as products with patches gathered from the images.

A patch is a row of TAPS elements, the colours of a tap adjacent as in memory. `weight` [OUTPUTS, TAPS] has the
products' dtype; images [images, HEIGHT, WIDTH, COLOURS] are cast to it when they are loaded.
"""

import triton
import triton.language as tl

from src.models.mobilenet_v1.fast.common_triton import (
    load_vector,
    merge_statistics,
    norm_gradient,
    store_partial,
)


@triton.jit
def _patches(
    images, pixel, pixels, tap, dtype: tl.constexpr,
    STRIDE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr,
    COLOURS: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Returns patches [pixel, tap]; 0 outside of the image."""
    image, down, across = pixel // (DOWN * ACROSS), pixel // ACROSS % DOWN, pixel % ACROSS
    row = (down * STRIDE - 1)[:, None] + (tap // (3 * COLOURS))[None, :]
    column = (across * STRIDE - 1)[:, None] + (tap // COLOURS % 3)[None, :]
    offset = ((image[:, None] * HEIGHT + row) * WIDTH + column).to(tl.int64) * COLOURS + (tap % COLOURS)[None, :]
    inside = (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
    mask = inside & (pixel < pixels)[:, None] & (tap < 9 * COLOURS)[None, :]
    values = tl.load(images + offset, mask=mask, other=0.0).to(dtype)
    return values.to(tl.float32) if UPCAST else values


@triton.jit
def forward(
    images, weight, out, partials, pixels,
    STRIDE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr,
    COLOURS: tl.constexpr, OUTPUTS: tl.constexpr, PIXELS: tl.constexpr, BLOCK: tl.constexpr, TAPS: tl.constexpr,
    TILES: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Writes `out` [pixels, OUTPUTS] and `partials` [programs, 3, OUTPUTS]: mean, squared deviations, count."""
    channel, tap = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, TAPS)
    is_weight = (tap < 9 * COLOURS)[:, None] & (channel < OUTPUTS)[None, :]
    b = tl.load(weight + channel[None, :] * (9 * COLOURS) + tap[:, None], mask=is_weight, other=0.0)
    b = b.to(tl.float32) if UPCAST else b
    mean, squares = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    count = 0
    for tile in range(TILES):
        begin = (tl.program_id(0) * TILES + tile) * PIXELS
        pixel = begin + tl.arange(0, PIXELS)
        a = _patches(
            images, pixel, pixels, tap, weight.dtype.element_ty, STRIDE, HEIGHT, WIDTH, DOWN, ACROSS, COLOURS, UPCAST
        )
        output = tl.dot(a, b, input_precision=PRECISION).to(out.dtype.element_ty)
        offset = pixel.to(tl.int64)[:, None] * OUTPUTS + channel[None, :]
        tl.store(out + offset, output, mask=(pixel < pixels)[:, None] & (channel < OUTPUTS)[None, :])
        number = tl.minimum(tl.maximum(pixels - begin, 0), PIXELS)
        mean, squares = merge_statistics(mean, squares, count, output.to(tl.float32), pixel < pixels, number)
        count += number
    store_partial(partials, tl.program_id(0), 0, channel, mean, 3, OUTPUTS)
    store_partial(partials, tl.program_id(0), 1, channel, squares, 3, OUTPUTS)
    store_partial(partials, tl.program_id(0), 2, channel, tl.zeros([BLOCK], tl.float32) + count, 3, OUTPUTS)


@triton.jit
def backward_weight(
    g, out, slopes, images, shares, pixels,
    STRIDE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr,
    COLOURS: tl.constexpr, OUTPUTS: tl.constexpr, PIXELS: tl.constexpr, BLOCK: tl.constexpr, TAPS: tl.constexpr,
    TILES: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Writes `shares` [programs, OUTPUTS, 9 * COLOURS], the weight's gradient from each program's pixels."""
    channel, tap = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, TAPS)
    p, q, r = (
        load_vector(slopes, 0, channel, OUTPUTS),
        load_vector(slopes, 1, channel, OUTPUTS),
        load_vector(slopes, 2, channel, OUTPUTS),
    )
    total = tl.zeros([BLOCK, TAPS], tl.float32)
    for tile in range(TILES):
        pixel = (tl.program_id(0) * TILES + tile) * PIXELS + tl.arange(0, PIXELS)
        mask = (pixel < pixels)[:, None] & (channel < OUTPUTS)[None, :]
        offset = pixel.to(tl.int64)[:, None] * OUTPUTS + channel[None, :]
        a = norm_gradient(g, out, offset, mask, p[None, :], q[None, :], r[None, :]).to(g.dtype.element_ty)
        a = a.to(tl.float32) if UPCAST else a
        b = _patches(
            images, pixel, pixels, tap, g.dtype.element_ty, STRIDE, HEIGHT, WIDTH, DOWN, ACROSS, COLOURS, UPCAST
        )
        total = tl.dot(tl.trans(a), b, total, input_precision=PRECISION)
    offset = (tl.program_id(0) * OUTPUTS + channel[:, None]) * (9 * COLOURS) + tap[None, :]
    tl.store(shares + offset, total, mask=(channel < OUTPUTS)[:, None] & (tap < 9 * COLOURS)[None, :])
