# type: ignore  (the type checker reads Triton as Python)
"""3 x 3 depthwise convolutions with padding 1, on rows of channels: HEIGHT x WIDTH pixels to DOWN x ACROSS.

A program goes over TILES tiles of PIXELS pixels, in the order of memory, so that rows above and below are near, and
keeps sums in registers all the way. `weight` [CHANNELS, 9] is float32.
"""

import triton
import triton.language as tl

from src.models.mobilenet_v1.kernels.fused.common_triton import followed, note, passed, relu, slope, together, vector


@triton.jit
def _place(image, row, column, channel, is_pixel, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr):
    """Where a pixel's channels are, and whether it is within its image."""
    wanted = is_pixel & (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
    pixel = (image * HEIGHT + row) * WIDTH + column
    place = pixel.to(tl.int64)[:, None] * CHANNELS + channel[None, :]
    return place, wanted[:, None] & (channel < CHANNELS)[None, :]


@triton.jit
def _tap(weight, number: tl.constexpr, channel, CHANNELS: tl.constexpr):
    return tl.load(weight + channel * 9 + number, mask=channel < CHANNELS, other=0.0)[None, :]


@triton.jit
def _seen(
    z, image, row, column, channel, is_pixel, scale, shift,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """What the layer before handed on at a pixel; 0 outside of the image."""
    place, wanted = _place(image, row, column, channel, is_pixel, HEIGHT, WIDTH, CHANNELS)
    return tl.where(wanted, relu(tl.load(z + place, mask=wanted, other=0.0).to(tl.float32) * scale + shift), 0.0)


@triton.jit
def forward(
    z, norm, weight, out, partials, pixels,
    STRIDE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, PIXELS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """`out` [pixels, CHANNELS], and `partials` [programs, 2, CHANNELS]: mean and squared distances."""
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    scale, shift = vector(norm, 2, channel, CHANNELS)[None, :], vector(norm, 3, channel, CHANNELS)[None, :]
    w0, w1, w2 = (
        _tap(weight, 0, channel, CHANNELS), _tap(weight, 1, channel, CHANNELS), _tap(weight, 2, channel, CHANNELS)
    )  # fmt: skip
    w3, w4, w5 = (
        _tap(weight, 3, channel, CHANNELS), _tap(weight, 4, channel, CHANNELS), _tap(weight, 5, channel, CHANNELS)
    )  # fmt: skip
    w6, w7, w8 = (
        _tap(weight, 6, channel, CHANNELS), _tap(weight, 7, channel, CHANNELS), _tap(weight, 8, channel, CHANNELS)
    )  # fmt: skip
    mean, squares = tl.zeros([PIXELS, BLOCK], tl.float32), tl.zeros([PIXELS, BLOCK], tl.float32)
    count = tl.zeros([PIXELS], tl.float32)
    for tile in range(TILES):
        pixel = (tl.program_id(0) * TILES + tile) * PIXELS + tl.arange(0, PIXELS)
        is_pixel = pixel < pixels
        image, y, x = pixel // (DOWN * ACROSS), pixel // ACROSS % DOWN * STRIDE, pixel % ACROSS * STRIDE
        total = w0 * _seen(z, image, y - 1, x - 1, channel, is_pixel, scale, shift, HEIGHT, WIDTH, CHANNELS)
        total += w1 * _seen(z, image, y - 1, x, channel, is_pixel, scale, shift, HEIGHT, WIDTH, CHANNELS)
        total += w2 * _seen(z, image, y - 1, x + 1, channel, is_pixel, scale, shift, HEIGHT, WIDTH, CHANNELS)
        total += w3 * _seen(z, image, y, x - 1, channel, is_pixel, scale, shift, HEIGHT, WIDTH, CHANNELS)
        total += w4 * _seen(z, image, y, x, channel, is_pixel, scale, shift, HEIGHT, WIDTH, CHANNELS)
        total += w5 * _seen(z, image, y, x + 1, channel, is_pixel, scale, shift, HEIGHT, WIDTH, CHANNELS)
        total += w6 * _seen(z, image, y + 1, x - 1, channel, is_pixel, scale, shift, HEIGHT, WIDTH, CHANNELS)
        total += w7 * _seen(z, image, y + 1, x, channel, is_pixel, scale, shift, HEIGHT, WIDTH, CHANNELS)
        total += w8 * _seen(z, image, y + 1, x + 1, channel, is_pixel, scale, shift, HEIGHT, WIDTH, CHANNELS)
        found = total.to(out.dtype.element_ty)
        place = pixel.to(tl.int64)[:, None] * CHANNELS + channel[None, :]
        tl.store(out + place, found, mask=is_pixel[:, None] & (channel < CHANNELS)[None, :])
        mean, squares, count = followed(mean, squares, count, found.to(tl.float32), is_pixel)
    mean, squares = together(mean, squares, count)
    note(partials, tl.program_id(0), 0, channel, mean, 2, CHANNELS)
    note(partials, tl.program_id(0), 1, channel, squares, 2, CHANNELS)


@triton.jit
def _input(z, place, wanted, scale, shift):
    """What was stored, and what the layer before handed on; 0 outside of the image."""
    stored = tl.load(z + place, mask=wanted, other=0.0).to(tl.float32)
    before = stored * scale + shift
    return stored, before, tl.where(wanted, relu(before), 0.0)


@triton.jit
def _hand_back(g_in, place, wanted, total, stored, before, mean, gradients, products):
    """Writes the gradient of an input and adds to its sums."""
    found = passed(total, before).to(g_in.dtype.element_ty)
    tl.store(g_in + place, found, mask=wanted)
    found = tl.where(wanted, found.to(tl.float32), 0.0)
    return gradients + found, products + found * (stored - mean)


@triton.jit
def _slope(
    g, out, image, row, column, channel, is_pixel, p, q, r,
    DOWN: tl.constexpr, ACROSS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The gradient of an output pixel; 0 outside of the image."""
    place, wanted = _place(image, row, column, channel, is_pixel, DOWN, ACROSS, CHANNELS)
    return slope(g, out, place, wanted, p, q, r)


@triton.jit
def backward(
    g, out, slopes, weight, z, norm, g_in, partials, pixels,
    STRIDE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, PIXELS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """`g_in` like z, and `partials` [programs, 11, CHANNELS]: sums of g_in, of g_in (z - mean), and of the weight's 9.

    A pixel of a tile is one of the output. With stride 1 its input is the pixel at the same place, which meets it and
    its 8 neighbours. With stride 2 its inputs are the four from twice its place on, which meet it and its neighbours
    to the right, below, and both: 9 meetings again.
    """
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mean = vector(norm, 0, channel, CHANNELS)[None, :]
    scale, shift = vector(norm, 2, channel, CHANNELS)[None, :], vector(norm, 3, channel, CHANNELS)[None, :]
    p, q = vector(slopes, 0, channel, CHANNELS)[None, :], vector(slopes, 1, channel, CHANNELS)[None, :]
    r = vector(slopes, 2, channel, CHANNELS)[None, :]
    w0, w1, w2 = (
        _tap(weight, 0, channel, CHANNELS), _tap(weight, 1, channel, CHANNELS), _tap(weight, 2, channel, CHANNELS)
    )  # fmt: skip
    w3, w4, w5 = (
        _tap(weight, 3, channel, CHANNELS), _tap(weight, 4, channel, CHANNELS), _tap(weight, 5, channel, CHANNELS)
    )  # fmt: skip
    w6, w7, w8 = (
        _tap(weight, 6, channel, CHANNELS), _tap(weight, 7, channel, CHANNELS), _tap(weight, 8, channel, CHANNELS)
    )  # fmt: skip
    nothing = tl.zeros([PIXELS, BLOCK], tl.float32)
    gradients, products = nothing, nothing
    s0, s1, s2, s3, s4, s5, s6, s7, s8 = (
        nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing
    )  # fmt: skip
    for tile in range(TILES):
        pixel = (tl.program_id(0) * TILES + tile) * PIXELS + tl.arange(0, PIXELS)
        is_pixel = pixel < pixels
        image, down, across = pixel // (DOWN * ACROSS), pixel // ACROSS % DOWN, pixel % ACROSS
        if STRIDE == 1:
            place, wanted = _place(image, down, across, channel, is_pixel, HEIGHT, WIDTH, CHANNELS)
            stored, before, a = _input(z, place, wanted, scale, shift)
            d = _slope(g, out, image, down + 1, across + 1, channel, is_pixel, p, q, r, DOWN, ACROSS, CHANNELS)
            total, s0 = w0 * d, s0 + a * d
            d = _slope(g, out, image, down + 1, across, channel, is_pixel, p, q, r, DOWN, ACROSS, CHANNELS)
            total, s1 = total + w1 * d, s1 + a * d
            d = _slope(g, out, image, down + 1, across - 1, channel, is_pixel, p, q, r, DOWN, ACROSS, CHANNELS)
            total, s2 = total + w2 * d, s2 + a * d
            d = _slope(g, out, image, down, across + 1, channel, is_pixel, p, q, r, DOWN, ACROSS, CHANNELS)
            total, s3 = total + w3 * d, s3 + a * d
            d = _slope(g, out, image, down, across, channel, is_pixel, p, q, r, DOWN, ACROSS, CHANNELS)
            total, s4 = total + w4 * d, s4 + a * d
            d = _slope(g, out, image, down, across - 1, channel, is_pixel, p, q, r, DOWN, ACROSS, CHANNELS)
            total, s5 = total + w5 * d, s5 + a * d
            d = _slope(g, out, image, down - 1, across + 1, channel, is_pixel, p, q, r, DOWN, ACROSS, CHANNELS)
            total, s6 = total + w6 * d, s6 + a * d
            d = _slope(g, out, image, down - 1, across, channel, is_pixel, p, q, r, DOWN, ACROSS, CHANNELS)
            total, s7 = total + w7 * d, s7 + a * d
            d = _slope(g, out, image, down - 1, across - 1, channel, is_pixel, p, q, r, DOWN, ACROSS, CHANNELS)
            total, s8 = total + w8 * d, s8 + a * d
            gradients, products = _hand_back(g_in, place, wanted, total, stored, before, mean, gradients, products)
        else:
            here = _slope(g, out, image, down, across, channel, is_pixel, p, q, r, DOWN, ACROSS, CHANNELS)
            right = _slope(g, out, image, down, across + 1, channel, is_pixel, p, q, r, DOWN, ACROSS, CHANNELS)
            below = _slope(g, out, image, down + 1, across, channel, is_pixel, p, q, r, DOWN, ACROSS, CHANNELS)
            both = _slope(g, out, image, down + 1, across + 1, channel, is_pixel, p, q, r, DOWN, ACROSS, CHANNELS)

            place, wanted = _place(image, 2 * down, 2 * across, channel, is_pixel, HEIGHT, WIDTH, CHANNELS)
            stored, before, a = _input(z, place, wanted, scale, shift)
            s4 += a * here
            gradients, products = _hand_back(g_in, place, wanted, w4 * here, stored, before, mean, gradients, products)
            place, wanted = _place(image, 2 * down, 2 * across + 1, channel, is_pixel, HEIGHT, WIDTH, CHANNELS)
            stored, before, a = _input(z, place, wanted, scale, shift)
            s5, s3 = s5 + a * here, s3 + a * right
            total = w5 * here + w3 * right
            gradients, products = _hand_back(g_in, place, wanted, total, stored, before, mean, gradients, products)
            place, wanted = _place(image, 2 * down + 1, 2 * across, channel, is_pixel, HEIGHT, WIDTH, CHANNELS)
            stored, before, a = _input(z, place, wanted, scale, shift)
            s7, s1 = s7 + a * here, s1 + a * below
            total = w7 * here + w1 * below
            gradients, products = _hand_back(g_in, place, wanted, total, stored, before, mean, gradients, products)
            place, wanted = _place(image, 2 * down + 1, 2 * across + 1, channel, is_pixel, HEIGHT, WIDTH, CHANNELS)
            stored, before, a = _input(z, place, wanted, scale, shift)
            s8, s6, s2, s0 = s8 + a * here, s6 + a * right, s2 + a * below, s0 + a * both
            total = w8 * here + w6 * right + w2 * below + w0 * both
            gradients, products = _hand_back(g_in, place, wanted, total, stored, before, mean, gradients, products)
    program = tl.program_id(0)
    note(partials, program, 0, channel, tl.sum(gradients, 0), 11, CHANNELS)
    note(partials, program, 1, channel, tl.sum(products, 0), 11, CHANNELS)
    note(partials, program, 2, channel, tl.sum(s0, 0), 11, CHANNELS)
    note(partials, program, 3, channel, tl.sum(s1, 0), 11, CHANNELS)
    note(partials, program, 4, channel, tl.sum(s2, 0), 11, CHANNELS)
    note(partials, program, 5, channel, tl.sum(s3, 0), 11, CHANNELS)
    note(partials, program, 6, channel, tl.sum(s4, 0), 11, CHANNELS)
    note(partials, program, 7, channel, tl.sum(s5, 0), 11, CHANNELS)
    note(partials, program, 8, channel, tl.sum(s6, 0), 11, CHANNELS)
    note(partials, program, 9, channel, tl.sum(s7, 0), 11, CHANNELS)
    note(partials, program, 10, channel, tl.sum(s8, 0), 11, CHANNELS)


@triton.jit
def conclude_weight(partials, out, programs, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """`out` [CHANNELS, 9] of the last 9 that `backward` has noted, one a program."""
    channel, tap = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH), tl.program_id(1)
    total = tl.zeros([WIDTH], tl.float32)
    for begin in range(0, programs, BLOCK):
        program = begin + tl.arange(0, BLOCK)
        wanted = (program < programs)[:, None] & (channel < CHANNELS)[None, :]
        place = (program[:, None] * 11 + 2 + tap) * CHANNELS + channel[None, :]
        total += tl.sum(tl.load(partials + place, mask=wanted, other=0.0), 0)
    tl.store(out + channel * 9 + tap, total, mask=channel < CHANNELS)
