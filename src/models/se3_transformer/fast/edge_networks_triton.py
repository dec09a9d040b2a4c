# type: ignore  (the type checker reads Triton as Python)
"""Hidden layers of several radial networks as Triton kernels: two linear layers, each with LayerNorm and ReLU.

The inputs of an edge are SCALARS features and its radial input. `parameters` has for each network, one after the other,
the first matrix [MID, SCALARS + 1], its bias, the norm's weight and bias, the second matrix [MID, MID], its bias, the
norm's weight and bias. Arithmetic is float32 or three TF32 products.
"""

import triton
import triton.language as tl

from src.gpu.wgmma_triton import settle
from src.models.se3_transformer.fast.radial_triton import _norm_backward, _normalised


@triton.jit
def _first_layer(
    scalars, lengths, first, rows, is_row, mid, SCALARS: tl.constexpr, MID: tl.constexpr, BE: tl.constexpr,
    STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    length = tl.load(lengths + rows, mask=is_row, other=0.0).to(tl.float32)
    z = length[:, None] * tl.load(first + mid * (SCALARS + 1) + SCALARS)[None, :]
    z += tl.load(first + MID * (SCALARS + 1) + mid)[None, :]
    for at in tl.static_range(0, SCALARS, STEP):
        s = at + tl.arange(0, STEP)
        is_s = s < SCALARS
        mask = is_row[:, None] & is_s[None, :]
        x = tl.load(scalars + rows[:, None] * SCALARS + s[None, :], mask=mask, other=0.0).to(tl.float32)
        w = tl.load(first + mid[None, :] * (SCALARS + 1) + s[:, None], mask=is_s[:, None], other=0.0)
        z = tl.dot(x, w, z, input_precision=PRECISION)
    return z, length


@triton.jit(do_not_specialize=["edges"])
def networks(
    scalars, lengths, parameters, hidden, edges, eps, SCALARS: tl.constexpr, MID: tl.constexpr, NORM: tl.constexpr,
    BE: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    mid = tl.arange(0, MID)
    group = tl.program_id(1)
    first = parameters + group * (MID * (SCALARS + 1) + MID * MID + 6 * MID)
    affine = first + MID * (SCALARS + 1) + MID
    second = affine + 2 * MID
    after = second + MID * MID
    w2 = tl.load(second + mid[None, :] * MID + mid[:, None])  # transposed: [inner, out]
    rows = tl.program_id(0).to(tl.int64) * BE + tl.arange(0, BE)
    is_row = rows < edges
    z, _ = _first_layer(scalars, lengths, first, rows, is_row, mid, SCALARS, MID, BE, STEP, PRECISION)
    if NORM:
        unit, _ = _normalised(z, mid, MID, eps)
        z = unit * tl.load(affine + mid)[None, :] + tl.load(affine + MID + mid)[None, :]
    z = tl.dot(tl.maximum(z, 0.0), w2, input_precision=PRECISION) + tl.load(after + mid)[None, :]
    if NORM:
        unit, _ = _normalised(z, mid, MID, eps)
        z = unit * tl.load(after + MID + mid)[None, :] + tl.load(after + 2 * MID + mid)[None, :]
    target = hidden + (group.to(tl.int64) * edges + rows)[:, None] * MID + mid[None, :]
    tl.store(target, tl.maximum(z, 0.0).to(hidden.dtype.element_ty), mask=is_row[:, None])


@triton.jit(do_not_specialize=["edges", "blocks"])
def networks_backward(
    scalars, lengths, parameters, grad, grad_scalars, grad_lengths, shares, edges, blocks, eps,
    SCALARS: tl.constexpr, PADDED: tl.constexpr, MID: tl.constexpr, NORM: tl.constexpr, BE: tl.constexpr,
    STEP: tl.constexpr, WANTS_INPUTS: tl.constexpr, PRECISION: tl.constexpr, SETTLE: tl.constexpr,
):  # fmt: skip
    """Each program's partial gradients of a network's parameters, over `blocks` times BE edges.

    Optionally this network's part of the inputs' gradients, [networks, edges, ..].
    """
    mid, s = tl.arange(0, MID), tl.arange(0, PADDED)
    is_s = s < SCALARS
    group = tl.program_id(1)
    count = MID * (SCALARS + 1) + MID * MID + 6 * MID
    first = parameters + group * count
    affine = first + MID * (SCALARS + 1) + MID
    second = affine + 2 * MID
    after = second + MID * MID
    w1 = tl.load(first + mid[:, None] * (SCALARS + 1) + s[None, :], mask=is_s[None, :], other=0.0)
    w_length = tl.load(first + mid * (SCALARS + 1) + SCALARS)
    w2 = tl.load(second + mid[:, None] * MID + mid[None, :])
    w2_transposed = tl.load(second + mid[None, :] * MID + mid[:, None])
    bias2 = tl.load(after + mid)
    if NORM:
        weight1, shift1 = tl.load(affine + mid), tl.load(affine + MID + mid)
        weight2, shift2 = tl.load(after + MID + mid), tl.load(after + 2 * MID + mid)
    grad_w1, grad_w2 = tl.zeros([MID, PADDED], tl.float32), tl.zeros([MID, MID], tl.float32)
    grad_w_length = tl.zeros([MID], tl.float32)
    grad_b1, grad_b2 = tl.zeros([MID], tl.float32), tl.zeros([MID], tl.float32)
    grad_weight1, grad_shift1 = tl.zeros([MID], tl.float32), tl.zeros([MID], tl.float32)
    grad_weight2, grad_shift2 = tl.zeros([MID], tl.float32), tl.zeros([MID], tl.float32)
    for block in range(blocks):
        rows = (tl.program_id(0).to(tl.int64) * blocks + block) * BE + tl.arange(0, BE)
        is_row = rows < edges
        z, length = _first_layer(scalars, lengths, first, rows, is_row, mid, SCALARS, MID, BE, STEP, PRECISION)
        if NORM:
            unit1, inverse1 = _normalised(z, mid, MID, eps)
            z = unit1 * weight1[None, :] + shift1[None, :]
        active = tl.maximum(z, 0.0)
        y = tl.dot(active, w2_transposed, input_precision=PRECISION) + bias2[None, :]
        if NORM:
            unit2, inverse2 = _normalised(y, mid, MID, eps)
            y = unit2 * weight2[None, :] + shift2[None, :]
        of_group = group.to(tl.int64) * edges + rows
        g = tl.load(grad + of_group[:, None] * MID + mid[None, :], mask=is_row[:, None], other=0.0).to(tl.float32)
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
        grad_w_length += tl.sum(g * length[:, None], 0)
        if SCALARS > 0:
            mask = is_row[:, None] & is_s[None, :]
            x = tl.load(scalars + rows[:, None] * SCALARS + s[None, :], mask=mask, other=0.0).to(tl.float32)
            grad_w1 = tl.dot(tl.trans(g), x, grad_w1, input_precision=PRECISION)
        if WANTS_INPUTS:
            if SCALARS > 0:
                grad_x = tl.dot(g, w1, input_precision=PRECISION)
                tl.store(grad_scalars + of_group[:, None] * SCALARS + s[None, :], grad_x, mask=mask)
            tl.store(grad_lengths + of_group, tl.sum(g * w_length[None, :], 1), mask=is_row)
        settle(SETTLE)
    share = shares + (tl.program_id(0) * tl.num_programs(1) + group).to(tl.int64) * count
    if SCALARS > 0:
        tl.store(share + mid[:, None] * (SCALARS + 1) + s[None, :], grad_w1, mask=is_s[None, :])
    tl.store(share + mid * (SCALARS + 1) + SCALARS, grad_w_length)
    first = share + MID * (SCALARS + 1)
    tl.store(first + mid, grad_b1)
    tl.store(first + MID + mid, grad_weight1)
    tl.store(first + 2 * MID + mid, grad_shift1)
    tl.store(first + 3 * MID + mid[:, None] * MID + mid[None, :], grad_w2)
    last = first + 3 * MID + MID * MID
    tl.store(last + mid, grad_b2)
    tl.store(last + MID + mid, grad_weight2)
    tl.store(last + 2 * MID + mid, grad_shift2)
