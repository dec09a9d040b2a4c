# type: ignore  (the type checker reads Triton as Python)
"""Atom steps whose network computes their own row alone: a coupling with the next step's graph convolution.

A step has one BatchNorm channel then, and hidden values are [batch, channel]; the layers between are those of
`atom_triton` and `atom_backward_triton`, with one node. A program has SAMPLES samples, BLOCK of their nodes at a time.
REVERSE: the inverse coupling, in the place of the coupling. All computation is in float32, except products' factors.
"""

import triton
import triton.language as tl

from src.gpu.wgmma_triton import settle
from src.models.moflow.fast.atom_backward_triton import load_transposed
from src.models.moflow.fast.atom_triton import last_layer, load_last, load_relation, product, sigmoid
from src.models.moflow.fast.limit_triton import far, limited, of_limited
from src.models.moflow.fast.norm_triton import conclude, conclude_backward, load_vector, relu, store_vector


@triton.jit
def samples_of(batch, SAMPLES: tl.constexpr):
    """Returns this program's samples and which of them there are."""
    sample = tl.program_id(0) * SAMPLES + tl.arange(0, SAMPLES)
    return sample, sample < batch


@triton.jit
def rows_of(sample, is_sample, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Returns offsets and mask of rows of WIDTH numbers."""
    channel = tl.arange(0, PADDED)
    return sample[:, None] * WIDTH + channel[None, :], is_sample[:, None] & (channel < WIDTH)[None, :]


@triton.jit
def nodes_of(sample, is_sample, first: tl.constexpr, NODES: tl.constexpr, CLASSES: tl.constexpr,
             PADDED_CLASSES: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Returns BLOCK nodes from `first` on, and offsets and mask of their latents [sample, node, class]."""
    node, column = first + tl.arange(0, BLOCK), tl.arange(0, PADDED_CLASSES)
    offset = (sample[:, None] * NODES + node[None, :])[:, :, None] * CLASSES + column[None, None, :]
    mask = (is_sample[:, None] & (node < NODES)[None, :])[:, :, None] & (column < CLASSES)[None, None, :]
    return node, offset, mask


@triton.jit
def load_edges_of_row(adj, sample, is_sample, kind, row, node, NODES: tl.constexpr, KINDS: tl.constexpr):
    """Returns the row's edges of a kind [sample, sender]."""
    edge = ((sample * KINDS + kind) * NODES + row)[:, None] * NODES + node[None, :]
    return tl.load(adj + edge, mask=is_sample[:, None] & (node < NODES)[None, :], other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["row", "next_row"])
def between_rows(
    x, z, partials, weight, bias, running_mean, running_var, norm, matrix, linear_bias, sums,
    loc, scaling, adj, convolution, x_out, raw, summed, z_out, out_partials, batch, programs, row, next_row,
    COUPLES: tl.constexpr, CONVOLVES: tl.constexpr, REVERSE: tl.constexpr, LIMITS: tl.constexpr, NODES: tl.constexpr,
    CLASSES: tl.constexpr, KINDS: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr,
    PADDED_CLASSES: tl.constexpr, PADDED_CHANNELS: tl.constexpr, PADDED_WIDTH: tl.constexpr, SAMPLES: tl.constexpr,
    BLOCK: tl.constexpr, FREE: tl.constexpr, BOUND: tl.constexpr, PARTIALS: tl.constexpr, EPS: tl.constexpr,
    MOMENTUM: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr, SETTLE: tl.constexpr,
):  # fmt: skip
    """The last layer and the coupling of one step, y = scaling (latent + loc), the next step's graph convolution.

    Adds the coupling's log-determinant to `sums` [batch]; with LIMITS, log(1 + `far`) of y, which `raw` gets, and
    `x_out` what is left of it. The rest is as in `atom_triton.between`, of the row alone.
    """
    program, only = tl.program_id(0), tl.program_id(1)
    sample, is_sample = samples_of(batch, SAMPLES)
    column = tl.arange(0, PADDED_CLASSES)
    total = tl.zeros([SAMPLES], tl.float32)
    if COUPLES:
        scale, shift = conclude(partials, weight, bias, running_mean, running_var, norm, only, 1, programs,
                                program == 0, PARTIALS, EPS, MOMENTUM, 0)  # fmt: skip
        logit_weights, logit_biases = load_last(matrix, linear_bias, 0, CLASSES, PADDED_CLASSES, WIDTH, PADDED_WIDTH)
        shift_weights, shift_biases = load_last(matrix, linear_bias, CLASSES, CLASSES, PADDED_CLASSES, WIDTH,
                                                PADDED_WIDTH)  # fmt: skip
        place, mask = rows_of(sample, is_sample, WIDTH, PADDED_WIDTH)
        hidden = tl.load(z + place, mask=mask, other=0.0).to(tl.float32)
        is_class = is_sample[:, None] & (column < CLASSES)[None, :]
        coupled = tl.load(x + (sample * NODES + row)[:, None] * CLASSES + column[None, :], mask=is_class, other=0.0)
        hidden = relu(hidden * scale + shift).to(z.dtype.element_ty)
        logits = last_layer(hidden, logit_weights, logit_biases, PRECISION, UPCAST)
        shifts = last_layer(hidden, shift_weights, shift_biases, PRECISION, UPCAST)
        if REVERSE:
            coupled = coupled * (1 + tl.exp(-logits)) - shifts
        else:
            coupled = (coupled + shifts) * sigmoid(logits)
            terms = tl.minimum(logits, 0.0) - tl.log(1 + tl.exp(-tl.abs(logits)))
            # NaN stays NaN, which minimum would drop.
            terms = tl.where(logits != logits, logits, terms)
            total += tl.sum(tl.where(is_class, terms, 0.0), 1)
    received = ()
    for _kind in tl.static_range(KINDS):
        received += (tl.zeros([SAMPLES, PADDED_CLASSES], tl.float32),)
    for first in tl.static_range(0, NODES, BLOCK):
        node, offset, mask = nodes_of(sample, is_sample, first, NODES, CLASSES, PADDED_CLASSES, BLOCK)
        y = tl.load(x + offset, mask=mask, other=0.0)
        if COUPLES:
            y = tl.where((node == row)[None, :, None], coupled[:, None, :], y)
        y = load_vector(scaling, 0, node, NODES)[None, :, None] * (y + load_vector(loc, 0, node, NODES)[None, :, None])
        if LIMITS:
            tl.store(raw + offset, y, mask=mask)
            total += tl.sum(tl.sum(tl.where(mask, tl.log(1 + far(y, FREE)), 0.0), 2), 1)
            y = limited(y, BOUND)
        tl.store(x_out + offset, y, mask=mask)
        if CONVOLVES:
            factor = tl.where(mask & (node != next_row)[None, :, None], y, 0.0)
            factor = tl.where((column == CLASSES)[None, None, :] & (node < NODES)[None, :, None], 1.0, factor)
            factor = factor.to(z_out.dtype.element_ty).to(tl.float32)
            more = ()
            for kind in tl.static_range(KINDS):
                a = load_edges_of_row(adj, sample, is_sample, kind, next_row, node, NODES, KINDS)
                more += (received[kind] + tl.sum(a[:, :, None] * factor, 1),)
            received = more
    if COUPLES:
        before = tl.load(sums + sample, mask=is_sample, other=0.0)
        tl.store(sums + sample, before + total, mask=is_sample)
    if CONVOLVES:
        to = summed + sample[:, None] * ((1 + KINDS) * PADDED_CLASSES) + column[None, :]
        # The row itself is hidden from its own network: what is left of it is the bias.
        bias_row = tl.where((column == CLASSES)[None, :] & is_sample[:, None], 1.0, 0.0).to(z_out.dtype.element_ty)
        tl.store(to, bias_row, mask=is_sample[:, None])
        b = load_relation(convolution, 0, CHANNELS, PADDED_CLASSES, PADDED_CHANNELS)
        output = product(bias_row, b, tl.zeros([SAMPLES, PADDED_CHANNELS], tl.float32), PRECISION, UPCAST)
        for kind in tl.static_range(KINDS):
            a = received[kind].to(z_out.dtype.element_ty)
            tl.store(to + (1 + kind) * PADDED_CLASSES, a, mask=is_sample[:, None])
            b = load_relation(convolution, 1 + kind, CHANNELS, PADDED_CLASSES, PADDED_CHANNELS)
            output = product(a, b, output, PRECISION, UPCAST)
        settle(SETTLE)
        rounded = output.to(z_out.dtype.element_ty)
        place, mask = rows_of(sample, is_sample, CHANNELS, PADDED_CHANNELS)
        tl.store(z_out + place, rounded, mask=mask)
        values = tl.where(mask, rounded.to(tl.float32), 0.0)
        number = (tl.minimum(batch - program * SAMPLES, SAMPLES) * CHANNELS).to(tl.float32)
        mean = tl.sum(tl.sum(values, 1), 0) / number
        distance = tl.where(mask, values - mean, 0.0)
        tl.store(out_partials + program, mean)
        tl.store(out_partials + tl.num_programs(0) + program, tl.sum(tl.sum(distance * distance, 1), 0))
        tl.store(out_partials + 2 * tl.num_programs(0) + program, number)


@triton.jit(do_not_specialize=["row", "next_row"])
def between_rows_backward(
    grad, of_sums, g, z_conv, partials, norm_conv, norm_gradients, adj, convolution, scaling, raw, of_affine,
    of_z_conv, x, z, norm, matrix, linear_bias, of_outputs, layer_input, g_out, out_partials, grad_out,
    batch, programs, row, next_row,
    COUPLES: tl.constexpr, CONVOLVES: tl.constexpr, REVERSE: tl.constexpr, LIMITS: tl.constexpr, NODES: tl.constexpr,
    CLASSES: tl.constexpr, KINDS: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr,
    PADDED_CLASSES: tl.constexpr, PADDED_CHANNELS: tl.constexpr, PADDED_WIDTH: tl.constexpr, SAMPLES: tl.constexpr,
    BLOCK: tl.constexpr, FREE: tl.constexpr, BOUND: tl.constexpr, PARTIALS: tl.constexpr, PRECISION: tl.constexpr,
    UPCAST: tl.constexpr, SETTLE: tl.constexpr,
):  # fmt: skip
    """The gradients of `between_rows`, with the names of `atom_backward_triton.between_backward`.

    `of_affine` [programs, 2, NODES] are sums of the gradient of y, times y and alone.
    """
    program, only = tl.program_id(0), tl.program_id(1)
    sample, is_sample = samples_of(batch, SAMPLES)
    column = tl.arange(0, PADDED_CLASSES)
    of_term = tl.load(of_sums + sample, mask=is_sample, other=0.0)
    of_received = ()
    if CONVOLVES:
        mean_conv, p, q, r = conclude_backward(partials, norm_conv, norm_gradients, only, 1, programs,
                                               batch * CHANNELS, program == 0, PARTIALS, 0)  # fmt: skip
        place, mask = rows_of(sample, is_sample, CHANNELS, PADDED_CHANNELS)
        part = p * tl.load(g + place, mask=mask, other=0.0).to(tl.float32) + r
        part += q * (tl.load(z_conv + place, mask=mask, other=0.0).to(tl.float32) - mean_conv)
        part = tl.where(mask, part, 0.0).to(z_conv.dtype.element_ty)
        tl.store(of_z_conv + place, part, mask=mask)
        for kind in tl.static_range(KINDS):
            b = load_transposed(convolution, 1 + kind, 0, CHANNELS, PADDED_CLASSES, PADDED_CHANNELS)
            total = product(part, b, tl.zeros([SAMPLES, PADDED_CLASSES], tl.float32), PRECISION, UPCAST)
            of_received += (total.to(z_conv.dtype.element_ty).to(tl.float32),)
        settle(SETTLE)
    of_row = tl.zeros([SAMPLES, PADDED_CLASSES], tl.float32)
    for first in tl.static_range(0, NODES, BLOCK):
        node, offset, mask = nodes_of(sample, is_sample, first, NODES, CLASSES, PADDED_CLASSES, BLOCK)
        of_y, y = tl.load(grad + offset, mask=mask, other=0.0), tl.load(raw + offset, mask=mask, other=0.0)
        if CONVOLVES:
            of_factor = tl.zeros([SAMPLES, BLOCK, PADDED_CLASSES], tl.float32)
            for kind in tl.static_range(KINDS):
                a = load_edges_of_row(adj, sample, is_sample, kind, next_row, node, NODES, KINDS)
                of_factor += a[:, :, None] * of_received[kind][:, None, :]
            of_y += tl.where(mask & (node != next_row)[None, :, None], of_factor, 0.0)
        if LIMITS:
            of_y = tl.where(mask, of_limited(of_y, of_term[:, None, None], y, FREE, BOUND), 0.0)
        to = of_affine + program * (2 * NODES)
        store_vector(to, 0, node, tl.sum(tl.sum(of_y * y, 2), 0), NODES, True)
        store_vector(to, 1, node, tl.sum(tl.sum(of_y, 2), 0), NODES, True)
        of_y *= load_vector(scaling, 0, node, NODES)[None, :, None]
        if COUPLES:
            of_row += tl.sum(tl.where((node == row)[None, :, None], of_y, 0.0), 1)
            mask = mask & (node != row)[None, :, None]
        tl.store(grad_out + offset, of_y, mask=mask)
    if COUPLES:
        mean, scale, shift = (load_vector(norm, 0, only, 1), load_vector(norm, 2, only, 1),
                              load_vector(norm, 3, only, 1))  # fmt: skip
        logit_weights, logit_biases = load_last(matrix, linear_bias, 0, CLASSES, PADDED_CLASSES, WIDTH, PADDED_WIDTH)
        shift_weights, shift_biases = load_last(matrix, linear_bias, CLASSES, CLASSES, PADDED_CLASSES, WIDTH,
                                                PADDED_WIDTH)  # fmt: skip
        place, mask = rows_of(sample, is_sample, WIDTH, PADDED_WIDTH)
        before = tl.load(z + place, mask=mask, other=0.0).to(tl.float32)
        apart = before - mean
        before = before * scale + shift
        hidden = relu(before).to(z.dtype.element_ty)
        tl.store(layer_input + place, hidden, mask=mask)
        logits = last_layer(hidden, logit_weights, logit_biases, PRECISION, UPCAST)
        shifts = last_layer(hidden, shift_weights, shift_biases, PRECISION, UPCAST)
        is_class = is_sample[:, None] & (column < CLASSES)[None, :]
        of_latent = (sample * NODES + row)[:, None] * CLASSES + column[None, :]
        latent = tl.load(x + of_latent, mask=is_class, other=0.0)
        if REVERSE:
            inverse = tl.exp(-logits)
            of_logits, of_shifts = -of_row * latent * inverse, -of_row
            tl.store(grad_out + of_latent, of_row * (1 + inverse), mask=is_class)
        else:
            share = sigmoid(logits)
            of_shifts = of_row * share
            of_logits = (of_term[:, None] + of_shifts * (latent + shifts)) * (1 - share)
            tl.store(grad_out + of_latent, of_shifts, mask=is_class)
        of_logits = tl.where(is_class, of_logits, 0.0).to(z.dtype.element_ty)
        of_shifts = tl.where(is_class, of_shifts, 0.0).to(z.dtype.element_ty)
        to = of_outputs + sample[:, None] * (2 * PADDED_CLASSES) + column[None, :]
        tl.store(to, of_logits, mask=is_sample[:, None])
        tl.store(to + PADDED_CLASSES, of_shifts, mask=is_sample[:, None])
        of_hidden = tl.zeros([SAMPLES, PADDED_WIDTH], tl.float32)
        of_hidden = product(of_logits, tl.trans(logit_weights), of_hidden, PRECISION, UPCAST)
        of_hidden = product(of_shifts, tl.trans(shift_weights), of_hidden, PRECISION, UPCAST)
        settle(SETTLE)
        of_hidden = tl.where((before <= 0) | (mask == 0), 0.0, of_hidden).to(z.dtype.element_ty)
        tl.store(g_out + place, of_hidden, mask=mask)
        of_hidden = of_hidden.to(tl.float32)
        tl.store(out_partials + program, tl.sum(tl.sum(of_hidden, 1), 0))
        tl.store(out_partials + tl.num_programs(0) + program, tl.sum(tl.sum(of_hidden * apart, 1), 0))
