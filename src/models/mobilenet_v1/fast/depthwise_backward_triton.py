# type: ignore  (the type checker reads Triton as Python)
"""Backward of depthwise_triton: gradients of the input and of the weight in one kernel.

A program moves down the image like the forward one. It keeps two rows of the outputs' gradients, so that each is loaded
and computed once. Each input pixel is combined with the 9 gradients around it, for its own gradient and the weight's.
"""

import triton
import triton.language as tl

from src.models.mobilenet_v1.fast.common_triton import load_vector, relu, relu_gradient
from src.models.mobilenet_v1.fast.strips_triton import (
    column_masks,
    load_row,
    load_row_once,
    load_taps,
    moved,
    one_pass,
    output_gradients,
    program_share,
    round_to,
    row_pointers,
    store_partials,
    zeros,
)  # fmt: skip


@triton.jit
def _input(stored, scale, shift, mask, CAP: tl.constexpr):
    """Returns z, the ReLU's input, and its output, which is 0 outside of the image."""
    stored = stored.to(tl.float32)
    before = stored * scale + shift
    return stored, before, tl.where(mask, relu(before, CAP), 0.0)


@triton.jit
def _store_input_gradient(g_in, mask, total, stored, before, mean, gradients, products, CAP: tl.constexpr):
    """Stores the gradient of an input and adds to its sums."""
    gradient = relu_gradient(total, before, CAP).to(g_in.dtype.element_ty)
    tl.store(g_in, gradient, mask=mask)
    gradient = tl.where(mask, gradient.to(tl.float32), 0.0)
    return gradients + gradient, products + gradient * (stored - mean)


@triton.jit
def _row_of_1(
    to, above, here, below, z, mask, w, s, mean, scale, shift, gradients, products,
    COLUMNS: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """Processes a row of inputs with three rows of gradients, one column wider at each side."""
    above, here = round_to(above, tl.float32, COLUMNS + 2), round_to(here, tl.float32, COLUMNS + 2)
    for i in tl.static_range(COLUMNS):
        stored, before, a = _input(z[i], scale, shift, mask[i], CAP)
        total = w[0] * below[i + 2] + w[1] * below[i + 1] + w[2] * below[i]
        total = total + w[3] * here[i + 2] + w[4] * here[i + 1] + w[5] * here[i]
        total = total + w[6] * above[i + 2] + w[7] * above[i + 1] + w[8] * above[i]
        s = (
            s[0] + a * below[i + 2], s[1] + a * below[i + 1], s[2] + a * below[i],
            s[3] + a * here[i + 2], s[4] + a * here[i + 1], s[5] + a * here[i],
            s[6] + a * above[i + 2], s[7] + a * above[i + 1], s[8] + a * above[i],
        )  # fmt: skip
        gradients, products = _store_input_gradient(
            to[i], mask[i], total, stored, before, mean, gradients, products, CAP
        )  # fmt: skip
    return s, gradients, products


@triton.jit
def _rows_of_2(
    to, to_lower, here, below, upper, lower, is_lower, mask, w, s, mean, scale, shift, gradients, products,
    COLUMNS: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """Processes two rows of inputs with two rows of gradients, one column wider at the right.

    The gradient at (y, x) belongs to the inputs at (2y, 2x), right of it, below it and diagonal.
    """
    here = round_to(here, tl.float32, COLUMNS + 1)
    for i in tl.static_range(COLUMNS):
        lane, right = mask[2 * i], mask[2 * i + 1]
        stored, before, a = _input(upper[2 * i], scale, shift, lane, CAP)
        s4 = s[4] + a * here[i]
        total = w[4] * here[i]
        gradients, products = _store_input_gradient(
            to[2 * i], lane, total, stored, before, mean, gradients, products, CAP
        )

        stored, before, a = _input(upper[2 * i + 1], scale, shift, right, CAP)
        s5, s3 = s[5] + a * here[i], s[3] + a * here[i + 1]
        total = w[5] * here[i] + w[3] * here[i + 1]
        gradients, products = _store_input_gradient(
            to[2 * i + 1], right, total, stored, before, mean, gradients, products, CAP
        )

        lane, right = lane & is_lower, right & is_lower
        stored, before, a = _input(lower[2 * i], scale, shift, lane, CAP)
        s7, s1 = s[7] + a * here[i], s[1] + a * below[i]
        total = w[7] * here[i] + w[1] * below[i]
        gradients, products = _store_input_gradient(
            to_lower[2 * i], lane, total, stored, before, mean, gradients, products, CAP
        )

        stored, before, a = _input(lower[2 * i + 1], scale, shift, right, CAP)
        s8, s6 = s[8] + a * here[i], s[6] + a * here[i + 1]
        s2, s0 = s[2] + a * below[i], s[0] + a * below[i + 1]
        total = w[8] * here[i] + w[6] * here[i + 1] + w[2] * below[i] + w[0] * below[i + 1]
        gradients, products = _store_input_gradient(
            to_lower[2 * i + 1], right, total, stored, before, mean, gradients, products, CAP
        )
        s = (s0, s1, s2, s3, s4, s5, s6, s7, s8)
    return s, gradients, products


@triton.jit
def backward(
    g, out, slopes, weight, z, norm, g_in, partials, segments, rows_each,
    STRIDE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr,
    CHANNELS: tl.constexpr, COLUMNS: tl.constexpr, STRIPS: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr,
    CAP: tl.constexpr,
):  # fmt: skip
    """Writes `g_in` and `partials` [programs, 11, CHANNELS]: sums of g_in, of g_in (z - mean), and the weight's 9."""
    MET: tl.constexpr = COLUMNS + 3 - STRIDE
    OWN: tl.constexpr = COLUMNS * STRIDE
    dtype: tl.constexpr = g.dtype.element_ty
    BLOCKS: tl.constexpr = (CHANNELS + BLOCK - 1) // BLOCK
    block, program, group, image, first, last = program_share(segments, rows_each, DOWN, GROUPS, BLOCKS)
    channel = block * BLOCK + tl.arange(0, BLOCK)
    once = one_pass(rows_each)
    mean = load_vector(norm, 0, channel, CHANNELS)[None, :]
    scale, shift = load_vector(norm, 2, channel, CHANNELS)[None, :], load_vector(norm, 3, channel, CHANNELS)[None, :]
    p, q = load_vector(slopes, 0, channel, CHANNELS)[None, :], load_vector(slopes, 1, channel, CHANNELS)[None, :]
    r = load_vector(slopes, 2, channel, CHANNELS)[None, :]
    w = load_taps(weight, channel, CHANNELS)
    x = (group * STRIPS + tl.arange(0, STRIPS)) * COLUMNS
    column = x - (2 - STRIDE)
    is_met = column_masks(column, channel, MET, STRIDE - 2, COLUMNS, GROUPS * STRIPS, ACROSS, CHANNELS, STRIPS, BLOCK)
    mask = column_masks(x * STRIDE, channel, OWN, 0, OWN, GROUPS * STRIPS, WIDTH, CHANNELS, STRIPS, BLOCK)
    gradients, products = zeros(2, STRIPS, BLOCK)
    s = zeros(9, STRIPS, BLOCK)

    of_g = row_pointers(g, image, first, column, channel, MET, DOWN, ACROSS, CHANNELS)
    of_out = row_pointers(out, image, first, column, channel, MET, DOWN, ACROSS, CHANNELS)
    of_z = row_pointers(z, image, first * STRIDE, x * STRIDE, channel, OWN, HEIGHT, WIDTH, CHANNELS)
    to = row_pointers(g_in, image, first * STRIDE, x * STRIDE, channel, OWN, HEIGHT, WIDTH, CHANNELS)
    if STRIDE == 1:
        own_g = load_row_once(moved(of_g, -ACROSS * CHANNELS, MET), first > 0, is_met, once, MET)
        own_out = load_row_once(moved(of_out, -ACROSS * CHANNELS, MET), first > 0, is_met, once, MET)
        above = round_to(output_gradients(own_g, own_out, first > 0, is_met, p, q, r, MET), dtype, MET)
    own_g = load_row_once(of_g, True, is_met, once, MET)
    own_out = load_row_once(of_out, True, is_met, once, MET)
    here = round_to(output_gradients(own_g, own_out, True, is_met, p, q, r, MET), dtype, MET)
    of_g = moved(of_g, ACROSS * CHANNELS, MET)
    of_out = moved(of_out, ACROSS * CHANNELS, MET)
    next_g = load_row_once(of_g, first + 1 < DOWN, is_met, once, MET)
    next_out = load_row_once(of_out, first + 1 < DOWN, is_met, once, MET)
    next_z = load_row_once(of_z, True, mask, once, OWN)
    of_g = moved(of_g, ACROSS * CHANNELS, MET)
    of_out = moved(of_out, ACROSS * CHANNELS, MET)
    if STRIDE == 2:
        of_lower = moved(of_z, WIDTH * CHANNELS, OWN)
        to_lower = moved(to, WIDTH * CHANNELS, OWN)
        next_lower = load_row_once(of_lower, 2 * first + 1 < HEIGHT, mask, once, OWN)
        of_lower = moved(of_lower, 2 * WIDTH * CHANNELS, OWN)
    of_z = moved(of_z, STRIDE * WIDTH * CHANNELS, OWN)
    for y in range(first, last):
        is_next = y + 1 < last
        below = output_gradients(next_g, next_out, y + 1 < DOWN, is_met, p, q, r, MET)
        next_g = load_row(of_g, is_next & (y + 2 < DOWN), is_met, MET)
        next_out = load_row(of_out, is_next & (y + 2 < DOWN), is_met, MET)
        ahead_z = load_row(of_z, is_next, mask, OWN)
        if STRIDE == 1:
            s, gradients, products = _row_of_1(
                to, above, here, below, next_z, mask, w, s, mean, scale, shift, gradients, products, COLUMNS, CAP,
            )  # fmt: skip
            above = here
        else:
            is_lower = is_next if HEIGHT % 2 == 0 else is_next & (2 * y + 3 < HEIGHT)
            ahead_lower = load_row(of_lower, is_lower, mask, OWN)
            s, gradients, products = _rows_of_2(
                to, to_lower, here, below, next_z, next_lower, HEIGHT % 2 == 0 or 2 * y + 1 < HEIGHT, mask, w, s,
                mean, scale, shift, gradients, products, COLUMNS, CAP,
            )  # fmt: skip
            next_lower = ahead_lower
            of_lower = moved(of_lower, 2 * WIDTH * CHANNELS, OWN)
            to_lower = moved(to_lower, 2 * WIDTH * CHANNELS, OWN)
        here = round_to(below, dtype, MET)
        next_z = ahead_z
        of_g = moved(of_g, ACROSS * CHANNELS, MET)
        of_out = moved(of_out, ACROSS * CHANNELS, MET)
        of_z = moved(of_z, STRIDE * WIDTH * CHANNELS, OWN)
        to = moved(to, STRIDE * WIDTH * CHANNELS, OWN)

    sums = (tl.sum(gradients, 0), tl.sum(products, 0))
    for i in tl.static_range(9):
        sums += (tl.sum(s[i], 0),)
    store_partials(partials, program, sums, channel, once, 11, CHANNELS)
