# type: ignore  (the type checker reads Triton as Python)
"""Triton kernels between nodes and edge frames: gathering, summing, attention. One warp computes one edge or node.

Features of equal channels are rectangles [rows, channels], and an edge's rotation is one small matrix product. `table`
has for each (row in the edge frame, flat component) the index of its Wigner matrix entry, -1 for zero.
"""

import triton
import triton.language as tl


@triton.jit
def _rotation(wigner, offset, mask):
    """A tile of the block-diagonal rotation of one edge."""
    return tl.load(wigner + offset, mask=mask & (offset >= 0), other=0.0)


@triton.jit
def _rectangle(base, row, channel, rows, CHANNELS: tl.constexpr):
    mask = (row < rows)[:, None] & (channel < CHANNELS)[None, :]
    return tl.load(base + row[:, None] * CHANNELS + channel[None, :], mask=mask, other=0.0)


@triton.jit
def gather_to_edges(
    features, wigner, nodes, table, num_real, out, edges,
    PACKED: tl.constexpr, COMPONENTS: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, BE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Features of each edge's node in the edge's frame; edges from `num_real` on get zeros."""
    row, comp, channel = tl.arange(0, SIZE), tl.arange(0, SIZE), tl.arange(0, WIDTH)
    offset = tl.load(table + row[:, None] * SIZE + comp[None, :])
    is_in = (comp < COMPONENTS)[:, None] & (channel < CHANNELS)[None, :]
    is_out = (row < ROWS)[:, None] & (channel < CHANNELS)[None, :]
    real = tl.load(num_real)
    for j in range(BE):
        edge = tl.program_id(0).to(tl.int64) * BE + j
        mask = edge < real
        node = tl.load(nodes + edge, mask=mask, other=0)
        turn = _rotation(wigner + edge * PACKED, offset, mask)
        source = features + node * (COMPONENTS * CHANNELS)
        value = tl.load(source + comp[:, None] * CHANNELS + channel[None, :], mask=is_in & mask, other=0.0)
        seen = tl.dot(turn, value, input_precision=PRECISION)
        target = out + edge * (ROWS * CHANNELS) + row[:, None] * CHANNELS + channel[None, :]
        tl.store(target, seen.to(out.dtype.element_ty), mask=is_out & (edge < edges))


@triton.jit
def sum_from_edges(
    columns, wigner, pointers, order, table, added, out,
    ADD: tl.constexpr, ORDERED: tl.constexpr, PACKED: tl.constexpr, COMPONENTS: tl.constexpr, ROWS: tl.constexpr,
    CHANNELS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """For each node the sum over its edges of features in their frames, rotated into the common frame.

    With ADD, it is `added` more.
    """
    node = tl.program_id(0).to(tl.int64)
    row, comp, channel = tl.arange(0, SIZE), tl.arange(0, SIZE), tl.arange(0, WIDTH)
    back = tl.load(table + row[None, :] * SIZE + comp[:, None])
    is_in = (row < ROWS)[:, None] & (channel < CHANNELS)[None, :]
    acc = tl.zeros([SIZE, WIDTH], tl.float32)
    if ADD:
        acc = _rectangle(added + node * (COMPONENTS * CHANNELS), comp, channel, COMPONENTS, CHANNELS).to(tl.float32)
    for at in range(tl.load(pointers + node), tl.load(pointers + node + 1)):
        edge = at
        if ORDERED:
            edge = tl.load(order + at)
        source = columns + edge * (ROWS * CHANNELS)
        seen = tl.load(source + row[:, None] * CHANNELS + channel[None, :], mask=is_in, other=0.0)
        acc = tl.dot(_rotation(wigner + edge * PACKED, back, True), seen, acc, input_precision=PRECISION)
    target = out + node * (COMPONENTS * CHANNELS) + comp[:, None] * CHANNELS + channel[None, :]
    tl.store(target, acc.to(out.dtype.element_ty), mask=(comp < COMPONENTS)[:, None] & (channel < CHANNELS)[None, :])


@triton.jit
def _per_head(values, WIDTH: tl.constexpr, PER_HEAD: tl.constexpr):
    """Sums over the channels of each head, broadcast to its channels."""
    heads = tl.reshape(values, [WIDTH // PER_HEAD, PER_HEAD])
    sums = tl.sum(heads, 1)[:, None] + tl.zeros_like(heads)
    return tl.reshape(sums, [WIDTH])


@triton.jit
def attend(
    messages, query, wigner, pointers, value_table, key_table, out, log_sum, scale,
    PACKED: tl.constexpr, VALUE_COMPONENTS: tl.constexpr, VALUE_ROWS: tl.constexpr, KEY_COMPONENTS: tl.constexpr,
    KEY_ROWS: tl.constexpr, CHANNELS: tl.constexpr, PER_HEAD: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """For each node the softmax-weighted sum of its edges' values, and the logarithm of each head's softmax sum."""
    node = tl.program_id(0).to(tl.int64)
    row, comp, channel = tl.arange(0, SIZE), tl.arange(0, SIZE), tl.arange(0, WIDTH)
    key_turn = tl.load(key_table + row[:, None] * SIZE + comp[None, :])
    value_back = tl.load(value_table + row[None, :] * SIZE + comp[:, None])
    q = _rectangle(query + node * (KEY_COMPONENTS * CHANNELS), comp, channel, KEY_COMPONENTS, CHANNELS)
    highest = tl.full([WIDTH], float("-inf"), tl.float32)
    total = tl.zeros([WIDTH], tl.float32)
    acc = tl.zeros([SIZE, WIDTH], tl.float32)
    for at in range(tl.load(pointers + node), tl.load(pointers + node + 1)):
        edge = at
        message = messages + edge * ((VALUE_ROWS + KEY_ROWS) * CHANNELS)
        seen = tl.dot(_rotation(wigner + edge * PACKED, key_turn, True), q, input_precision=PRECISION)
        k = _rectangle(message + VALUE_ROWS * CHANNELS, row, channel, KEY_ROWS, CHANNELS)
        logit = _per_head(tl.sum(seen * k, 0), WIDTH, PER_HEAD) * scale
        v = _rectangle(message, row, channel, VALUE_ROWS, CHANNELS)
        new = tl.maximum(highest, logit)
        shrink, weight = tl.exp(highest - new), tl.exp(logit - new)
        turned = tl.dot(_rotation(wigner + edge * PACKED, value_back, True), v, input_precision=PRECISION)
        acc = acc * shrink[None, :] + turned * weight[None, :]
        total = total * shrink + weight
        highest = new
    is_empty = total == 0
    acc = acc / tl.where(is_empty, 1.0, total)[None, :]
    log_total = tl.where(is_empty, 0.0, highest) + tl.log(tl.where(is_empty, 1.0, total))
    is_channel = channel < CHANNELS
    target = out + node * (VALUE_COMPONENTS * CHANNELS) + comp[:, None] * CHANNELS + channel[None, :]
    tl.store(target, acc.to(out.dtype.element_ty), mask=(comp < VALUE_COMPONENTS)[:, None] & is_channel[None, :])
    tl.store(log_sum + node * CHANNELS + channel, log_total, mask=is_channel)


@triton.jit
def attend_backward(
    messages, query, wigner, pointers, value_table, key_table, out, log_sum, grad, grad_messages, grad_query, scale,
    edges, PACKED: tl.constexpr, VALUE_COMPONENTS: tl.constexpr, VALUE_ROWS: tl.constexpr, KEY_COMPONENTS: tl.constexpr,
    KEY_ROWS: tl.constexpr, CHANNELS: tl.constexpr, PER_HEAD: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of the messages into each node and of its query; recomputes the softmax from `log_sum`.

    Messages of padded edges get zeros, spread over the programs.
    """
    node = tl.program_id(0).to(tl.int64)
    row, comp, channel = tl.arange(0, SIZE), tl.arange(0, SIZE), tl.arange(0, WIDTH)
    is_channel = channel < CHANNELS
    key_turn = tl.load(key_table + row[:, None] * SIZE + comp[None, :])
    key_back = tl.load(key_table + row[None, :] * SIZE + comp[:, None])
    value_turn = tl.load(value_table + row[:, None] * SIZE + comp[None, :])
    q = _rectangle(query + node * (KEY_COMPONENTS * CHANNELS), comp, channel, KEY_COMPONENTS, CHANNELS)
    g = _rectangle(grad + node * (VALUE_COMPONENTS * CHANNELS), comp, channel, VALUE_COMPONENTS, CHANNELS)
    o = _rectangle(out + node * (VALUE_COMPONENTS * CHANNELS), comp, channel, VALUE_COMPONENTS, CHANNELS)
    log_total = tl.load(log_sum + node * CHANNELS + channel, mask=is_channel, other=0.0)
    mean = _per_head(tl.sum(g.to(tl.float32) * o.to(tl.float32), 0), WIDTH, PER_HEAD)
    offsets = row[:, None] * CHANNELS + channel[None, :]
    is_value, is_key = (
        (row < VALUE_ROWS)[:, None] & is_channel[None, :],
        (row < KEY_ROWS)[:, None] & is_channel[None, :],
    )
    kind = grad_messages.dtype.element_ty
    acc = tl.zeros([SIZE, WIDTH], tl.float32)
    for at in range(tl.load(pointers + node), tl.load(pointers + node + 1)):
        edge = at
        offset = edge * ((VALUE_ROWS + KEY_ROWS) * CHANNELS)
        key_offset = offset + VALUE_ROWS * CHANNELS
        seen_q = tl.dot(_rotation(wigner + edge * PACKED, key_turn, True), q, input_precision=PRECISION)
        seen_g = tl.dot(_rotation(wigner + edge * PACKED, value_turn, True), g, input_precision=PRECISION)
        k = _rectangle(messages + key_offset, row, channel, KEY_ROWS, CHANNELS).to(tl.float32)
        v = _rectangle(messages + offset, row, channel, VALUE_ROWS, CHANNELS).to(tl.float32)
        weight = tl.exp(_per_head(tl.sum(seen_q * k, 0), WIDTH, PER_HEAD) * scale - log_total)
        slope = weight * (_per_head(tl.sum(seen_g * v, 0), WIDTH, PER_HEAD) - mean) * scale
        tl.store(grad_messages + offset + offsets, (seen_g * weight[None, :]).to(kind), mask=is_value)
        tl.store(grad_messages + key_offset + offsets, (seen_q * slope[None, :]).to(kind), mask=is_key)
        turned = (k * slope[None, :]).to(q.dtype)
        acc = tl.dot(_rotation(wigner + edge * PACKED, key_back, True), turned, acc, input_precision=PRECISION)
    target = grad_query + node * (KEY_COMPONENTS * CHANNELS) + comp[:, None] * CHANNELS + channel[None, :]
    tl.store(target, acc.to(grad_query.dtype.element_ty), mask=(comp < KEY_COMPONENTS)[:, None] & is_channel[None, :])
    zeros = tl.zeros([SIZE, WIDTH], kind)
    for edge in range(tl.load(pointers + tl.num_programs(0)) + node, edges, tl.num_programs(0)):
        offset = edge * ((VALUE_ROWS + KEY_ROWS) * CHANNELS)
        tl.store(grad_messages + offset + offsets, zeros, mask=is_value)
        tl.store(grad_messages + offset + VALUE_ROWS * CHANNELS + offsets, zeros, mask=is_key)
