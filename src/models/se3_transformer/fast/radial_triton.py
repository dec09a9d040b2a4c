# type: ignore  (the type checker reads Triton as Python)
"""The hidden layer of a radial network as Triton kernels: two linear layers, each with LayerNorm and ReLU.

A program of the backward pass loops over its edges with all parameters loaded. All arithmetic is float32. `parameters`
are, one after the other, the first matrix [MID, INPUTS], its bias, the norm's weight and bias, the second matrix
[MID, MID], its bias, the norm's weight and bias.
"""

import triton
import triton.language as tl


@triton.jit
def _normalised(z, mid, MID: tl.constexpr, eps):
    off = z - (tl.sum(z, 1) / MID)[:, None]
    inverse = 1.0 / tl.sqrt(tl.sum(off * off, 1) / MID + eps)
    return off * inverse[:, None], inverse


@triton.jit
def _first_layer(inputs, first, rows, is_row, mid, INPUTS: tl.constexpr, MID: tl.constexpr):
    z = tl.zeros_like(rows[:, None] * mid[None, :]).to(tl.float32) + tl.load(first + MID * INPUTS + mid)[None, :]
    for s in tl.static_range(INPUTS):
        x = tl.load(inputs + rows * INPUTS + s, mask=is_row, other=0.0).to(tl.float32)
        z += x[:, None] * tl.load(first + mid * INPUTS + s)[None, :]
    return z


@triton.jit
def radial(
    inputs, parameters, hidden, edges, eps,
    INPUTS: tl.constexpr, MID: tl.constexpr, NORM: tl.constexpr, BE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    mid = tl.arange(0, MID)
    second = parameters + MID * INPUTS + 3 * MID
    after = second + MID * MID
    w2 = tl.load(second + mid[None, :] * MID + mid[:, None])  # transposed: [inner, out]
    rows = tl.program_id(0).to(tl.int64) * BE + tl.arange(0, BE)
    is_row = rows < edges
    z = _first_layer(inputs, parameters, rows, is_row, mid, INPUTS, MID)
    if NORM:
        unit, _ = _normalised(z, mid, MID, eps)
        affine = parameters + MID * INPUTS + MID
        z = unit * tl.load(affine + mid)[None, :] + tl.load(affine + MID + mid)[None, :]
    z = tl.dot(tl.maximum(z, 0.0), w2, input_precision=PRECISION) + tl.load(after + mid)[None, :]
    if NORM:
        unit, _ = _normalised(z, mid, MID, eps)
        z = unit * tl.load(after + MID + mid)[None, :] + tl.load(after + 2 * MID + mid)[None, :]
    target = hidden + rows[:, None] * MID + mid[None, :]
    tl.store(target, tl.maximum(z, 0.0).to(hidden.dtype.element_ty), mask=is_row[:, None])


@triton.jit
def _norm_backward(grad, unit, inverse, weight, MID: tl.constexpr):
    g = grad * weight[None, :]
    along = tl.sum(g * unit, 1) / MID
    return (g - (tl.sum(g, 1) / MID)[:, None] - unit * along[:, None]) * inverse[:, None]


@triton.jit
def radial_backward(
    inputs, parameters, grad, grad_inputs, shares, edges, blocks, eps,
    INPUTS: tl.constexpr, PADDED: tl.constexpr, MID: tl.constexpr, NORM: tl.constexpr, BE: tl.constexpr,
    WANTS_INPUTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Each program's partial gradients of the parameters, over `blocks` times BE edges; optionally the inputs' too."""
    mid, s = tl.arange(0, MID), tl.arange(0, PADDED)
    is_s = s < INPUTS
    second = parameters + MID * INPUTS + 3 * MID
    after = second + MID * MID
    w1 = tl.load(parameters + mid[:, None] * INPUTS + s[None, :], mask=is_s[None, :], other=0.0)
    w2 = tl.load(second + mid[:, None] * MID + mid[None, :])
    w2_transposed = tl.load(second + mid[None, :] * MID + mid[:, None])
    bias2 = tl.load(after + mid)
    affine = parameters + MID * INPUTS + MID
    if NORM:
        weight1, shift1 = tl.load(affine + mid), tl.load(affine + MID + mid)
        weight2, shift2 = tl.load(after + MID + mid), tl.load(after + 2 * MID + mid)
    grad_w1, grad_w2 = tl.zeros([MID, PADDED], tl.float32), tl.zeros([MID, MID], tl.float32)
    grad_b1, grad_b2 = tl.zeros([MID], tl.float32), tl.zeros([MID], tl.float32)
    grad_weight1, grad_shift1 = tl.zeros([MID], tl.float32), tl.zeros([MID], tl.float32)
    grad_weight2, grad_shift2 = tl.zeros([MID], tl.float32), tl.zeros([MID], tl.float32)
    for block in range(blocks):
        rows = (tl.program_id(0).to(tl.int64) * blocks + block) * BE + tl.arange(0, BE)
        is_row = rows < edges
        z = _first_layer(inputs, parameters, rows, is_row, mid, INPUTS, MID)
        if NORM:
            unit1, inverse1 = _normalised(z, mid, MID, eps)
            z = unit1 * weight1[None, :] + shift1[None, :]
        active = tl.maximum(z, 0.0)
        y = tl.dot(active, w2_transposed, input_precision=PRECISION) + bias2[None, :]
        if NORM:
            unit2, inverse2 = _normalised(y, mid, MID, eps)
            y = unit2 * weight2[None, :] + shift2[None, :]
        g = tl.load(grad + rows[:, None] * MID + mid[None, :], mask=is_row[:, None], other=0.0).to(tl.float32)
        g = tl.where(y > 0, g, 0.0)
        if NORM:
            grad_weight2 += tl.sum(g * unit2, 0)
            grad_shift2 += tl.sum(g, 0)
            g = _norm_backward(g, unit2, inverse2, weight2, MID)
        grad_b2 += tl.sum(g, 0)
        grad_w2 = tl.dot(tl.trans(g), active, grad_w2, input_precision=PRECISION)
        g = tl.where(z > 0, tl.dot(g, w2, input_precision=PRECISION), 0.0)
        if NORM:
            grad_weight1 += tl.sum(g * unit1, 0)
            grad_shift1 += tl.sum(g, 0)
            g = _norm_backward(g, unit1, inverse1, weight1, MID)
        grad_b1 += tl.sum(g, 0)
        mask = is_row[:, None] & is_s[None, :]
        x = tl.load(inputs + rows[:, None] * INPUTS + s[None, :], mask=mask, other=0.0).to(tl.float32)
        grad_w1 = tl.dot(tl.trans(g), x, grad_w1, input_precision=PRECISION)
        if WANTS_INPUTS:
            grad_x = tl.dot(g, w1, input_precision=PRECISION)
            tl.store(grad_inputs + rows[:, None] * INPUTS + s[None, :], grad_x, mask=mask)
    share = shares + tl.program_id(0) * (MID * INPUTS + MID * MID + 6 * MID)
    tl.store(share + mid[:, None] * INPUTS + s[None, :], grad_w1, mask=is_s[None, :])
    first = share + MID * INPUTS
    tl.store(first + mid, grad_b1)
    tl.store(first + MID + mid, grad_weight1)
    tl.store(first + 2 * MID + mid, grad_shift1)
    tl.store(first + 3 * MID + mid[:, None] * MID + mid[None, :], grad_w2)
    last = first + 3 * MID + MID * MID
    tl.store(last + mid, grad_b2)
    tl.store(last + MID + mid, grad_weight2)
    tl.store(last + 2 * MID + mid, grad_shift2)
