# type: ignore  (the type checker reads Triton as Python)
"""The atom flow backward; layouts as in `atom_triton`.

g is the gradient of a BatchNorm's output, and `partials` [nodes, 2, programs] the sums of g and g (z - mean) of the
programs that stored it. Who loads g computes the gradient of z from it, which is stored once for the weight's gradient.
"""

import triton
import triton.language as tl

from src.gpu.wgmma_triton import settle
from src.models.moflow.fast.atom_triton import (
    last_layer,
    load_hidden,
    load_vector,
    of_programs,
    product,
    relu,
    sigmoid,
    store_hidden,
    store_vector,
)


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
    return mean, p, -p * inverse * of_weight * share, -p * of_bias * share


@triton.jit(do_not_specialize=["row", "next_row"])
def between_backward(
    grad, of_log_det, g, z_conv, partials, norm_conv, norm_gradients, adj, convolution, scaling, x_out, of_actnorm,
    of_z_conv, x, z, norm, matrix, linear_bias, of_outputs, g_out, out_partials, grad_out,
    batch, samples, programs, row, next_row,
    COUPLES: tl.constexpr, CONVOLVES: tl.constexpr, NODES: tl.constexpr, CLASSES: tl.constexpr, KINDS: tl.constexpr,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, PADDED_NODES: tl.constexpr, PADDED_CLASSES: tl.constexpr,
    PADDED_KINDS: tl.constexpr, PADDED_CHANNELS: tl.constexpr, PADDED_WIDTH: tl.constexpr, PARTIALS: tl.constexpr,
    PRECISION: tl.constexpr, UPCAST: tl.constexpr, SETTLE: tl.constexpr,
):  # fmt: skip
    """The gradients of `between`. `grad` is that of its latent, as far as it does not go through the convolution.

    Writes the gradients of the convolution's output to `of_z_conv`, of the last layer's output to `of_outputs`
    [node, batch, 2 PADDED_CLASSES], of the last BatchNorm's output to `g_out`, and of the latent that the coupling
    got, as far as it does not go through the layers, to `grad_out`. `of_actnorm` [programs, 2, NODES] are sums of the
    gradient of ActNorm's output, times that output and alone.
    """
    program = tl.program_id(0)
    node, column = tl.arange(0, PADDED_NODES), tl.arange(0, PADDED_CLASSES)
    if CONVOLVES:
        mean_conv, p, q, r = conclude_backward(partials, norm_conv, norm_gradients, node, NODES, programs,
                                               batch * CHANNELS, program == 0, PARTIALS, 1)  # fmt: skip
        factors = load_vector(scaling, 0, node, NODES)
    if COUPLES:
        mean = load_vector(norm, 0, node, NODES)
        scale, shift = load_vector(norm, 2, node, NODES), load_vector(norm, 3, node, NODES)
    products, sums = tl.zeros([PADDED_NODES], tl.float32), tl.zeros([PADDED_NODES], tl.float32)
    g_products, g_sums = tl.zeros([PADDED_NODES], tl.float32), tl.zeros([PADDED_NODES], tl.float32)
    for index in range(samples):
        sample = program * samples + index
        is_node = (node < NODES) & (sample < batch)
        is_latent = is_node[:, None] & (column < CLASSES)[None, :]
        place = (sample * NODES + node)[:, None] * CLASSES + column[None, :]
        of_latent = tl.load(grad + place, mask=is_latent, other=0.0)
        if CONVOLVES:
            channel = tl.arange(0, PADDED_CHANNELS)
            is_channel = (channel < CHANNELS)[:, None]
            of_z = p[:, None] * load_hidden(g, node, sample, batch, is_node, CHANNELS, PADDED_CHANNELS) + r[:, None]
            output = load_hidden(z_conv, node, sample, batch, is_node, CHANNELS, PADDED_CHANNELS)
            of_z += q[:, None] * (output - mean_conv[:, None])
            of_z = tl.where(is_node[:, None], of_z, 0.0).to(z_conv.dtype.element_ty)
            store_hidden(of_z_conv, of_z, node, sample, batch, is_node, CHANNELS, PADDED_CHANNELS)
            b = tl.load(convolution + column[None, :] * CHANNELS + channel[:, None], mask=is_channel, other=0.0)
            of_factor = tl.zeros([PADDED_NODES, PADDED_CLASSES], tl.float32)
            of_factor = product(of_z, b, of_factor, PRECISION, UPCAST)
            for kind in tl.static_range(KINDS):
                of_kind = tl.zeros([PADDED_NODES, PADDED_CLASSES], tl.float32)
                b = convolution + ((1 + kind) * PADDED_CLASSES + column)[None, :] * CHANNELS + channel[:, None]
                of_kind = product(of_z, tl.load(b, mask=is_channel, other=0.0), of_kind, PRECISION, UPCAST)
                edge = ((sample * KINDS + kind) * NODES + node)[None, :] * NODES + node[:, None]
                a = tl.load(adj + edge, mask=is_node[:, None] & is_node[None, :], other=0.0)
                of_factor = product(a, of_kind.to(of_z.dtype), of_factor, PRECISION, UPCAST)
            settle(SETTLE)
            of_latent += tl.where(is_latent & (node != next_row)[:, None], of_factor, 0.0)
            latent = tl.load(x_out + place, mask=is_latent, other=0.0)
            products += tl.sum(of_latent * latent, 1)
            sums += tl.sum(of_latent, 1)
            of_latent *= factors[:, None]
        if COUPLES:
            before = load_hidden(z, node, sample, batch, is_node, WIDTH, PADDED_WIDTH)
            apart = before - mean[:, None]
            before = before * scale[:, None] + shift[:, None]
            hidden = relu(before).to(z.dtype.element_ty)
            logits = last_layer(hidden, matrix, linear_bias, 0, CLASSES, PADDED_CLASSES, WIDTH, PADDED_WIDTH,
                                PRECISION, UPCAST)  # fmt: skip
            shifts = last_layer(hidden, matrix, linear_bias, CLASSES, CLASSES, PADDED_CLASSES, WIDTH, PADDED_WIDTH,
                                PRECISION, UPCAST)  # fmt: skip
            latent = tl.load(x + place, mask=is_latent, other=0.0)
            share, is_row = sigmoid(logits), (node == row)[:, None]
            scaled = tl.where(is_row, of_latent * share, 0.0)
            of_logits = tl.load(of_log_det + sample, mask=sample < batch, other=0.0) * (1 - share)
            of_logits += scaled * (latent + shifts) * (1 - share)
            of_logits = tl.where(is_latent, of_logits, 0.0).to(z.dtype.element_ty)
            of_shifts = tl.where(is_latent, scaled, 0.0).to(z.dtype.element_ty)
            to = of_outputs + (node * batch + sample)[:, None] * (2 * PADDED_CLASSES) + column[None, :]
            tl.store(to, of_logits, mask=is_node[:, None])
            tl.store(to + PADDED_CLASSES, of_shifts, mask=is_node[:, None])
            channel = tl.arange(0, PADDED_WIDTH)
            mask = (column < CLASSES)[:, None] & (channel < WIDTH)[None, :]
            b = matrix + column[:, None] * WIDTH + channel[None, :]
            of_hidden = tl.zeros([PADDED_NODES, PADDED_WIDTH], tl.float32)
            of_hidden = product(of_logits, tl.load(b, mask=mask, other=0.0), of_hidden, PRECISION, UPCAST)
            b += CLASSES * WIDTH
            of_hidden = product(of_shifts, tl.load(b, mask=mask, other=0.0), of_hidden, PRECISION, UPCAST)
            settle(SETTLE)
            of_hidden = tl.where((before <= 0) | (is_node == 0)[:, None], 0.0, of_hidden).to(z.dtype.element_ty)
            store_hidden(g_out, of_hidden, node, sample, batch, is_node, WIDTH, PADDED_WIDTH)
            of_hidden = of_hidden.to(tl.float32)
            g_sums += tl.sum(of_hidden, 1)
            g_products += tl.sum(of_hidden * apart, 1)
            of_latent = tl.where(is_row, scaled, of_latent)
        tl.store(grad_out + place, of_latent, mask=is_latent)
    if CONVOLVES:
        store_vector(of_actnorm + program * (2 * NODES), 0, node, products, NODES, True)
        store_vector(of_actnorm + program * (2 * NODES), 1, node, sums, NODES, True)
    if COUPLES:
        to = out_partials + node * (2 * tl.num_programs(0)) + program
        tl.store(to, g_sums, mask=node < NODES)
        tl.store(to + tl.num_programs(0), g_products, mask=node < NODES)


@triton.jit
def layer_backward(
    g, out, partials, norm_out, norm_gradients, matrix, z, norm, of_out, g_in, in_partials, batch, nodes, programs,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    PARTIALS: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr, SETTLE: tl.constexpr,
):  # fmt: skip
    """The gradients of `layer`: of its output `out` to `of_out`, and of BatchNorm(z) to `g_in`."""
    across: tl.constexpr = (INPUTS + COLUMNS - 1) // COLUMNS
    down = tl.cdiv(batch, ROWS)
    tile, node = tl.program_id(0) % (across * down), tl.program_id(0) // (across * down)
    column, row = tile % across * COLUMNS + tl.arange(0, COLUMNS), tile // across * ROWS + tl.arange(0, ROWS)
    mean, p, q, r = conclude_backward(partials, norm_out, norm_gradients, node, nodes, programs, batch * OUTPUTS,
                                      tile == 0, PARTIALS, 0)  # fmt: skip
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for k in range(0, OUTPUTS, DEPTH):
        channel = k + tl.arange(0, DEPTH)
        offset = (node * batch + row)[:, None] * OUTPUTS + channel[None, :]
        mask = (row < batch)[:, None] & (channel < OUTPUTS)[None, :]
        a = tl.load(g + offset, mask=mask, other=0.0).to(tl.float32) * p + r
        a += q * (tl.load(out + offset, mask=mask, other=0.0).to(tl.float32) - mean)
        a = tl.where(mask, a, 0.0).to(g.dtype.element_ty)
        tl.store(of_out + offset, a, mask=mask & (tile % across == 0))
        mask = (channel < OUTPUTS)[:, None] & (column < INPUTS)[None, :]
        b = tl.load(matrix + channel[:, None] * INPUTS + column[None, :], mask=mask, other=0.0)
        total = product(a, b, total, PRECISION, UPCAST)
        settle(SETTLE)
    mean, scale, shift = (load_vector(norm, 0, node, nodes), load_vector(norm, 2, node, nodes),
                          load_vector(norm, 3, node, nodes))  # fmt: skip
    mask = (row < batch)[:, None] & (column < INPUTS)[None, :]
    offset = (node * batch + row)[:, None] * INPUTS + column[None, :]
    before = tl.load(z + offset, mask=mask, other=0.0).to(tl.float32)
    is_cut = (before * scale + shift <= 0) | (mask == 0)
    gradient = tl.where(is_cut, 0.0, total).to(g_in.dtype.element_ty)
    tl.store(g_in + offset, gradient, mask=mask)
    gradient = gradient.to(tl.float32)
    to = in_partials + node * (2 * across * down) + tile
    tl.store(to, tl.sum(tl.sum(gradient, 1), 0))
    tl.store(to + across * down, tl.sum(tl.sum(gradient * (before - mean), 1), 0))


@triton.jit
def weight_gradients(
    of_out, z, norm, out, bias_out, steps, batch, nodes, nodes_each, norm_stride,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    NORM: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr, SETTLE: tl.constexpr,
):  # fmt: skip
    """Gradients of a layer's weight `out` [parts, steps, OUTPUTS, INPUTS] and bias [parts, steps, OUTPUTS], all steps.

    Each part is of `nodes_each` nodes. The layer's input is relu(BatchNorm(z)), or z without NORM.
    """
    across: tl.constexpr = (INPUTS + COLUMNS - 1) // COLUMNS
    tiles: tl.constexpr = across * ((OUTPUTS + ROWS - 1) // ROWS)
    tile, step, part = (tl.program_id(0) % tiles, (tl.program_id(0) // tiles % steps).to(tl.int64),
                        tl.program_id(0) // (tiles * steps))  # fmt: skip
    to, of = tile // across * ROWS + tl.arange(0, ROWS), tile % across * COLUMNS + tl.arange(0, COLUMNS)
    of_out += step * nodes * batch * OUTPUTS
    z += step * nodes * batch * INPUTS
    blocks = tl.cdiv(batch, DEPTH)
    total, of_bias = tl.zeros([ROWS, COLUMNS], tl.float32), tl.zeros([ROWS], tl.float32)
    for index in range(nodes_each * blocks):
        node, row = part * nodes_each + index // blocks, index % blocks * DEPTH + tl.arange(0, DEPTH)
        is_row = (row < batch) & (node < nodes)
        place = node * batch + row
        mask = is_row[:, None] & (to < OUTPUTS)[None, :]
        a = tl.load(of_out + place[:, None] * OUTPUTS + to[None, :], mask=mask, other=0.0)
        mask = is_row[:, None] & (of < INPUTS)[None, :]
        b = tl.load(z + place[:, None] * INPUTS + of[None, :], mask=mask, other=0.0)
        if NORM:
            vectors = norm + step * norm_stride + node
            scale = tl.load(vectors + 2 * nodes, mask=node < nodes, other=0.0)
            shift = tl.load(vectors + 3 * nodes, mask=node < nodes, other=0.0)
            b = relu(b.to(tl.float32) * scale + shift).to(z.dtype.element_ty)
        of_bias += tl.sum(a.to(tl.float32), 0)
        total = product(tl.trans(a), b, total, PRECISION, UPCAST)
        settle(SETTLE)
    place = (part * steps + step) * OUTPUTS + to
    mask = (to < OUTPUTS)[:, None] & (of < INPUTS)[None, :]
    tl.store(out + place[:, None] * INPUTS + of[None, :], total, mask=mask)
    tl.store(bias_out + place, of_bias, mask=(to < OUTPUTS) & (tile % across == 0))
