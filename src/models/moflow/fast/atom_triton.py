# type: ignore  (the type checker reads Triton as Python)
"""The atom flow forward: a coupling with the next step's graph convolution, and the layers between, in one kernel each.

Hidden values are [node, batch, channel]: a BatchNorm channel is a node, so a tile of one node's rows has one scale and
one shift; `norm_triton` says what `norm` and `partials` are. All computation is in float32, except the factors of
products.
"""

import triton
import triton.language as tl

from src.gpu.wgmma_triton import settle
from src.models.moflow.fast.norm_triton import conclude, load_vector, relu


@triton.jit
def product(a, b, total, PRECISION: tl.constexpr, UPCAST: tl.constexpr):
    """Returns total + a b. UPCAST is for Triton's interpreter, which multiplies bfloat16 incorrectly."""
    if UPCAST:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, total, input_precision=PRECISION)


@triton.jit
def sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def load_hidden(z, node, sample, batch, mask, FIRST: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Returns one sample's hidden values [node, channel] of BLOCK channels from FIRST on."""
    channel = FIRST + tl.arange(0, BLOCK)
    offset = (node * batch + sample)[:, None] * WIDTH + channel[None, :]
    return tl.load(z + offset, mask=mask[:, None] & (channel < WIDTH)[None, :], other=0.0)


@triton.jit
def store_hidden(z, values, node, sample, batch, mask, FIRST: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    channel = FIRST + tl.arange(0, BLOCK)
    offset = (node * batch + sample)[:, None] * WIDTH + channel[None, :]
    tl.store(z + offset, values, mask=mask[:, None] & (channel < WIDTH)[None, :])


@triton.jit
def load_last(
    matrix, bias, FIRST: tl.constexpr, CLASSES: tl.constexpr, PADDED_CLASSES: tl.constexpr,
    WIDTH: tl.constexpr, PADDED_WIDTH: tl.constexpr,
):  # fmt: skip
    """Returns the last layer's weights [channel, class] and biases of CLASSES outputs from FIRST on."""
    column, channel = tl.arange(0, PADDED_CLASSES), tl.arange(0, PADDED_WIDTH)
    mask = (column < CLASSES)[None, :] & (channel < WIDTH)[:, None]
    weights = tl.load(matrix + (FIRST + column)[None, :] * WIDTH + channel[:, None], mask=mask, other=0.0)
    return weights, tl.load(bias + FIRST + column, mask=column < CLASSES, other=0.0)


@triton.jit
def last_layer(hidden, weights, biases, PRECISION: tl.constexpr, UPCAST: tl.constexpr):
    """Returns outputs of the last layer, rounded as the layer's output is."""
    total = tl.zeros([hidden.shape[0], weights.shape[1]], tl.float32)
    total = product(hidden, weights, total, PRECISION, UPCAST) + biases[None, :]
    return total.to(hidden.dtype).to(tl.float32)


@triton.jit
def load_relation(
    convolution, relation: tl.constexpr, CHANNELS: tl.constexpr, PADDED_CLASSES: tl.constexpr,
    PADDED_CHANNELS: tl.constexpr,
):  # fmt: skip
    """Returns the graph convolution's weights [class, channel] of a relation."""
    column, channel = relation * PADDED_CLASSES + tl.arange(0, PADDED_CLASSES), tl.arange(0, PADDED_CHANNELS)
    return tl.load(convolution + column[:, None] * CHANNELS + channel[None, :],
                   mask=(channel < CHANNELS)[None, :], other=0.0)  # fmt: skip


@triton.jit
def load_edges(adj, sample, kind, node, is_node, NODES: tl.constexpr, KINDS: tl.constexpr):
    """Returns a sample's edges of a kind [receiver, sender]."""
    edge = ((sample * KINDS + kind) * NODES + node)[:, None] * NODES + node[None, :]
    return tl.load(adj + edge, mask=is_node[:, None] & is_node[None, :], other=0.0)


@triton.jit(do_not_specialize=["row", "next_row"])
def between(
    x, z, partials, weight, bias, running_mean, running_var, norm, matrix, linear_bias, log_det,
    loc, scaling, adj, convolution, x_out, summed, z_out, out_partials, batch, samples, programs, row, next_row,
    COUPLES: tl.constexpr, CONVOLVES: tl.constexpr, NODES: tl.constexpr, CLASSES: tl.constexpr, KINDS: tl.constexpr,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, PADDED_NODES: tl.constexpr, PADDED_CLASSES: tl.constexpr,
    PADDED_CHANNELS: tl.constexpr, PADDED_WIDTH: tl.constexpr, HOLDS: tl.constexpr, PARTIALS: tl.constexpr,
    EPS: tl.constexpr, MOMENTUM: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr, SETTLE: tl.constexpr,
):  # fmt: skip
    """The last layer and the coupling of one step, ActNorm and graph convolution of the next one, sample by sample.

    Adds to `log_det` [batch]. Writes the latent after ActNorm to `x_out`, the sums over neighbours to `summed`
    [node, batch, 1 + KINDS, PADDED_CLASSES] and the convolution's output to `z_out`. `convolution` [1 + KINDS,
    PADDED_CLASSES, CHANNELS] has the biases in row CLASSES, which a column of ones in the latent multiplies.
    """
    program = tl.program_id(0)
    node, column = tl.arange(0, PADDED_NODES), tl.arange(0, PADDED_CLASSES)
    # The compiler moves no load across a barrier: a program that HOLDS these loads weights once, edges before products.
    if COUPLES:
        scale, shift = conclude(partials, weight, bias, running_mean, running_var, norm, node, NODES, programs,
                                program == 0, PARTIALS, EPS, MOMENTUM, 1)  # fmt: skip
        logit_weights, logit_biases = load_last(matrix, linear_bias, 0, CLASSES, PADDED_CLASSES, WIDTH, PADDED_WIDTH)
        shift_weights, shift_biases = load_last(matrix, linear_bias, CLASSES, CLASSES, PADDED_CLASSES, WIDTH,
                                                PADDED_WIDTH)  # fmt: skip
    if CONVOLVES:
        offset, factors = load_vector(loc, 0, node, NODES), load_vector(scaling, 0, node, NODES)
        relations = ()
        for relation in tl.static_range(1 + KINDS if HOLDS else 0):
            relations += (load_relation(convolution, relation, CHANNELS, PADDED_CLASSES, PADDED_CHANNELS),)
    mean, squares = tl.zeros([PADDED_NODES], tl.float32), tl.zeros([PADDED_NODES], tl.float32)
    count = 0
    # Addresses that are the same for all samples would be kept in registers from before the loop, more than there are.
    for index in tl.range(samples, disable_licm=True):
        sample = program * samples + index
        is_node = (node < NODES) & (sample < batch)
        is_latent = is_node[:, None] & (column < CLASSES)[None, :]
        place = (sample * NODES + node)[:, None] * CLASSES + column[None, :]
        latent = tl.load(x + place, mask=is_latent, other=0.0)
        if COUPLES:
            hidden = load_hidden(z, node, sample, batch, is_node, 0, WIDTH, PADDED_WIDTH)
            before = tl.load(log_det + sample, mask=sample < batch, other=0.0)
        if CONVOLVES:
            edges = ()
            for kind in tl.static_range(KINDS if HOLDS else 0):
                edges += (load_edges(adj, sample, kind, node, is_node, NODES, KINDS),)
        if COUPLES:
            hidden = relu(hidden.to(tl.float32) * scale[:, None] + shift[:, None]).to(z.dtype.element_ty)
            logits = last_layer(hidden, logit_weights, logit_biases, PRECISION, UPCAST)
            shifts = last_layer(hidden, shift_weights, shift_biases, PRECISION, UPCAST)
            terms = tl.minimum(logits, 0.0) - tl.log(1 + tl.exp(-tl.abs(logits)))
            # NaN stays NaN, which minimum would drop.
            terms = tl.where(logits != logits, logits, terms)
            total = tl.sum(tl.sum(tl.where(is_latent, terms, 0.0), 1), 0)
            tl.store(log_det + sample, before + total, mask=sample < batch)
            latent = tl.where((node == row)[:, None], (latent + shifts) * sigmoid(logits), latent)
        if CONVOLVES:
            latent = factors[:, None] * (latent + offset[:, None])
            factor = tl.where((node == next_row)[:, None], 0.0, latent)
            factor = tl.where((column == CLASSES)[None, :], 1.0, factor)
            factor = tl.where((node < NODES)[:, None] & (column <= CLASSES)[None, :], factor, 0.0)
            factor = factor.to(z_out.dtype.element_ty)
            to = summed + (node * batch + sample)[:, None] * ((1 + KINDS) * PADDED_CLASSES)
            tl.store(to + column[None, :], factor, mask=is_node[:, None])
            output = tl.zeros([PADDED_NODES, PADDED_CHANNELS], tl.float32)
            b = relations[0] if HOLDS else load_relation(convolution, 0, CHANNELS, PADDED_CLASSES, PADDED_CHANNELS)
            output = product(factor, b, output, PRECISION, UPCAST)
            for kind in tl.static_range(KINDS):
                received = tl.zeros([PADDED_NODES, PADDED_CLASSES], tl.float32)
                a = edges[kind] if HOLDS else load_edges(adj, sample, kind, node, is_node, NODES, KINDS)
                received = product(a, factor, received, PRECISION, UPCAST).to(factor.dtype)
                tl.store(to + ((1 + kind) * PADDED_CLASSES + column)[None, :], received, mask=is_node[:, None])
                if HOLDS:
                    b = relations[1 + kind]
                else:
                    b = load_relation(convolution, 1 + kind, CHANNELS, PADDED_CLASSES, PADDED_CHANNELS)
                output = product(received, b, output, PRECISION, UPCAST)
            settle(SETTLE)
            rounded = output.to(z_out.dtype.element_ty)
            store_hidden(z_out, rounded, node, sample, batch, is_node, 0, CHANNELS, PADDED_CHANNELS)
            is_channel = (tl.arange(0, PADDED_CHANNELS) < CHANNELS)[None, :]
            values = tl.where(is_channel, rounded.to(tl.float32), 0.0)
            number = tl.where(sample < batch, CHANNELS, 0)
            new_mean = tl.sum(values, 1) / CHANNELS
            distance = tl.where(is_channel, values - new_mean[:, None], 0.0)
            share = number / tl.maximum(count + number, 1).to(tl.float32)
            apart = new_mean - mean
            mean += apart * share
            squares += tl.where(sample < batch, tl.sum(distance * distance, 1), 0.0) + apart * apart * (count * share)
            count += number
        tl.store(x_out + place, latent, mask=is_latent)
    if CONVOLVES:
        to, written = out_partials + node * (3 * tl.num_programs(0)) + program, node < NODES
        tl.store(to, mean, mask=written)
        tl.store(to + tl.num_programs(0), squares, mask=written)
        tl.store(to + 2 * tl.num_programs(0), tl.zeros([PADDED_NODES], tl.float32) + count, mask=written)


@triton.jit
def layer(
    z, partials, weight, bias, running_mean, running_var, norm, matrix, linear_bias, out, out_partials,
    batch, nodes, programs,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    PARTIALS: tl.constexpr, EPS: tl.constexpr, MOMENTUM: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr,
    SETTLE: tl.constexpr,
):  # fmt: skip
    """A linear layer of relu(BatchNorm(z)): `matrix` [OUTPUTS, INPUTS]. Neighbouring programs read the same rows."""
    across: tl.constexpr = (OUTPUTS + COLUMNS - 1) // COLUMNS
    down = tl.cdiv(batch, ROWS)
    tile, node = tl.program_id(0) % (across * down), tl.program_id(0) // (across * down)
    column, row = tile % across * COLUMNS + tl.arange(0, COLUMNS), tile // across * ROWS + tl.arange(0, ROWS)
    scale, shift = conclude(partials, weight, bias, running_mean, running_var, norm, node, nodes, programs,
                            tile == 0, PARTIALS, EPS, MOMENTUM, 0)  # fmt: skip
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for k in range(0, INPUTS, DEPTH):
        channel = k + tl.arange(0, DEPTH)
        mask = (row < batch)[:, None] & (channel < INPUTS)[None, :]
        a = tl.load(z + (node * batch + row)[:, None] * INPUTS + channel[None, :], mask=mask, other=0.0)
        a = relu(a.to(tl.float32) * scale + shift).to(z.dtype.element_ty)
        mask = (channel < INPUTS)[:, None] & (column < OUTPUTS)[None, :]
        b = tl.load(matrix + column[None, :] * INPUTS + channel[:, None], mask=mask, other=0.0)
        total = product(a, b, total, PRECISION, UPCAST)
        settle(SETTLE)
    total += tl.load(linear_bias + column, mask=column < OUTPUTS, other=0.0)[None, :]
    output = total.to(out.dtype.element_ty)
    mask = (row < batch)[:, None] & (column < OUTPUTS)[None, :]
    tl.store(out + (node * batch + row)[:, None] * OUTPUTS + column[None, :], output, mask=mask)
    values = output.to(tl.float32)
    number = (tl.minimum(batch - tile // across * ROWS, ROWS)
              * tl.minimum(OUTPUTS - tile % across * COLUMNS, COLUMNS)).to(tl.float32)  # fmt: skip
    mean = tl.sum(tl.sum(tl.where(mask, values, 0.0), 1), 0) / number
    distance = tl.where(mask, values - mean, 0.0)
    to = out_partials + node * (3 * across * down) + tile
    tl.store(to, mean)
    tl.store(to + across * down, tl.sum(tl.sum(distance * distance, 1), 0))
    tl.store(to + 2 * across * down, number)
