# type: ignore  (the type checker reads Triton as Python)
"""NormSE3 of features with equal channels in degrees 0 .. L as Triton kernels: one pass over the features each way."""

import triton
import triton.language as tl


@triton.jit
def _normalised(x, rows, channel, weight, bias, degree, smallest, eps, CHANNELS: tl.constexpr):
    """For one degree: row mask, clamp mask, lengths, normalised lengths, 1 / deviation, and new lengths."""
    is_degree = (rows >= degree * degree) & (rows < (degree + 1) * (degree + 1))
    is_channel = channel < CHANNELS
    square = tl.sum(tl.where(is_degree[:, None], x * x, 0.0), 0)
    is_small = square <= smallest * smallest
    length = tl.sqrt(tl.maximum(square, smallest * smallest))
    mean = tl.sum(tl.where(is_channel, length, 0.0), 0) / CHANNELS
    off = tl.where(is_channel, length - mean, 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(off * off, 0) / CHANNELS + eps)
    unit = off * inverse
    scaled = unit * weight + bias
    return is_degree, is_small, length, unit, inverse, tl.maximum(scaled, 0.0)


@triton.jit
def norm(
    features, weight, bias, out, nodes, smallest, eps,
    DEGREES: tl.constexpr, CHANNELS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    rows, channel = tl.arange(0, SIZE), tl.arange(0, WIDTH)
    is_channel = channel < CHANNELS
    mask = (rows < DEGREES * DEGREES)[:, None] & is_channel[None, :]
    offsets = rows[:, None] * CHANNELS + channel[None, :]
    for j in range(BN):
        node = tl.program_id(0).to(tl.int64) * BN + j
        offset = node * (DEGREES * DEGREES * CHANNELS) + offsets
        x = tl.load(features + offset, mask=mask & (node < nodes), other=0.0).to(tl.float32)
        scale = tl.zeros([SIZE, WIDTH], tl.float32)
        for degree in tl.static_range(DEGREES):
            w = tl.load(weight + degree * CHANNELS + channel, mask=is_channel, other=0.0).to(tl.float32)
            b = tl.load(bias + degree * CHANNELS + channel, mask=is_channel, other=0.0).to(tl.float32)
            is_degree, _, length, _, _, new = _normalised(x, rows, channel, w, b, degree, smallest, eps, CHANNELS)
            scale = tl.where(is_degree[:, None], (new / length)[None, :], scale)
        tl.store(out + offset, (x * scale).to(out.dtype.element_ty), mask=mask & (node < nodes))


@triton.jit
def norm_backward(
    features, weight, bias, grad, grad_features, grad_affine, nodes, smallest, eps,
    DEGREES: tl.constexpr, CHANNELS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """`grad_affine` gets each program's partial gradients of weight and bias, [programs, 2, degrees, channels]."""
    rows, channel = tl.arange(0, SIZE), tl.arange(0, WIDTH)
    is_channel = channel < CHANNELS
    mask = (rows < DEGREES * DEGREES)[:, None] & is_channel[None, :]
    offsets = rows[:, None] * CHANNELS + channel[None, :]
    which = tl.arange(0, SIZE)  # rows of the affine gradients are degrees
    weight_sum, bias_sum = tl.zeros([SIZE, WIDTH], tl.float32), tl.zeros([SIZE, WIDTH], tl.float32)
    for j in range(BN):
        node = tl.program_id(0).to(tl.int64) * BN + j
        offset = node * (DEGREES * DEGREES * CHANNELS) + offsets
        is_node = mask & (node < nodes)
        x = tl.load(features + offset, mask=is_node, other=0.0).to(tl.float32)
        g = tl.load(grad + offset, mask=is_node, other=0.0).to(tl.float32)
        scale = tl.zeros([SIZE, WIDTH], tl.float32)
        pull = tl.zeros([SIZE, WIDTH], tl.float32)
        for degree in tl.static_range(DEGREES):
            w = tl.load(weight + degree * CHANNELS + channel, mask=is_channel, other=0.0).to(tl.float32)
            b = tl.load(bias + degree * CHANNELS + channel, mask=is_channel, other=0.0).to(tl.float32)
            is_degree, is_small, length, unit, inverse, new = _normalised(
                x, rows, channel, w, b, degree, smallest, eps, CHANNELS
            )
            grad_scale = tl.sum(tl.where(is_degree[:, None], g * x, 0.0), 0)
            grad_new = tl.where(new > 0, grad_scale / length, 0.0)
            weight_sum += tl.where((which == degree)[:, None], (grad_new * unit)[None, :], 0.0)
            bias_sum += tl.where((which == degree)[:, None], grad_new[None, :], 0.0)
            grad_unit = grad_new * w
            mean = tl.sum(grad_unit, 0) / CHANNELS
            along = tl.sum(grad_unit * unit, 0) / CHANNELS
            grad_length = (grad_unit - mean - unit * along) * inverse - grad_scale * new / (length * length)
            grad_length = tl.where(is_small, 0.0, grad_length)  # a clamped length is a constant
            scale = tl.where(is_degree[:, None], (new / length)[None, :], scale)
            pull = tl.where(is_degree[:, None], (grad_length / length)[None, :], pull)
        tl.store(grad_features + offset, (g * scale + x * pull).to(grad_features.dtype.element_ty), mask=is_node)
    begin = grad_affine + tl.program_id(0).to(tl.int64) * (2 * DEGREES * CHANNELS)
    pointers = begin + which[:, None] * CHANNELS + channel[None, :]
    is_affine = (which < DEGREES)[:, None] & is_channel[None, :]
    tl.store(pointers, weight_sum, mask=is_affine)
    tl.store(pointers + DEGREES * CHANNELS, bias_sum, mask=is_affine)
