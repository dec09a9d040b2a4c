# type: ignore  (the type checker reads Triton as Python)
"""BatchNorm's statistics and gradients from partial sums, and average pooling."""

import triton
import triton.language as tl

from src.models.mobilenet_v1.fast.common_triton import (
    load_vector,
    relu,
    relu_gradient,
    store_partial,
    store_vector,
)


@triton.jit
def conclude(
    partials, weight, bias, running_mean, running_var, norm, programs, rows, channels, eps, momentum,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes `norm` and the running statistics from `partials`: mean, squared deviations and count of each program.

    Means are taken relative to the first program's, so that their squares do not cancel.
    """
    channel = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    is_channel = (channel < channels)[None, :]
    # All vectors before the sums: no load moves across a sum's barriers, and each would add its latency.
    gain, offset = load_vector(weight, 0, channel, channels), load_vector(bias, 0, channel, channels)
    old_mean, old_var = load_vector(running_mean, 0, channel, channels), load_vector(running_var, 0, channel, channels)
    first = load_vector(partials, 0, channel, channels)
    total, squares = tl.zeros([WIDTH], tl.float32), tl.zeros([WIDTH], tl.float32)
    for begin in range(0, programs, BLOCK):
        program = begin + tl.arange(0, BLOCK)
        mask = (program < programs)[:, None] & is_channel
        pointers = partials + program[:, None] * (3 * channels) + channel[None, :]
        apart = tl.where(mask, tl.load(pointers, mask=mask, other=0.0) - first[None, :], 0.0)
        number = tl.load(pointers + 2 * channels, mask=mask, other=0.0)
        total += tl.sum(apart * number, 0)
        squares += tl.sum(apart * apart * number + tl.load(pointers + channels, mask=mask, other=0.0), 0)
    count = rows * 1.0
    apart = total / count
    mean, distances = first + apart, squares - total * apart
    var = distances / count
    inverse = 1 / tl.sqrt_rn(var + eps)
    scale = gain * inverse
    shift = offset - mean * scale
    store_vector(norm, 0, channel, mean, channels)
    store_vector(norm, 1, channel, inverse, channels)
    store_vector(norm, 2, channel, scale, channels)
    store_vector(norm, 3, channel, shift, channels)
    store_vector(running_mean, 0, channel, old_mean + momentum * (mean - old_mean), channels)
    new_var = old_var + momentum * (distances / (count - 1) - old_var)
    store_vector(running_var, 0, channel, new_var, channels)


@triton.jit
def _sums_of(
    partials, part, COUNT: tl.constexpr, channel, programs, channels,
    PARTS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Returns the sums over all programs of vector `part` in `partials` [programs, PARTS, channels], and of the next.

    The second one is 0 if COUNT is 1. Both are loaded before either is added: loads do not move across barriers.
    """
    total, next_total = tl.zeros([WIDTH], tl.float32), tl.zeros([WIDTH], tl.float32)
    for begin in range(0, programs, BLOCK):
        program = begin + tl.arange(0, BLOCK)
        mask = (program < programs)[:, None] & (channel < channels)[None, :]
        pointers = partials + (program[:, None] * PARTS + part) * channels + channel[None, :]
        values = tl.load(pointers, mask=mask, other=0.0)
        if COUNT == 2:
            next_total += tl.sum(tl.load(pointers + channels, mask=mask, other=0.0), 0)
        total += tl.sum(values, 0)
    return total, next_total


@triton.jit
def conclude_backward(
    partials, norm, gradients, programs, rows, channels, PARTS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Writes BatchNorm's gradients and `slopes` from the sums of g and g (z - mean) in `partials`.

    `gradients` are vectors of all channels: of the weight, of the bias, and the 3 slopes. Then follow [channels,
    PARTS - 2], the sums of the other vectors in `partials`, one program each: the gradient of a depthwise weight.
    """
    channel, tap = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH), tl.program_id(1) - 1
    if tap >= 0:
        total, _ = _sums_of(partials, 2 + tap, 1, channel, programs, channels, PARTS, WIDTH, BLOCK)
        tl.store(gradients + 5 * channels + channel * (PARTS - 2) + tap, total, mask=channel < channels)
    else:
        mean, inverse = load_vector(norm, 0, channel, channels), load_vector(norm, 1, channel, channels)
        scale = load_vector(norm, 2, channel, channels)
        total, products = _sums_of(partials, 0, 2, channel, programs, channels, PARTS, WIDTH, BLOCK)
        products *= inverse
        count = rows * 1.0
        of_output = -scale * inverse * products / count
        store_vector(gradients, 0, channel, products, channels)
        store_vector(gradients, 1, channel, total, channels)
        store_vector(gradients, 2, channel, scale, channels)
        store_vector(gradients, 3, channel, of_output, channels)
        store_vector(gradients, 4, channel, -scale * total / count - of_output * mean, channels)


@triton.jit
def pool(z, norm, out, pixels, channels, WIDTH: tl.constexpr, ROWS: tl.constexpr, CAP: tl.constexpr):
    """Writes `out` [images, channels]: the last layer's output averaged over each image."""
    image, channel = tl.program_id(0).to(tl.int64), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    scale, shift = load_vector(norm, 2, channel, channels)[None, :], load_vector(norm, 3, channel, channels)[None, :]
    total = tl.zeros([WIDTH], tl.float32)
    for begin in range(0, pixels, ROWS):
        row = begin + tl.arange(0, ROWS)
        mask = (row < pixels)[:, None] & (channel < channels)[None, :]
        offset = (image * pixels + row[:, None]) * channels + channel[None, :]
        values = relu(tl.load(z + offset, mask=mask, other=0.0).to(tl.float32) * scale + shift, CAP)
        total += tl.sum(tl.where(mask, values, 0.0), 0)
    tl.store(out + image * channels + channel, (total / pixels).to(out.dtype.element_ty), mask=channel < channels)


@triton.jit
def pool_backward(
    gradient, z, norm, g, partials, pixels, channels, WIDTH: tl.constexpr, ROWS: tl.constexpr, CAP: tl.constexpr
):  # fmt: skip
    """Writes `g` and `partials` [images, 2, channels]: sums of g and g (z - mean)."""
    image, channel = tl.program_id(0).to(tl.int64), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    mean = load_vector(norm, 0, channel, channels)[None, :]
    scale, shift = load_vector(norm, 2, channel, channels)[None, :], load_vector(norm, 3, channel, channels)[None, :]
    share = tl.load(gradient + image * channels + channel, mask=channel < channels, other=0.0).to(tl.float32) / pixels
    gradients, products = tl.zeros([WIDTH], tl.float32), tl.zeros([WIDTH], tl.float32)
    for begin in range(0, pixels, ROWS):
        row = begin + tl.arange(0, ROWS)
        mask = (row < pixels)[:, None] & (channel < channels)[None, :]
        offset = (image * pixels + row[:, None]) * channels + channel[None, :]
        output = tl.load(z + offset, mask=mask, other=0.0).to(tl.float32)
        passed = relu_gradient(share[None, :], output * scale + shift, CAP).to(g.dtype.element_ty)
        tl.store(g + offset, passed, mask=mask)
        passed = tl.where(mask, passed.to(tl.float32), 0.0)
        gradients += tl.sum(passed, 0)
        products += tl.sum(passed * (output - mean), 0)
    store_partial(partials, image, 0, channel, gradients, 2, channels)
    store_partial(partials, image, 1, channel, products, 2, channels)
