# type: ignore  (the type checker reads Triton as Python)
"""The atom flow backward; layouts as in `atom_triton`.

g is the gradient of a BatchNorm's output. Who loads it computes the gradient of z from it. That and the layers' inputs,
relu(BatchNorm(z)), are stored once for the weights' gradients; the inputs only where `atom_weights` reads them.
"""

import triton
import triton.language as tl

from src.gpu.wgmma_triton import settle
from src.models.moflow.fast.atom_triton import (
    last_layer,
    load_hidden,
    load_last,
    product,
    sigmoid,
    store_hidden,
)
from src.models.moflow.fast.norm_triton import conclude_backward, load_vector, relu, store_vector


@triton.jit
def load_transposed(
    convolution, relation: tl.constexpr, FIRST: tl.constexpr, CHANNELS: tl.constexpr, PADDED_CLASSES: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Returns the graph convolution's weights [channel, class] of a relation, BLOCK channels from FIRST on."""
    column, channel = relation * PADDED_CLASSES + tl.arange(0, PADDED_CLASSES), FIRST + tl.arange(0, BLOCK)
    return tl.load(convolution + column[None, :] * CHANNELS + channel[:, None],
                   mask=(channel < CHANNELS)[:, None], other=0.0)  # fmt: skip


@triton.jit
def load_edges_backward(adj, sample, kind, node, is_node, NODES: tl.constexpr, KINDS: tl.constexpr):
    """Returns a sample's edges of a kind [sender, receiver]."""
    edge = ((sample * KINDS + kind) * NODES + node)[None, :] * NODES + node[:, None]
    return tl.load(adj + edge, mask=is_node[:, None] & is_node[None, :], other=0.0)


@triton.jit(do_not_specialize=["row", "next_row"])
def between_backward(
    grad, of_log_det, g, z_conv, partials, norm_conv, norm_gradients, adj, convolution, scaling, x_out, of_actnorm,
    of_z_conv, x, z, norm, matrix, linear_bias, of_outputs, layer_input, g_out, out_partials, grad_out,
    batch, samples, programs, row, next_row,
    COUPLES: tl.constexpr, CONVOLVES: tl.constexpr, STORES: tl.constexpr, NODES: tl.constexpr, CLASSES: tl.constexpr,
    KINDS: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, PADDED_NODES: tl.constexpr,
    PADDED_CLASSES: tl.constexpr, PADDED_CHANNELS: tl.constexpr, PADDED_WIDTH: tl.constexpr, HOLDS: tl.constexpr,
    PARTIALS: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr, SETTLE: tl.constexpr,
):  # fmt: skip
    """The gradients of `between`. `grad` is that of its latent, as far as it does not go through the convolution.

    Writes the gradients of the convolution's output to `of_z_conv`, of the last layer's output to `of_outputs`
    [node, batch, 2 PADDED_CLASSES], of the last BatchNorm's output to `g_out`, and of the latent that the coupling
    got, as far as it does not go through the layers, to `grad_out`; the last layer's input to `layer_input`, if it
    STORES that.
    `of_actnorm` [programs, 2, NODES] are sums of the gradient of ActNorm's output, times that output and alone.
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
        logit_weights, logit_biases = load_last(matrix, linear_bias, 0, CLASSES, PADDED_CLASSES, WIDTH, PADDED_WIDTH)
        shift_weights, shift_biases = load_last(matrix, linear_bias, CLASSES, CLASSES, PADDED_CLASSES, WIDTH,
                                                PADDED_WIDTH)  # fmt: skip
    products, sums = tl.zeros([PADDED_NODES], tl.float32), tl.zeros([PADDED_NODES], tl.float32)
    g_products, g_sums = tl.zeros([PADDED_NODES], tl.float32), tl.zeros([PADDED_NODES], tl.float32)
    # Addresses that are the same for all samples would be kept in registers from before the loop, more than there are.
    for index in tl.range(samples, disable_licm=True):
        sample = program * samples + index
        is_node = (node < NODES) & (sample < batch)
        is_latent = is_node[:, None] & (column < CLASSES)[None, :]
        place = (sample * NODES + node)[:, None] * CLASSES + column[None, :]
        of_latent = tl.load(grad + place, mask=is_latent, other=0.0)
        if CONVOLVES:
            of_z = load_hidden(g, node, sample, batch, is_node, 0, CHANNELS, BLOCK)
            output = load_hidden(z_conv, node, sample, batch, is_node, 0, CHANNELS, BLOCK)
            normed = tl.load(x_out + place, mask=is_latent, other=0.0)
            edges = ()
            for kind in tl.static_range(KINDS if HOLDS else 0):
                edges += (load_edges_backward(adj, sample, kind, node, is_node, NODES, KINDS),)
        if COUPLES:
            before = load_hidden(z, node, sample, batch, is_node, 0, WIDTH, PADDED_WIDTH)
            latent = tl.load(x + place, mask=is_latent, other=0.0)
            of_term = tl.load(of_log_det + sample, mask=sample < batch, other=0.0)
        if CONVOLVES:
            of_relations = ()
            for _relation in tl.static_range(1 + KINDS):
                of_relations += (tl.zeros([PADDED_NODES, PADDED_CLASSES], tl.float32),)
            for first in tl.static_range(0, PADDED_CHANNELS, BLOCK):
                if first > 0:
                    of_z = load_hidden(g, node, sample, batch, is_node, first, CHANNELS, BLOCK)
                    output = load_hidden(z_conv, node, sample, batch, is_node, first, CHANNELS, BLOCK)
                relations = ()
                for relation in tl.static_range(1 + KINDS if HOLDS else 0):
                    relations += (load_transposed(convolution, relation, first, CHANNELS, PADDED_CLASSES, BLOCK),)
                part = p[:, None] * of_z.to(tl.float32) + r[:, None]
                part += q[:, None] * (output.to(tl.float32) - mean_conv[:, None])
                part = tl.where(is_node[:, None], part, 0.0).to(z_conv.dtype.element_ty)
                store_hidden(of_z_conv, part, node, sample, batch, is_node, first, CHANNELS, BLOCK)
                totals = ()
                for relation in tl.static_range(1 + KINDS):
                    if HOLDS:
                        b = relations[relation]
                    else:
                        b = load_transposed(convolution, relation, first, CHANNELS, PADDED_CLASSES, BLOCK)
                    totals += (product(part, b, of_relations[relation], PRECISION, UPCAST),)
                of_relations = totals
                settle(SETTLE)
            of_factor = of_relations[0]
            for kind in tl.static_range(KINDS):
                of_received = of_relations[1 + kind].to(z_conv.dtype.element_ty)
                a = edges[kind] if HOLDS else load_edges_backward(adj, sample, kind, node, is_node, NODES, KINDS)
                of_factor = product(a, of_received, of_factor, PRECISION, UPCAST)
            settle(SETTLE)
            of_latent += tl.where(is_latent & (node != next_row)[:, None], of_factor, 0.0)
            products += tl.sum(of_latent * normed, 1)
            sums += tl.sum(of_latent, 1)
            of_latent *= factors[:, None]
        if COUPLES:
            before = before.to(tl.float32)
            apart = before - mean[:, None]
            before = before * scale[:, None] + shift[:, None]
            hidden = relu(before).to(z.dtype.element_ty)
            if STORES:
                store_hidden(layer_input, hidden, node, sample, batch, is_node, 0, WIDTH, PADDED_WIDTH)
            logits = last_layer(hidden, logit_weights, logit_biases, PRECISION, UPCAST)
            shifts = last_layer(hidden, shift_weights, shift_biases, PRECISION, UPCAST)
            share, is_row = sigmoid(logits), (node == row)[:, None]
            scaled = tl.where(is_row, of_latent * share, 0.0)
            of_logits = of_term * (1 - share) + scaled * (latent + shifts) * (1 - share)
            of_logits = tl.where(is_latent, of_logits, 0.0).to(z.dtype.element_ty)
            of_shifts = tl.where(is_latent, scaled, 0.0).to(z.dtype.element_ty)
            to = of_outputs + (node * batch + sample)[:, None] * (2 * PADDED_CLASSES) + column[None, :]
            tl.store(to, of_logits, mask=is_node[:, None])
            tl.store(to + PADDED_CLASSES, of_shifts, mask=is_node[:, None])
            of_hidden = tl.zeros([PADDED_NODES, PADDED_WIDTH], tl.float32)
            of_hidden = product(of_logits, tl.trans(logit_weights), of_hidden, PRECISION, UPCAST)
            of_hidden = product(of_shifts, tl.trans(shift_weights), of_hidden, PRECISION, UPCAST)
            settle(SETTLE)
            of_hidden = tl.where((before <= 0) | (is_node == 0)[:, None], 0.0, of_hidden).to(z.dtype.element_ty)
            store_hidden(g_out, of_hidden, node, sample, batch, is_node, 0, WIDTH, PADDED_WIDTH)
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
    g, out, partials, norm_out, norm_gradients, matrix, z, norm, of_out, layer_input, g_in, in_partials,
    batch, nodes, programs,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    STORES: tl.constexpr, PARTIALS: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr,
    SETTLE: tl.constexpr,
):  # fmt: skip
    """The gradients of `layer`: of its output `out` to `of_out`, and of BatchNorm(z) to `g_in`.

    The layer's input again to `layer_input`, if the kernel STORES it.
    """
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
    after = before * scale + shift
    if STORES:
        tl.store(layer_input + offset, relu(after).to(layer_input.dtype.element_ty), mask=mask)
    gradient = tl.where((after <= 0) | (mask == 0), 0.0, total).to(g_in.dtype.element_ty)
    tl.store(g_in + offset, gradient, mask=mask)
    gradient = gradient.to(tl.float32)
    to = in_partials + node * (2 * across * down) + tile
    tl.store(to, tl.sum(tl.sum(gradient, 1), 0))
    tl.store(to + across * down, tl.sum(tl.sum(gradient * (before - mean), 1), 0))
