# type: ignore  (the type checker reads Triton as Python)
"""Triton kernels of convolutions and attention between features of degrees 0 and 1, in the common frame.

A message is sum over terms of c(r) (h T): h is an edge's hidden radial layer, T the source node's features times the
last radial matrix, [frequencies, nodes, components in, channels out, MID], and c(r) are coefficients of the edge's
unit vector r, which is 0 for an edge of length 0. Pairs of degrees are named in, out: T10 is from vectors to scalars.
Edges of a source are `order[ptr[node] : ptr[node + 1]]`. `columns0[o]` and `columns1[3 o + component]` are a message's.
"""

import triton
import triton.language as tl

from src.gpu.wgmma_triton import settle


@triton.jit
def _direction(rel_pos, edge, is_edge):
    x = tl.load(rel_pos + edge * 3, mask=is_edge, other=0.0).to(tl.float32)
    y = tl.load(rel_pos + edge * 3 + 1, mask=is_edge, other=0.0).to(tl.float32)
    z = tl.load(rel_pos + edge * 3 + 2, mask=is_edge, other=0.0).to(tl.float32)
    inverse = 1.0 / tl.maximum(tl.sqrt(x * x + y * y + z * z), 1e-12)
    return x * inverse, y * inverse, z * inverse


@triton.jit
def _edges_of(order, at, end):
    is_edge = at < end
    return tl.load(order + at, mask=is_edge, other=0).to(tl.int64), is_edge


@triton.jit
def _hidden(hidden, edge, is_edge, edges, GROUP: tl.constexpr, MID: tl.constexpr):
    mid = tl.arange(0, MID)
    rows = hidden + (GROUP * edges + edge) * MID
    return tl.load(rows[:, None] + mid[None, :], mask=is_edge[:, None], other=0.0)


@triton.jit
def _term(table, row, o, is_o, OUT: tl.constexpr, MID: tl.constexpr):
    """Row `row` of T, [MID, channels out]."""
    mid = tl.arange(0, MID)
    return tl.load(table + (row * OUT + o)[None, :] * MID + mid[:, None], mask=is_o[None, :], other=0.0)


@triton.jit
def _term_transposed(table, row, o, is_o, OUT: tl.constexpr, MID: tl.constexpr):
    mid = tl.arange(0, MID)
    return tl.load(table + (row * OUT + o)[:, None] * MID + mid[None, :], mask=is_o[:, None], other=0.0)


@triton.jit
def _gradient(grad, columns, edge, is_edge, o, is_o, component, stride, STEP: tl.constexpr):
    column = tl.load(columns + STEP * o + component, mask=is_o, other=0)
    rows = grad + edge * stride
    mask = is_edge[:, None] & is_o[None, :]
    return tl.load(rows[:, None] + column[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _slope(gx, gy, gz, along, x, y, z, square, c0, c1, c2, F: tl.constexpr, C: tl.constexpr):
    """The gradient of h T for frequency F and component C of pair 11, from those of a vector message."""
    if F == 0:
        if C == 0:
            out = c0 * gx
        elif C == 1:
            out = c0 * gy
        else:
            out = c0 * gz
    elif F == 1:
        if C == 0:
            out = c1 * (z[:, None] * gy - y[:, None] * gz)
        elif C == 1:
            out = c1 * (x[:, None] * gz - z[:, None] * gx)
        else:
            out = c1 * (y[:, None] * gx - x[:, None] * gy)
    else:
        if C == 0:
            out = c2 * (3.0 * x[:, None] * along - square[:, None] * gx)
        elif C == 1:
            out = c2 * (3.0 * y[:, None] * along - square[:, None] * gy)
        else:
            out = c2 * (3.0 * z[:, None] * along - square[:, None] * gz)
    return out


@triton.jit
def _component(x, y, z, C: tl.constexpr):
    if C == 0:
        out = x
    elif C == 1:
        out = y
    else:
        out = z
    return out


@triton.jit(do_not_specialize=["nodes", "edges", "split"])
def messages(
    hidden, rel_pos, order, ptr, t00, t10, t01, t11, columns0, columns1, out, nodes, edges, split, stride,
    c00, c10, c01, c0, c1, c2, G00: tl.constexpr, G10: tl.constexpr, G01: tl.constexpr, G11: tl.constexpr,
    OUT0: tl.constexpr, OUT1: tl.constexpr, JOBS0: tl.constexpr, BE: tl.constexpr,
    BO: tl.constexpr, MID: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Messages of a source's edges in `split` programs, BO channels of degree 0 or 1 in each. A group < 0: no pair."""
    node = (tl.program_id(0) // split).to(tl.int64)
    job = tl.program_id(1)
    begin, end = tl.load(ptr + node), tl.load(ptr + node + 1)
    for first in range(begin + (tl.program_id(0) % split) * BE, end, split * BE):
        edge, is_edge = _edges_of(order, first + tl.arange(0, BE), end)
        x, y, z = _direction(rel_pos, edge, is_edge)
        target = out + edge * stride
        if job < JOBS0:
            o = job * BO + tl.arange(0, BO)
            is_o = o < OUT0
            acc = tl.zeros([BE, BO], tl.float32)
            if G00 >= 0:
                h = _hidden(hidden, edge, is_edge, edges, G00, MID)
                acc += c00 * tl.dot(h, _term(t00, node, o, is_o, OUT0, MID), input_precision=PRECISION)
            if G10 >= 0:
                h = _hidden(hidden, edge, is_edge, edges, G10, MID)
                for c in tl.static_range(3):
                    part = tl.dot(h, _term(t10, node * 3 + c, o, is_o, OUT0, MID), input_precision=PRECISION)
                    acc += c10 * _component(x, y, z, c)[:, None] * part
            column = tl.load(columns0 + o, mask=is_o, other=0)
            tl.store(target[:, None] + column[None, :], acc.to(out.dtype.element_ty),
                     mask=is_edge[:, None] & is_o[None, :])  # fmt: skip
        else:
            o = (job - JOBS0) * BO + tl.arange(0, BO)
            is_o = o < OUT1
            mx = tl.zeros([BE, BO], tl.float32)
            my = tl.zeros([BE, BO], tl.float32)
            mz = tl.zeros([BE, BO], tl.float32)
            if G11 >= 0:
                h = _hidden(hidden, edge, is_edge, edges, G11, MID)
                square = x * x + y * y + z * z
                along = tl.zeros([BE, BO], tl.float32)
                for c in tl.static_range(3):
                    same = tl.dot(h, _term(t11, node * 3 + c, o, is_o, OUT1, MID), input_precision=PRECISION) * c0
                    a1 = tl.dot(h, _term(t11, (nodes + node) * 3 + c, o, is_o, OUT1, MID), input_precision=PRECISION)
                    a2 = tl.dot(h, _term(t11, (2 * nodes + node) * 3 + c, o, is_o, OUT1, MID),
                                input_precision=PRECISION)  # fmt: skip
                    along += _component(x, y, z, c)[:, None] * a2
                    same -= c2 * square[:, None] * a2
                    a1 = c1 * a1
                    if c == 0:
                        mx += same
                        my += z[:, None] * a1
                        mz -= y[:, None] * a1
                    elif c == 1:
                        mx -= z[:, None] * a1
                        my += same
                        mz += x[:, None] * a1
                    else:
                        mx += y[:, None] * a1
                        my -= x[:, None] * a1
                        mz += same
                along = 3.0 * c2 * along
                mx += x[:, None] * along
                my += y[:, None] * along
                mz += z[:, None] * along
            if G01 >= 0:
                h = _hidden(hidden, edge, is_edge, edges, G01, MID)
                s = c01 * tl.dot(h, _term(t01, node, o, is_o, OUT1, MID), input_precision=PRECISION)
                mx += x[:, None] * s
                my += y[:, None] * s
                mz += z[:, None] * s
            mask = is_edge[:, None] & is_o[None, :]
            for c in tl.static_range(3):
                column = tl.load(columns1 + 3 * o + c, mask=is_o, other=0)
                value = _component(mx, my, mz, c).to(out.dtype.element_ty)
                tl.store(target[:, None] + column[None, :], value, mask=mask)


@triton.jit(do_not_specialize=["nodes", "edges", "split"])
def messages_backward_hidden(
    rel_pos, order, ptr, t00, t10, t01, t11, columns0, columns1, grad, grad_hidden, nodes, edges, split, stride,
    c00, c10, c01, c0, c1, c2, G00: tl.constexpr, G10: tl.constexpr, G01: tl.constexpr, G11: tl.constexpr,
    OUT0: tl.constexpr, OUT1: tl.constexpr, BE: tl.constexpr, BO: tl.constexpr,
    MID: tl.constexpr, PRECISION: tl.constexpr, SETTLE: tl.constexpr,
):  # fmt: skip
    """Gradients of the hidden layers; a program has `split` programs' edges of a source and one radial network."""
    node = (tl.program_id(0) // split).to(tl.int64)
    group = tl.program_id(1)
    begin, end = tl.load(ptr + node), tl.load(ptr + node + 1)
    mid = tl.arange(0, MID)
    for first in range(begin + (tl.program_id(0) % split) * BE, end, split * BE):
        edge, is_edge = _edges_of(order, first + tl.arange(0, BE), end)
        x, y, z = _direction(rel_pos, edge, is_edge)
        acc = tl.zeros([BE, MID], tl.float32)
        if (group == G00) | (group == G10):
            for at in tl.range(0, OUT0, BO, num_stages=1):
                o = at + tl.arange(0, BO)
                is_o = o < OUT0
                g = _gradient(grad, columns0, edge, is_edge, o, is_o, 0, stride, 1)
                if group == G00:
                    t = _term_transposed(t00, node, o, is_o, OUT0, MID)
                    acc = tl.dot((c00 * g).to(t.dtype), t, acc, input_precision=PRECISION)
                if group == G10:
                    for c in tl.static_range(3):
                        t = _term_transposed(t10, node * 3 + c, o, is_o, OUT0, MID)
                        part = (c10 * _component(x, y, z, c)[:, None] * g).to(t.dtype)
                        acc = tl.dot(part, t, acc, input_precision=PRECISION)
        if (group == G01) | (group == G11):
            square = x * x + y * y + z * z
            for at in tl.range(0, OUT1, BO, num_stages=1):
                o = at + tl.arange(0, BO)
                is_o = o < OUT1
                gx = _gradient(grad, columns1, edge, is_edge, o, is_o, 0, stride, 3)
                gy = _gradient(grad, columns1, edge, is_edge, o, is_o, 1, stride, 3)
                gz = _gradient(grad, columns1, edge, is_edge, o, is_o, 2, stride, 3)
                along = x[:, None] * gx + y[:, None] * gy + z[:, None] * gz
                if group == G01:
                    t = _term_transposed(t01, node, o, is_o, OUT1, MID)
                    acc = tl.dot((c01 * along).to(t.dtype), t, acc, input_precision=PRECISION)
                if group == G11:
                    for f in tl.static_range(3):
                        for c in tl.static_range(3):
                            t = _term_transposed(t11, (f * nodes + node) * 3 + c, o, is_o, OUT1, MID)
                            part = _slope(gx, gy, gz, along, x, y, z, square, c0, c1, c2, f, c).to(t.dtype)
                            acc = tl.dot(part, t, acc, input_precision=PRECISION)
        settle(SETTLE)
        target = grad_hidden + (group * edges + edge) * MID
        tl.store(target[:, None] + mid[None, :], acc.to(grad_hidden.dtype.element_ty), mask=is_edge[:, None])


@triton.jit(do_not_specialize=["nodes", "edges"])
def messages_backward_terms(
    hidden, rel_pos, order, ptr, columns, grad, grad_t, nodes, edges, stride, c0, c1, c2,
    FROM: tl.constexpr, TO: tl.constexpr, GROUP: tl.constexpr, OUT: tl.constexpr, BE: tl.constexpr,
    BO: tl.constexpr, MID: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of one pair's T, of degrees FROM and TO: a program has a source, BO channels and one component in."""
    node = tl.program_id(0).to(tl.int64)
    o = tl.program_id(1) * BO + tl.arange(0, BO)
    is_o = o < OUT
    mid = tl.arange(0, MID)
    begin, end = tl.load(ptr + node), tl.load(ptr + node + 1)
    wanted = tl.program_id(2)  # the component in
    acc = tl.zeros([BO, MID], tl.float32)
    acc1 = tl.zeros([BO, MID], tl.float32)
    acc2 = tl.zeros([BO, MID], tl.float32)
    for first in range(begin, end, BE):
        edge, is_edge = _edges_of(order, first + tl.arange(0, BE), end)
        h = _hidden(hidden, edge, is_edge, edges, GROUP, MID)
        x, y, z = _direction(rel_pos, edge, is_edge)
        r = tl.where(wanted == 0, x, tl.where(wanted == 1, y, z))
        if TO == 0:
            g = _gradient(grad, columns, edge, is_edge, o, is_o, 0, stride, 1)
            g = g if FROM == 0 else r[:, None] * g
            acc = tl.dot(tl.trans((c0 * g).to(h.dtype)), h, acc, input_precision=PRECISION)
        else:
            gx = _gradient(grad, columns, edge, is_edge, o, is_o, 0, stride, 3)
            gy = _gradient(grad, columns, edge, is_edge, o, is_o, 1, stride, 3)
            gz = _gradient(grad, columns, edge, is_edge, o, is_o, 2, stride, 3)
            along = x[:, None] * gx + y[:, None] * gy + z[:, None] * gz
            if FROM == 0:
                acc = tl.dot(tl.trans((c0 * along).to(h.dtype)), h, acc, input_precision=PRECISION)
            else:
                g = tl.where(wanted == 0, gx, tl.where(wanted == 1, gy, gz))
                turned = tl.where(
                    wanted == 0, z[:, None] * gy - y[:, None] * gz,
                    tl.where(wanted == 1, x[:, None] * gz - z[:, None] * gx, y[:, None] * gx - x[:, None] * gy),
                )  # fmt: skip
                square = x * x + y * y + z * z
                bent = 3.0 * r[:, None] * along - square[:, None] * g
                acc = tl.dot(tl.trans((c0 * g).to(h.dtype)), h, acc, input_precision=PRECISION)
                acc1 = tl.dot(tl.trans((c1 * turned).to(h.dtype)), h, acc1, input_precision=PRECISION)
                acc2 = tl.dot(tl.trans((c2 * bent).to(h.dtype)), h, acc2, input_precision=PRECISION)
    inner = (node * (2 * FROM + 1) + wanted) * OUT * MID + o[:, None] * MID + mid[None, :]
    kind = grad_t.dtype.element_ty
    tl.store(grad_t + inner, acc.to(kind), mask=is_o[:, None])
    if (FROM == 1) & (TO == 1):
        size = nodes.to(tl.int64) * 3 * OUT * MID
        tl.store(grad_t + size + inner, acc1.to(kind), mask=is_o[:, None])
        tl.store(grad_t + 2 * size + inner, acc2.to(kind), mask=is_o[:, None])


@triton.jit
def sum_incoming(messages, order, ptr, out, stride, WIDTH: tl.constexpr, PADDED: tl.constexpr, BE: tl.constexpr):
    """For each node the sum of its incoming edges' messages."""
    node = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PADDED)
    is_column = column < WIDTH
    begin, end = tl.load(ptr + node), tl.load(ptr + node + 1)
    acc = tl.zeros([BE, PADDED], tl.float32)
    for first in range(begin, end, BE):
        edge, is_edge = _edges_of(order, first + tl.arange(0, BE), end)
        rows = messages + edge * stride
        mask = is_edge[:, None] & is_column[None, :]
        acc += tl.load(rows[:, None] + column[None, :], mask=mask, other=0.0).to(tl.float32)
    total = tl.sum(acc, 0).to(out.dtype.element_ty)
    tl.store(out + node * WIDTH + column, total, mask=is_column)


@triton.jit
def attend(
    messages, query, order, ptr, values, keys, out, log_sum, stride, query_width, out_width, scale,
    HEADS: tl.constexpr, VALUE: tl.constexpr, KEY: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """For each node and head the softmax-weighted sum of incoming values, and the logarithm of the softmax's sum.

    A message has VALUE columns of each head, then KEY of each; `values` and `keys` are their columns in the nodes'
    features, -1 for padding.
    """
    node = tl.program_id(0).to(tl.int64)
    v, k, head = tl.arange(0, HEADS * VALUE), tl.arange(0, HEADS * KEY), tl.arange(0, HEADS)
    of_value, of_key = tl.load(values + v), tl.load(keys + k)
    q = tl.load(query + node * query_width + of_key, mask=of_key >= 0, other=0.0).to(tl.float32)
    begin, end = tl.load(ptr + node), tl.load(ptr + node + 1)
    highest = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    acc = tl.zeros([HEADS, VALUE], tl.float32)
    for first in range(begin, end, BE):
        edge, is_edge = _edges_of(order, first + tl.arange(0, BE), end)
        rows = messages + edge * stride
        mask = is_edge[:, None] & (of_key >= 0)[None, :]
        product = (
            tl.load(rows[:, None] + (HEADS * VALUE + k)[None, :], mask=mask, other=0.0).to(tl.float32) * q[None, :]
        )
        logit = tl.sum(tl.reshape(product, [BE, HEADS, KEY]), 2) * scale
        logit = tl.where(is_edge[:, None], logit, float("-inf"))
        new = tl.maximum(highest, tl.max(logit, 0))
        shrink, weight = tl.exp(highest - new), tl.exp(logit - new[None, :])
        mask = is_edge[:, None] & (of_value >= 0)[None, :]
        value = tl.load(rows[:, None] + v[None, :], mask=mask, other=0.0).to(tl.float32)
        part = tl.sum(tl.reshape(value, [BE, HEADS, VALUE]) * weight[:, :, None], 0)
        acc = acc * shrink[:, None] + part
        total = total * shrink + tl.sum(weight, 0)
        highest = new
    is_empty = total == 0
    acc = acc / tl.where(is_empty, 1.0, total)[:, None]
    log_total = tl.where(is_empty, 0.0, highest) + tl.log(tl.where(is_empty, 1.0, total))
    flat = tl.reshape(acc, [HEADS * VALUE]).to(out.dtype.element_ty)
    tl.store(out + node * out_width + of_value, flat, mask=of_value >= 0)
    tl.store(log_sum + node * HEADS + head, log_total)


@triton.jit
def attend_backward(
    messages, query, order, ptr, values, keys, out, log_sum, grad, grad_messages, grad_query, stride, query_width,
    out_width, scale, HEADS: tl.constexpr, VALUE: tl.constexpr, KEY: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Gradients of the messages into each node and of its query; recomputes the softmax from `log_sum`."""
    node = tl.program_id(0).to(tl.int64)
    v, k, head = tl.arange(0, HEADS * VALUE), tl.arange(0, HEADS * KEY), tl.arange(0, HEADS)
    of_value, of_key = tl.load(values + v), tl.load(keys + k)
    q = tl.load(query + node * query_width + of_key, mask=of_key >= 0, other=0.0).to(tl.float32)
    g = tl.load(grad + node * out_width + of_value, mask=of_value >= 0, other=0.0).to(tl.float32)
    o = tl.load(out + node * out_width + of_value, mask=of_value >= 0, other=0.0).to(tl.float32)
    mean = tl.sum(tl.reshape(g * o, [HEADS, VALUE]), 1)
    log_total = tl.load(log_sum + node * HEADS + head)
    begin, end = tl.load(ptr + node), tl.load(ptr + node + 1)
    acc = tl.zeros([HEADS, KEY], tl.float32)
    kind = grad_messages.dtype.element_ty
    for first in range(begin, end, BE):
        edge, is_edge = _edges_of(order, first + tl.arange(0, BE), end)
        rows, targets = messages + edge * stride, grad_messages + edge * stride
        is_key = is_edge[:, None] & (of_key >= 0)[None, :]
        is_value = is_edge[:, None] & (of_value >= 0)[None, :]
        key = tl.load(rows[:, None] + (HEADS * VALUE + k)[None, :], mask=is_key, other=0.0).to(tl.float32)
        value = tl.load(rows[:, None] + v[None, :], mask=is_value, other=0.0).to(tl.float32)
        logit = tl.sum(tl.reshape(key * q[None, :], [BE, HEADS, KEY]), 2) * scale
        weight = tl.where(is_edge[:, None], tl.exp(logit - log_total[None, :]), 0.0)
        along = tl.sum(tl.reshape(value * g[None, :], [BE, HEADS, VALUE]), 2)
        slope = weight * (along - mean[None, :]) * scale
        of_values = tl.reshape(weight[:, :, None] * tl.reshape(g, [HEADS, VALUE])[None, :, :], [BE, HEADS * VALUE])
        of_keys = tl.reshape(slope[:, :, None] * tl.reshape(q, [HEADS, KEY])[None, :, :], [BE, HEADS * KEY])
        tl.store(targets[:, None] + v[None, :], of_values.to(kind), mask=is_value)
        tl.store(targets[:, None] + (HEADS * VALUE + k)[None, :], of_keys.to(kind), mask=is_key)
        acc += tl.sum(slope[:, :, None] * tl.reshape(key, [BE, HEADS, KEY]), 0)
    flat = tl.reshape(acc, [HEADS * KEY]).to(grad_query.dtype.element_ty)
    tl.store(grad_query + node * query_width + of_key, flat, mask=of_key >= 0)
