# type: ignore  (the type checker reads Triton as Python)
"""LinearSE3 for equal channels as Triton kernels: a product for each component, with the matrix of its degree.

Features are [nodes, components, channels]; the components of degree d are d^2 .. (d + 1)^2 - 1. The kernels read and
write this order directly, without a transposition for a batched product.
"""

import triton
import triton.language as tl


@triton.jit
def _tile(features, nodes, is_node, component, components, channel, CHANNELS: tl.constexpr):
    offset = (nodes[:, None] * components + component) * CHANNELS + channel[None, :]
    return tl.load(features + offset, mask=is_node[:, None] & (channel < CHANNELS)[None, :], other=0.0)


@triton.jit
def linear(
    first, second, matrices, degrees, added, out, nodes, components, matrix_stride, inner_stride, outer_stride,
    second_begin, ADD: tl.constexpr, INNER_1: tl.constexpr, INNER_2: tl.constexpr, WIDTH_1: tl.constexpr,
    WIDTH_2: tl.constexpr, OUTER: tl.constexpr, WIDTH_OUT: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out[n, p] = first[n, p] M_d + second[n, p] M'_d; M' begins `second_begin` rows after M. INNER_2 may be 0.

    With ADD, out is `added` more.
    """
    component = tl.program_id(1)
    node = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    is_node = node < nodes
    matrix = matrices + tl.load(degrees + component) * matrix_stride
    kind = first.dtype.element_ty  # the matrices may be float32, which a separate kernel need not cast
    outer = tl.arange(0, WIDTH_OUT)
    inner = tl.arange(0, WIDTH_1)
    offset = inner[:, None] * inner_stride + outer[None, :] * outer_stride
    m = tl.load(matrix + offset, mask=(inner < INNER_1)[:, None] & (outer < OUTER)[None, :], other=0.0).to(kind)
    acc = tl.dot(_tile(first, node, is_node, component, components, inner, INNER_1), m, input_precision=PRECISION)
    if INNER_2 > 0:
        inner2 = tl.arange(0, WIDTH_2)
        place2 = (second_begin + inner2[:, None]) * inner_stride + outer[None, :] * outer_stride
        m2 = tl.load(matrix + place2, mask=(inner2 < INNER_2)[:, None] & (outer < OUTER)[None, :], other=0.0).to(kind)
        x2 = _tile(second, node, is_node, component, components, inner2, INNER_2)
        acc = tl.dot(x2, m2, acc, input_precision=PRECISION)
    if ADD:
        acc += _tile(added, node, is_node, component, components, outer, OUTER).to(tl.float32)
    target = out + (node[:, None] * components + component) * OUTER + outer[None, :]
    tl.store(target, acc.to(out.dtype.element_ty), mask=is_node[:, None] & (outer < OUTER)[None, :])


@triton.jit
def linear_backward_weight(
    grad, first, second, partials, nodes, components, blocks,
    OUTER: tl.constexpr, INNER_1: tl.constexpr, INNER_2: tl.constexpr, WIDTH_OUT: tl.constexpr, WIDTH_1: tl.constexpr,
    WIDTH_2: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """partials[split, p] = sum over the split's nodes of grad[n, p] (outer) (first[n, p], second[n, p])."""
    component, split = tl.program_id(0), tl.program_id(1)
    outer, inner, inner2 = tl.arange(0, WIDTH_OUT), tl.arange(0, WIDTH_1), tl.arange(0, WIDTH_2)
    acc, acc2 = tl.zeros([WIDTH_OUT, WIDTH_1], tl.float32), tl.zeros([WIDTH_OUT, WIDTH_2], tl.float32)
    for block in range(blocks):
        node = (split.to(tl.int64) * blocks + block) * BN + tl.arange(0, BN)
        is_node = node < nodes
        g = tl.trans(_tile(grad, node, is_node, component, components, outer, OUTER))
        x = _tile(first, node, is_node, component, components, inner, INNER_1)
        acc = tl.dot(g, x, acc, input_precision=PRECISION)
        if INNER_2 > 0:
            x2 = _tile(second, node, is_node, component, components, inner2, INNER_2)
            acc2 = tl.dot(g, x2, acc2, input_precision=PRECISION)
    rows = partials + ((split * components + component) * OUTER + outer[:, None]) * (INNER_1 + INNER_2)
    is_outer = (outer < OUTER)[:, None]
    tl.store(rows + inner[None, :], acc, mask=is_outer & (inner < INNER_1)[None, :])
    if INNER_2 > 0:
        tl.store(rows + INNER_1 + inner2[None, :], acc2, mask=is_outer & (inner2 < INNER_2)[None, :])


@triton.jit
def sum_of_degrees(partials, out, components, SIZE: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    """out[degree] = sum over splits and the degree's components of partials [splits, components, SIZE], in order."""
    degree, at, split = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, SPLITS)
    total = tl.zeros([SPLITS, BLOCK], tl.float32)
    mask = (at < SIZE)[None, :]
    for component in range(degree * degree, (degree + 1) * (degree + 1)):
        rows = (split * components + component)[:, None] * SIZE
        total += tl.load(partials + rows + at[None, :], mask=mask, other=0.0)
    tl.store(out + degree * SIZE + at, tl.sum(total, 0), mask=at < SIZE)
