# type: ignore  (the type checker reads Triton as Python)
"""The contraction of `reference.contract` as three Triton kernels. Radial weights exist only as tiles in registers.

With source features x, hidden radial layer h and mixed weights W, a message is
out[e, n] = sum over i and k of x[e, i] h[e, k] W[i, k, n].

Forward, a tile of radial weights, sum over k of h[e, k] W[i, k, n], is a product on the tensor cores. Both signs of m
multiply the same tile by their x[e, i] and add it up outside the tensor cores. These compute 1.44 million multiply-adds
for an edge of a hidden layer; with x[e, i] h[e, k] as the left factor, each sign by itself, they would 2.36 million.

Both backward passes are products on the tensor cores whose rows are an edge and a sign of m. The weights' gradient has
x[e, i] h[e, k] as its left factor, formed in registers.

One launch computes all jobs of a plan. A job is a row of int32: `HEAD` scalars, then output columns (-1: none). Tiles
of different widths are branches of one kernel, so that small ones run on multiprocessors that large ones leave idle.
"""

import triton
import triton.language as tl

from src.gpu.wgmma_triton import settle

HEAD = tl.constexpr(8)  # scalars per job


@triton.jit
def _weights_of(n, k, inputs, channels, MID: tl.constexpr, TRANSPOSED: tl.constexpr):
    """Offsets of mixed weights from the first: of output channels n, and of k = (input channel, mid).

    Output degrees follow one another, each [inputs, channels, MID], or [inputs, MID, channels] if transposed.
    """
    size = channels * MID
    if TRANSPOSED:
        return (n // channels) * inputs * size + n % channels, (k // MID) * size + (k % MID) * channels
    return tl.multiple_of((n // channels) * inputs * size + (n % channels) * MID, MID), (k // MID) * size + k % MID


@triton.jit
def _output_columns(table, begin, COUNT: tl.constexpr, ALIGNED: tl.constexpr):
    """Output columns, and which of them exist. Aligned: all exist, in runs of 16 that begin at multiples of 16."""
    outputs = tl.load(table + begin + tl.arange(0, COUNT))
    if ALIGNED:
        return tl.max_contiguous(tl.multiple_of(outputs, 16), 16), tl.full([COUNT], 1, tl.int1)
    return outputs, outputs >= 0


@triton.jit
def _rounded(hidden, rows64, is_row, columns, MID: tl.constexpr):
    """Rows of the float32 hidden layer in the dtype of the columns: a separate kernel need not cast it."""
    h = tl.load(hidden + rows64[:, None] * MID + tl.arange(0, MID)[None, :], mask=is_row[:, None], other=0.0)
    return h.to(columns.dtype.element_ty)


@triton.jit
def _add_messages(acc, radial, x, BE: tl.constexpr, BN: tl.constexpr, IB: tl.constexpr):
    """Adds the sum over IB inputs of radial weights [BE, IB * BN] times features [BE, IB].

    Halves both within a thread's registers: a sum over an axis takes more instructions than multiply-adds.
    """
    first, second = tl.split(tl.permute(tl.reshape(radial, [BE, 2, IB * BN // 2]), [0, 2, 1]))
    x_first, x_second = tl.split(tl.permute(tl.reshape(x, [BE, 2, IB // 2]), [0, 2, 1]))
    if IB == 2:
        acc += first * x_first
        acc += second * x_second
    else:
        acc = _add_messages(acc, first, x_first, BE, BN, IB // 2)
        acc = _add_messages(acc, second, x_second, BE, BN, IB // 2)
    return acc


@triton.jit
def _forward_tile(
    job, hidden, columns, mixed, out, edges, column_stride, out_stride, ROW: tl.constexpr, MID: tl.constexpr,
    BE: tl.constexpr, SIGNS: tl.constexpr, BN: tl.constexpr, IB: tl.constexpr, EVEN: tl.constexpr,
    ALIGNED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    inputs, first_a, first_b = tl.load(job + 1), tl.load(job + 2), tl.load(job + 3)
    plus, minus = tl.load(job + 4), tl.load(job + 5)
    channels, begin = tl.load(job + 6), tl.load(job + 7)
    rows = tl.program_id(0) * BE + tl.arange(0, BE)
    is_row = rows < edges
    rows64 = rows.to(tl.int64)
    i, r = tl.arange(0, IB), tl.arange(0, IB * BN)  # of the tile's radial weights, by input and output
    h = _rounded(hidden, rows64, is_row, columns, MID)
    same, other = job + HEAD, job + HEAD + (ROW - HEAD) // 2  # output columns of m and of -m
    of_output, of_input = _weights_of(begin + r % BN, (r // BN) * MID, inputs, channels, MID, False)
    weights = mixed + tl.arange(0, MID)[:, None] + (of_output + of_input)[None, :]
    is_output = (r >= 0) if ALIGNED else tl.load(same + r % BN) >= 0
    x_rows = columns + rows64[:, None] * column_stride + i[None, :]
    acc, acc_minus = tl.zeros([BE, BN], tl.float32), tl.zeros([BE, BN], tl.float32)
    is_x = is_row[:, None] & (i < inputs)[None, :]
    x = tl.load(x_rows + plus, mask=is_x, other=0.0)
    y = tl.load(x_rows + minus, mask=is_x, other=0.0) if SIGNS == 2 else x
    for at in range(0, inputs, IB):
        x_now, y_now = x.to(tl.float32), y.to(tl.float32)
        is_x = is_row[:, None] & (at + IB + i < inputs)[None, :]
        x = tl.load(x_rows + (plus + at + IB), mask=is_x, other=0.0)  # a step ahead: Triton pipelines only weights
        y = tl.load(x_rows + (minus + at + IB), mask=is_x, other=0.0) if SIGNS == 2 else x
        is_weight = (is_output if EVEN else is_output & (at + r // BN < inputs))[None, :]
        first = tl.multiple_of((first_a + at * channels) * MID, MID)
        radial = tl.dot(h, tl.load(weights + first, mask=is_weight, other=0.0), input_precision=PRECISION)
        acc = _add_messages(acc, radial, x_now, BE, BN, IB)
        if SIGNS == 2:
            acc_minus = _add_messages(acc_minus, radial, y_now, BE, BN, IB)
            first = tl.multiple_of((first_b + at * channels) * MID, MID)
            radial = tl.dot(h, tl.load(weights + first, mask=is_weight, other=0.0), input_precision=PRECISION)
            acc = _add_messages(acc, radial, y_now, BE, BN, IB)
            acc_minus = _add_messages(acc_minus, radial, -x_now, BE, BN, IB)
    _store_messages(out, acc, rows64, is_row, out_stride, same, BN, ALIGNED)
    if SIGNS == 2:
        _store_messages(out, acc_minus, rows64, is_row, out_stride, other, BN, ALIGNED)


@triton.jit
def _store_messages(out, acc, rows64, is_row, stride, table, BN: tl.constexpr, ALIGNED: tl.constexpr):
    outputs, is_output = _output_columns(table, 0, BN, ALIGNED)
    target = out + rows64[:, None] * stride + outputs[None, :]
    tl.store(target, acc.to(out.dtype.element_ty), mask=is_row[:, None] & is_output[None, :])


@triton.jit
def contract(
    hidden, columns, mixed, out, jobs, kinds, edges, column_stride, out_stride,
    MID: tl.constexpr, BE: tl.constexpr, IB: tl.constexpr, EVEN: tl.constexpr, ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr, ROW: tl.constexpr, WIDTHS: tl.constexpr,
):  # fmt: skip
    """Messages: a program computes those of `BE` edges for both signs of one m, `IB` input channels per step.

    A kind of WIDTHS is the number of signs (1 for m = 0) and that of output channels.
    """
    job = jobs + tl.program_id(1) * ROW
    kind = tl.load(kinds + tl.program_id(1))
    for t in tl.static_range(len(WIDTHS)):
        if kind == t:
            _forward_tile(
                job, hidden, columns, mixed, out, edges, column_stride, out_stride, ROW,
                MID, BE, WIDTHS[t][0], WIDTHS[t][1], IB, EVEN, ALIGNED, PRECISION,
            )  # fmt: skip


@triton.jit
def _rows_of(grad, rows64, is_row, stride, table, begin, COUNT: tl.constexpr, ALIGNED: tl.constexpr):
    outputs, is_output = _output_columns(table, begin, COUNT, ALIGNED)
    mask = is_row[:, None] & is_output[None, :]
    return tl.load(grad + rows64[:, None] * stride + outputs[None, :], mask=mask, other=0.0)


@triton.jit
def _terms_of(
    job, mixed, grad, rows64, is_row, stride, k, begin, MID: tl.constexpr, COUNT: tl.constexpr, ALIGNED: tl.constexpr,
    TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """Gradients [BE, COUNT] of the job's output columns from `begin`, which of them exist, and their weights."""
    inputs, first_a, first_b = tl.load(job + 1), tl.load(job + 2), tl.load(job + 3)
    outputs, channels = tl.load(job + 5), tl.load(job + 6)
    is_n = _output_columns(job + HEAD, begin, COUNT, ALIGNED)[1]
    g = _rows_of(grad, rows64, is_row, stride, job + HEAD, begin, COUNT, ALIGNED)
    n = begin + tl.arange(0, COUNT)  # the outputs of the first term, then those of the second
    of_n, of_input = _weights_of(tl.where(n < outputs, n, n - outputs), k, inputs, channels, MID, TRANSPOSED)
    of_n += tl.where(n < outputs, first_a, first_b) * MID
    if not TRANSPOSED:
        of_n = tl.multiple_of(of_n, MID)
    return g, is_n[:, None], mixed + of_n[:, None] + of_input[None, :]


@triton.jit
def _data_tile(
    job, hidden, columns, mixed, grad, grad_hidden, grad_columns, edges, column_stride, grad_stride,
    MID: tl.constexpr, BE: tl.constexpr, BN1: tl.constexpr, BN2: tl.constexpr, IB: tl.constexpr, EVEN: tl.constexpr,
    ALIGNED: tl.constexpr, TRANSPOSED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    inputs, column, channels = tl.load(job + 1), tl.load(job + 4), tl.load(job + 6)
    rows = tl.program_id(0) * BE + tl.arange(0, BE)
    is_row = rows < edges
    rows64 = rows.to(tl.int64)
    mid, i, k = tl.arange(0, MID), tl.arange(0, IB), tl.arange(0, IB * MID)
    h = _rounded(hidden, rows64, is_row, columns, MID).to(tl.float32)
    g1, is_n1, w1 = _terms_of(
        job, mixed, grad, rows64, is_row, grad_stride, k, 0, MID, BN1, ALIGNED, TRANSPOSED,
    )  # fmt: skip
    if BN2 > 0:
        g2, is_n2, w2 = _terms_of(
            job, mixed, grad, rows64, is_row, grad_stride, k, BN1, MID, BN2, ALIGNED, TRANSPOSED,
        )  # fmt: skip
    x_rows = columns + (rows64 * column_stride + column)[:, None] + i[None, :]
    out_rows = grad_columns + (rows64 * column_stride + column)[:, None] + i[None, :]
    grad_h = tl.zeros([BE, MID], tl.float32)
    is_x = is_row[:, None] & (i < inputs)[None, :]
    x = tl.load(x_rows, mask=is_x, other=0.0)
    for at in range(0, inputs, IB):
        x_now, is_now = x.to(tl.float32), is_x
        is_x = is_row[:, None] & (at + IB + i < inputs)[None, :]
        x = tl.load(x_rows + (at + IB), mask=is_x, other=0.0)  # a step ahead: Triton pipelines only weights
        is_k = ((k >= 0) if EVEN else (at + k // MID) < inputs)[None, :]
        step = tl.multiple_of(at * channels * MID, MID)
        z = tl.dot(g1, tl.load(w1 + step, mask=is_n1 & is_k, other=0.0), input_precision=PRECISION)
        if BN2 > 0:
            z = tl.dot(g2, tl.load(w2 + step, mask=is_n2 & is_k, other=0.0), z, input_precision=PRECISION)
        z = tl.reshape(z, [BE, IB, MID])
        grad_x = tl.sum(z * h[:, None, :], 2)
        tl.store(out_rows + at, grad_x.to(grad_columns.dtype.element_ty), mask=is_now)
        grad_h += tl.sum(z * x_now[:, :, None], 1)
    share = grad_hidden + tl.program_id(1).to(tl.int64) * edges * MID
    tl.store(share + rows64[:, None] * MID + mid[None, :], grad_h, mask=is_row[:, None])


@triton.jit
def contract_backward_data(
    hidden, columns, mixed, grad, grad_hidden, grad_columns, jobs, kinds, edges, column_stride, grad_stride,
    MID: tl.constexpr, BE: tl.constexpr, IB: tl.constexpr, EVEN: tl.constexpr, ALIGNED: tl.constexpr,
    TRANSPOSED: tl.constexpr, PRECISION: tl.constexpr, ROW: tl.constexpr, WIDTHS: tl.constexpr,
):  # fmt: skip
    """Gradients of the input columns of one sign of one m, and this job's partial gradient of the hidden layer.

    The inner dimension of the products are the output channels of both terms, in two widths (192 = 128 + 64), which
    are a kind of WIDTHS. `mixed` is followed by its negative, for the term that is subtracted: the tensor cores take
    `grad` from shared memory only as it is loaded.
    """
    job = jobs + tl.program_id(1) * ROW
    kind = tl.load(kinds + tl.program_id(1))
    for t in tl.static_range(len(WIDTHS)):
        if kind == t:
            _data_tile(
                job, hidden, columns, mixed, grad, grad_hidden, grad_columns, edges, column_stride, grad_stride,
                MID, BE, WIDTHS[t][0], WIDTHS[t][1], IB, EVEN, ALIGNED, TRANSPOSED, PRECISION,
            )  # fmt: skip


@triton.jit
def _add_products(
    acc, acc2, h_rows, x_rows, grad, job, table, stride, is_input, begin, end, sign,
    MID: tl.constexpr, BE: tl.constexpr, BN1: tl.constexpr, BN2: tl.constexpr, IB: tl.constexpr,
    PRECISION: tl.constexpr, SETTLE: tl.constexpr,
):  # fmt: skip
    """Adds the products of both widths, which share their left factor."""
    outputs, is_output = _output_columns(job + HEAD + table, 0, BN1, False)
    g_rows = grad + outputs * stride
    if BN2 > 0:
        outputs2, is_output2 = _output_columns(job + HEAD + table, BN1, BN2, False)
        g2_rows = grad + outputs2 * stride
    for block in range(begin, end):
        edge = block * BE + tl.arange(0, BE)
        h = tl.load(h_rows[:, None] + edge[None, :])
        x = tl.load(x_rows[:, None] + edge[None, :], mask=is_input[:, None], other=0.0)
        g = tl.load(g_rows[:, None] + edge[None, :], mask=is_output[:, None], other=0.0)
        x = (x * sign).to(h.dtype)
        a = tl.reshape(x[:, None, :] * h[None, :, :], [IB * MID, BE])
        acc = tl.dot(a, tl.trans(g), acc, input_precision=PRECISION)
        if BN2 > 0:
            g2 = tl.load(g2_rows[:, None] + edge[None, :], mask=is_output2[:, None], other=0.0)
            acc2 = tl.dot(a, tl.trans(g2), acc2, input_precision=PRECISION)
        settle(SETTLE)
    return acc, acc2


@triton.jit
def _store_weights(target, acc, job, n, k, at, inputs, channels, MID: tl.constexpr, BN: tl.constexpr,
                   EVEN: tl.constexpr):  # fmt: skip
    is_output = tl.load(job + HEAD + n) >= 0
    of_output, of_input = _weights_of(n, k, inputs, channels, MID, False)
    is_weight = ((k >= 0) if EVEN else (at + k // MID) < inputs)[:, None] & is_output[None, :]
    tl.store(target + of_input[:, None] + of_output[None, :], acc, mask=is_weight)


@triton.jit
def _weight_tile(
    job, hidden, columns, grad, grad_mixed, length, size, blocks,
    MID: tl.constexpr, BE: tl.constexpr, BN1: tl.constexpr, BN2: tl.constexpr, IB: tl.constexpr, ROW: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr, SETTLE: tl.constexpr,
):  # fmt: skip
    at, inputs, first, channels = tl.load(job + 1), tl.load(job + 2), tl.load(job + 3), tl.load(job + 4)
    column_a, column_b = tl.load(job + 5), tl.load(job + 6)
    sign = tl.load(job)
    i, mid, k = tl.arange(0, IB), tl.arange(0, MID), tl.arange(0, IB * MID)
    is_input = (i >= 0) if EVEN else (at + i) < inputs
    split = tl.program_id(1)
    first_block = split * blocks
    last_block = tl.minimum(first_block + blocks, length // BE)
    stride = length.to(tl.int64)
    h_rows = hidden + mid * stride
    # ptxas waits for every single product if the second loop comes first.
    acc, acc2 = tl.zeros([IB * MID, BN1], tl.float32), tl.zeros([IB * MID, BN2 if BN2 > 0 else 16], tl.float32)
    acc, acc2 = _add_products(
        acc, acc2, h_rows, columns + (column_a + at + i) * stride, grad, job, 0, stride, is_input,
        first_block, last_block, 1, MID, BE, BN1, BN2, IB, PRECISION, SETTLE,
    )  # fmt: skip
    if column_b >= 0:
        acc, acc2 = _add_products(
            acc, acc2, h_rows, columns + (column_b + at + i) * stride, grad, job, (ROW - HEAD) // 2, stride, is_input,
            first_block, last_block, sign, MID, BE, BN1, BN2, IB, PRECISION, SETTLE,
        )  # fmt: skip
    target = grad_mixed + split.to(tl.int64) * size + (first + at * channels) * MID
    _store_weights(target, acc, job, tl.arange(0, BN1), k, at, inputs, channels, MID, BN1, EVEN)
    if BN2 > 0:
        _store_weights(target, acc2, job, BN1 + tl.arange(0, BN2), k, at, inputs, channels, MID, BN2, EVEN)


@triton.jit
def contract_backward_weight(
    hidden, columns, grad, grad_mixed, jobs, kinds, length, size, blocks,
    MID: tl.constexpr, BE: tl.constexpr, IB: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
    SETTLE: tl.constexpr, ROW: tl.constexpr, WIDTHS: tl.constexpr,
):  # fmt: skip
    """The gradient of `IB` input channels' mixed weights of one (m, term), over one split of the edges.

    `hidden`, `columns` and `grad` are transposed, with `length` edges (a multiple of BE) as the last, inner dimension.
    A split is `blocks` times BE edges. A kind of WIDTHS is two widths of output channels (96 = 64 + 32), so that all
    channels share a left factor and each edge's x and h are read once.
    """
    job = jobs + tl.program_id(0) * ROW
    kind = tl.load(kinds + tl.program_id(0))
    for t in tl.static_range(len(WIDTHS)):
        if kind == t:
            _weight_tile(
                job, hidden, columns, grad, grad_mixed, length, size, blocks,
                MID, BE, WIDTHS[t][0], WIDTHS[t][1], IB, ROW, EVEN, PRECISION, SETTLE,
            )  # fmt: skip
