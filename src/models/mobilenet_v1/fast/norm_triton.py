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
    first = tl.load(partials + channel, mask=channel < channels, other=0.0)
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
    scale = tl.load(weight + channel, mask=channel < channels, other=0.0) * inverse
    shift = tl.load(bias + channel, mask=channel < channels, other=0.0) - mean * scale
    store_vector(norm, 0, channel, mean, channels)
    store_vector(norm, 1, channel, inverse, channels)
    store_vector(norm, 2, channel, scale, channels)
    store_vector(norm, 3, channel, shift, channels)
    old = tl.load(running_mean + channel, mask=channel < channels, other=0.0)
    tl.store(running_mean + channel, old + momentum * (mean - old), mask=channel < channels)
    old = tl.load(running_var + channel, mask=channel < channels, other=0.0)
    new = old + momentum * (distances / (count - 1) - old)
    tl.store(running_var + channel, new, mask=channel < channels)


@triton.jit
def conclude_backward(
    partials, norm, of_weight, of_bias, slopes, programs, rows, channels,
    PARTS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes gradients of weight and bias, and `slopes`, from the sums of g and g (z - mean) in `partials`."""
    channel = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    gradients, products = tl.zeros([WIDTH], tl.float32), tl.zeros([WIDTH], tl.float32)
    for begin in range(0, programs, BLOCK):
        program = begin + tl.arange(0, BLOCK)
        mask = (program < programs)[:, None] & (channel < channels)[None, :]
        pointers = partials + program[:, None] * (PARTS * channels) + channel[None, :]
        gradients += tl.sum(tl.load(pointers, mask=mask, other=0.0), 0)
        products += tl.sum(tl.load(pointers + channels, mask=mask, other=0.0), 0)
    mean, inverse = load_vector(norm, 0, channel, channels), load_vector(norm, 1, channel, channels)
    scale = load_vector(norm, 2, channel, channels)
    products *= inverse
    tl.store(of_weight + channel, products, mask=channel < channels)
    tl.store(of_bias + channel, gradients, mask=channel < channels)
    count = rows * 1.0
    of_output = -scale * inverse * products / count
    store_vector(slopes, 0, channel, scale, channels)
    store_vector(slopes, 1, channel, of_output, channels)
    store_vector(slopes, 2, channel, -scale * gradients / count - of_output * mean, channels)


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
