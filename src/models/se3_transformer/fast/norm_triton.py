# type: ignore  (the type checker reads Triton as Python)
"""NormSE3 of features with equal channels in degrees 0 .. L as Triton kernels: one pass over the features each way.

Degrees are independent of one another. A program has one degree of BN nodes at a time and reads each component as a
tile [BN, WIDTH], so that only the channels are summed across threads. The second reading is from the cache.
"""

import triton
import triton.language as tl


@triton.jit
def _offsets(
    nodes, block, degree, DEGREES: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, BN: tl.constexpr
):
    """Offsets of the first component of a degree of BN nodes, [BN, WIDTH], and which of them exist."""
    node, channel = block.to(tl.int64) * BN + tl.arange(0, BN), tl.arange(0, WIDTH)
    offsets = (node[:, None] * (DEGREES * DEGREES) + degree * degree) * CHANNELS + channel[None, :]
    return offsets, (node < nodes)[:, None] & (channel < CHANNELS)[None, :]


@triton.jit
def _normalised(square, is_channel, weight, bias, smallest, eps, CHANNELS: tl.constexpr):
    """From squared lengths [BN, WIDTH]: clamp mask, lengths, normalised lengths, 1 / deviation, and new lengths."""
    is_small = square <= smallest * smallest
    length = tl.sqrt(tl.maximum(square, smallest * smallest))
    mean = tl.sum(tl.where(is_channel, length, 0.0), 1) / CHANNELS
    off = tl.where(is_channel, length - mean[:, None], 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(off * off, 1) / CHANNELS + eps)
    unit = off * inverse[:, None]
    scaled = unit * weight[None, :] + bias[None, :]
    return is_small, length, unit, inverse, tl.maximum(scaled, 0.0)


@triton.jit
def _affine(weight, bias, degree, CHANNELS: tl.constexpr, WIDTH: tl.constexpr):
    channel = tl.arange(0, WIDTH)
    is_channel = channel < CHANNELS
    w = tl.load(weight + degree * CHANNELS + channel, mask=is_channel, other=0.0).to(tl.float32)
    return w, tl.load(bias + degree * CHANNELS + channel, mask=is_channel, other=0.0).to(tl.float32)


@triton.jit
def norm(
    features, weight, bias, out, nodes, smallest, eps,
    DEGREES: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    is_channel = (tl.arange(0, WIDTH) < CHANNELS)[None, :]
    for degree in tl.static_range(DEGREES):
        if tl.program_id(1) == degree:
            offsets, mask = _offsets(nodes, tl.program_id(0), degree, DEGREES, CHANNELS, WIDTH, BN)
            square = tl.zeros([BN, WIDTH], tl.float32)
            for c in tl.static_range(2 * degree + 1):
                x = tl.load(features + offsets + c * CHANNELS, mask=mask, other=0.0).to(tl.float32)
                square += x * x
            w, b = _affine(weight, bias, degree, CHANNELS, WIDTH)
            _, length, _, _, new = _normalised(square, is_channel, w, b, smallest, eps, CHANNELS)
            scale = new * (1.0 / length)
            for c in tl.static_range(2 * degree + 1):
                x = tl.load(features + offsets + c * CHANNELS, mask=mask, other=0.0).to(tl.float32)
                tl.store(out + offsets + c * CHANNELS, (x * scale).to(out.dtype.element_ty), mask=mask)


@triton.jit
def norm_backward(
    features, weight, bias, grad, grad_features, partials, nodes, blocks, smallest, eps,
    DEGREES: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Gradients of `blocks` times BN nodes, and of weight and bias over these, [programs, 2, degrees, channels]."""
    channel = tl.arange(0, WIDTH)
    is_channel = (channel < CHANNELS)[None, :]
    for degree in tl.static_range(DEGREES):
        if tl.program_id(1) == degree:
            w, b = _affine(weight, bias, degree, CHANNELS, WIDTH)
            of_weight, of_bias = tl.zeros([BN, WIDTH], tl.float32), tl.zeros([BN, WIDTH], tl.float32)
            for block in range(blocks):
                at = tl.program_id(0) * blocks + block
                offsets, mask = _offsets(nodes, at, degree, DEGREES, CHANNELS, WIDTH, BN)
                square, product = tl.zeros([BN, WIDTH], tl.float32), tl.zeros([BN, WIDTH], tl.float32)
                for c in tl.static_range(2 * degree + 1):
                    x = tl.load(features + offsets + c * CHANNELS, mask=mask, other=0.0).to(tl.float32)
                    g = tl.load(grad + offsets + c * CHANNELS, mask=mask, other=0.0).to(tl.float32)
                    square += x * x
                    product += g * x
                is_small, length, unit, inverse, new = _normalised(square, is_channel, w, b, smallest, eps, CHANNELS)
                reciprocal = 1.0 / length
                grad_new = tl.where(new > 0, product * reciprocal, 0.0)
                of_weight += grad_new * unit
                of_bias += grad_new
                grad_unit = grad_new * w[None, :]
                mean = (tl.sum(grad_unit, 1) / CHANNELS)[:, None]
                along = (tl.sum(grad_unit * unit, 1) / CHANNELS)[:, None]
                scale = new * reciprocal
                grad_length = (grad_unit - mean - unit * along) * inverse[:, None] - product * reciprocal * scale
                pull = tl.where(is_small, 0.0, grad_length) * reciprocal  # a clamped length is a constant
                for c in tl.static_range(2 * degree + 1):
                    x = tl.load(features + offsets + c * CHANNELS, mask=mask, other=0.0).to(tl.float32)
                    g = tl.load(grad + offsets + c * CHANNELS, mask=mask, other=0.0).to(tl.float32)
                    target = grad_features + offsets + c * CHANNELS
                    tl.store(target, (g * scale + x * pull).to(grad_features.dtype.element_ty), mask=mask)
            target = partials + (tl.program_id(0).to(tl.int64) * 2 * DEGREES + degree) * CHANNELS + channel
            tl.store(target, tl.sum(of_weight, 0), mask=channel < CHANNELS)
            tl.store(target + DEGREES * CHANNELS, tl.sum(of_bias, 0), mask=channel < CHANNELS)
