# type: ignore  (the type checker reads Triton as Python)
"""BatchNorm with partial sums: a kernel writes those of its programs, and who reads the values next adds them first.

The atom flow's BatchNorm channels are nodes. `norm` [6, nodes] are mean, 1 / deviation, scale and shift: the output is
scale z + shift. Behind them are the gradients of mean and variance where more than this output depends on them, as on
kept statistics; else 0. `partials` [nodes, 3, programs] are mean, squared deviations and number of the values of each
program that stored z; backward [nodes, 2, programs] sums of g, the gradient of the output, and of g (z - mean).
"""

import triton
import triton.language as tl


@triton.jit
def load_vector(vectors, number: tl.constexpr, node, nodes):
    return tl.load(vectors + number * nodes + node, mask=node < nodes, other=0.0)


@triton.jit
def store_vector(vectors, number: tl.constexpr, node, values, nodes, is_first):
    tl.store(vectors + number * nodes + node, values, mask=(node < nodes) & is_first)


@triton.jit
def spread(x, AXIS: tl.constexpr):
    """Returns values of nodes as they broadcast against those of programs: a single node's (AXIS 0), or a vector's."""
    return x if AXIS == 0 else x[:, None]


@triton.jit
def of_programs(partials, node, nodes, programs, PARTS: tl.constexpr, PARTIALS: tl.constexpr, AXIS: tl.constexpr):
    """Returns pointers to the first of PARTS partial sums of these nodes' programs, and where there are any."""
    program = tl.arange(0, PARTIALS)
    if AXIS == 1:
        program = program[None, :]
    mask = spread(node < nodes, AXIS) & (program < programs)
    return spread(partials + node * (PARTS * programs), AXIS) + program, mask


@triton.jit
def normalise(mean, variance, weight, bias, norm, node, nodes, is_first, EPS: tl.constexpr):
    """Returns scale and shift of these nodes; the first program writes `norm` too."""
    inverse = 1 / tl.sqrt_rn(variance + EPS)
    scale = tl.load(weight + node, mask=node < nodes, other=0.0) * inverse
    shift = tl.load(bias + node, mask=node < nodes, other=0.0) - mean * scale
    zero = tl.where(mean == 0, mean, 0.0)
    store_vector(norm, 0, node, mean, nodes, is_first)
    store_vector(norm, 1, node, inverse, nodes, is_first)
    store_vector(norm, 2, node, scale, nodes, is_first)
    store_vector(norm, 3, node, shift, nodes, is_first)
    store_vector(norm, 4, node, zero, nodes, is_first)
    store_vector(norm, 5, node, zero, nodes, is_first)
    return scale, shift


@triton.jit
def conclude(
    partials, weight, bias, running_mean, running_var, norm, node, nodes, programs, is_first,
    PARTIALS: tl.constexpr, EPS: tl.constexpr, MOMENTUM: tl.constexpr, AXIS: tl.constexpr,
):  # fmt: skip
    """Returns scale and shift of these nodes; the first program writes `norm` and the running statistics too.

    Means are taken relative to the first program's, so that their squares do not cancel.
    """
    pointers, mask = of_programs(partials, node, nodes, programs, 3, PARTIALS, AXIS)
    first = tl.load(partials + node * (3 * programs), mask=node < nodes, other=0.0)
    apart = tl.where(mask, tl.load(pointers, mask=mask, other=0.0) - spread(first, AXIS), 0.0)
    squares = tl.load(pointers + programs, mask=mask, other=0.0)
    number = tl.load(pointers + 2 * programs, mask=mask, other=0.0)
    count = tl.maximum(tl.sum(number, AXIS), 1.0)
    distance = tl.sum(apart * number, AXIS) / count
    apart -= spread(distance, AXIS)
    mean, total = first + distance, tl.sum(squares, AXIS) + tl.sum(apart * apart * number, AXIS)
    scale, shift = normalise(mean, total / count, weight, bias, norm, node, nodes, is_first, EPS)
    old = load_vector(running_mean, 0, node, nodes)
    store_vector(running_mean, 0, node, old + MOMENTUM * (mean - old), nodes, is_first)
    old = load_vector(running_var, 0, node, nodes)
    store_vector(running_var, 0, node, old + MOMENTUM * (total / tl.maximum(count - 1, 1.0) - old), nodes, is_first)
    return scale, shift


@triton.jit
def relu(x):
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def conclude_backward(
    partials, norm, gradients, node, nodes, programs, count, is_first, PARTIALS: tl.constexpr, AXIS: tl.constexpr
):
    """Returns mean, p, q and r of these nodes: the gradient of z is p g + q (z - mean) + r.

    The first program writes `gradients` [2, nodes], of BatchNorm's weight and bias.
    """
    pointers, mask = of_programs(partials, node, nodes, programs, 2, PARTIALS, AXIS)
    of_bias = tl.sum(tl.load(pointers, mask=mask, other=0.0), AXIS)
    mean, inverse = load_vector(norm, 0, node, nodes), load_vector(norm, 1, node, nodes)
    of_weight = tl.sum(tl.load(pointers + programs, mask=mask, other=0.0), AXIS) * inverse
    store_vector(gradients, 0, node, of_weight, nodes, is_first)
    store_vector(gradients, 1, node, of_bias, nodes, is_first)
    p, share = load_vector(norm, 2, node, nodes), 1.0 / count
    q = 2 * load_vector(norm, 5, node, nodes) - p * inverse * of_weight
    return mean, p, q * share, (load_vector(norm, 4, node, nodes) - p * of_bias) * share
