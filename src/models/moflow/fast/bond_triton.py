# type: ignore  (the type checker reads Triton as Python)
"""What lies between the products of a bond step: ActNorm, BatchNorm with ReLU, coupling, and their gradients.

A latent is [rows, 2 HALF], a row being a position of a sample; CONDITION is the first channel of the half that the
other half is transformed by, OTHER that of the transformed one. `norm` [4, channels] are a BatchNorm's mean,
1 / deviation, scale and shift. All computation is in float32.
"""

import triton
import triton.language as tl


@triton.jit
def condition(
    z, loc, scaling, out, CONDITION: tl.constexpr, HALF: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Writes ActNorm's output of one row's conditioning half, in the dtype of the products."""
    row, channel = tl.program_id(0).to(tl.int64), tl.arange(0, PADDED)
    mask = channel < HALF
    values = tl.load(z + row * (2 * HALF) + CONDITION + channel, mask=mask, other=0.0)
    values = (values + tl.load(loc + CONDITION + channel, mask=mask, other=0.0)) * tl.load(
        scaling + CONDITION + channel, mask=mask, other=0.0
    )
    tl.store(out + row * HALF + channel, values.to(out.dtype.element_ty), mask=mask)


@triton.jit
def norm_relu(
    values, weight, bias, running_mean, running_var, norm, out, rows, channels,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, EPS: tl.constexpr, MOMENTUM: tl.constexpr,
):  # fmt: skip
    """Writes relu(BatchNorm(values)) and `norm` of COLUMNS channels; updates their running statistics.

    Sums are of distances from the mean of the first ROWS rows, so that their squares do not cancel.
    """
    channel, index = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, ROWS)
    is_channel = channel < channels
    mask = (index < rows)[:, None] & is_channel[None, :]
    offset = index.to(tl.int64)[:, None] * channels + channel[None, :]
    block = tl.load(values + offset, mask=mask, other=0.0).to(tl.float32)
    first = tl.sum(block, 0) / tl.minimum(rows, ROWS)
    total, squares = tl.zeros([ROWS, COLUMNS], tl.float32), tl.zeros([ROWS, COLUMNS], tl.float32)
    for begin in range(0, rows, ROWS):
        row = begin + index
        mask = (row < rows)[:, None] & is_channel[None, :]
        offset = row.to(tl.int64)[:, None] * channels + channel[None, :]
        block = tl.load(values + offset, mask=mask, other=0.0).to(tl.float32)
        apart = tl.where(mask, block - first[None, :], 0.0)
        total += apart
        squares += apart * apart
    count = rows * 1.0
    distance = tl.sum(total, 0) / count
    mean, deviations = first + distance, tl.maximum(tl.sum(squares, 0) - distance * distance * count, 0.0)
    inverse = 1 / tl.sqrt_rn(deviations / count + EPS)
    scale = tl.load(weight + channel, mask=is_channel, other=0.0) * inverse
    shift = tl.load(bias + channel, mask=is_channel, other=0.0) - mean * scale
    tl.store(norm + channel, mean, mask=is_channel)
    tl.store(norm + channels + channel, inverse, mask=is_channel)
    tl.store(norm + 2 * channels + channel, scale, mask=is_channel)
    tl.store(norm + 3 * channels + channel, shift, mask=is_channel)
    old = tl.load(running_mean + channel, mask=is_channel, other=0.0)
    tl.store(running_mean + channel, old + MOMENTUM * (mean - old), mask=is_channel)
    old = tl.load(running_var + channel, mask=is_channel, other=0.0)
    tl.store(running_var + channel, old + MOMENTUM * (deviations / (count - 1) - old), mask=is_channel)
    for begin in range(0, rows, ROWS):
        row = begin + index
        mask = (row < rows)[:, None] & is_channel[None, :]
        offset = row.to(tl.int64)[:, None] * channels + channel[None, :]
        block = tl.load(values + offset, mask=mask, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
        block = tl.maximum(block, 0.0, propagate_nan=tl.PropagateNan.ALL)
        tl.store(out + offset, block.to(out.dtype.element_ty), mask=mask)


@triton.jit
def norm_relu_backward(
    grad, values, norm, of_values, of_weight, of_bias, of_linear_bias, rows, channels,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradients of `norm_relu`, and `of_linear_bias`: that of a bias of `values`."""
    channel, index = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, ROWS)
    is_channel = channel < channels
    mean = tl.load(norm + channel, mask=is_channel, other=0.0)
    inverse = tl.load(norm + channels + channel, mask=is_channel, other=0.0)
    scale = tl.load(norm + 2 * channels + channel, mask=is_channel, other=0.0)
    shift = tl.load(norm + 3 * channels + channel, mask=is_channel, other=0.0)
    sums, products = tl.zeros([ROWS, COLUMNS], tl.float32), tl.zeros([ROWS, COLUMNS], tl.float32)
    for begin in range(0, rows, ROWS):
        row = begin + index
        mask = (row < rows)[:, None] & is_channel[None, :]
        offset = row.to(tl.int64)[:, None] * channels + channel[None, :]
        before = tl.load(values + offset, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(grad + offset, mask=mask, other=0.0).to(tl.float32)
        g = tl.where(before * scale[None, :] + shift[None, :] <= 0, 0.0, g)
        sums += g
        products += g * (before - mean[None, :])
    of_shift, slope = tl.sum(sums, 0), tl.sum(products, 0) * inverse
    tl.store(of_weight + channel, slope, mask=is_channel)
    tl.store(of_bias + channel, of_shift, mask=is_channel)
    share, total = 1.0 / rows, tl.zeros([ROWS, COLUMNS], tl.float32)
    of_shift, slope = of_shift * share, slope * inverse * share
    for begin in range(0, rows, ROWS):
        row = begin + index
        mask = (row < rows)[:, None] & is_channel[None, :]
        offset = row.to(tl.int64)[:, None] * channels + channel[None, :]
        before = tl.load(values + offset, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(grad + offset, mask=mask, other=0.0).to(tl.float32)
        g = tl.where(before * scale[None, :] + shift[None, :] <= 0, 0.0, g)
        g = scale[None, :] * (g - of_shift[None, :] - slope[None, :] * (before - mean[None, :]))
        g = tl.where(mask, g, 0.0).to(of_values.dtype.element_ty)
        tl.store(of_values + offset, g, mask=mask)
        total += g.to(tl.float32)
    tl.store(of_linear_bias + channel, tl.sum(total, 0), mask=is_channel)


@triton.jit
def couple(
    z, outputs, loc, scaling, out, log_det, positions,
    CONDITION: tl.constexpr, OTHER: tl.constexpr, HALF: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """ActNorm and coupling of a sample; `outputs` [rows, 2 HALF] are scale logits and shifts."""
    sample, channel = tl.program_id(0).to(tl.int64), tl.arange(0, PADDED)
    mask = channel < HALF
    of_condition, of_other = CONDITION + channel, OTHER + channel
    total = tl.zeros([PADDED], tl.float32)
    for position in range(positions):
        begin = (sample * positions + position) * (2 * HALF)
        values = tl.load(z + begin + of_condition, mask=mask, other=0.0)
        values = (values + tl.load(loc + of_condition, mask=mask, other=0.0)) * tl.load(
            scaling + of_condition, mask=mask, other=0.0
        )
        tl.store(out + begin + of_condition, values, mask=mask)
        values = tl.load(z + begin + of_other, mask=mask, other=0.0)
        values = (values + tl.load(loc + of_other, mask=mask, other=0.0)) * tl.load(
            scaling + of_other, mask=mask, other=0.0
        )
        logits = tl.load(outputs + begin + channel, mask=mask, other=0.0).to(tl.float32)
        shifts = tl.load(outputs + begin + HALF + channel, mask=mask, other=0.0).to(tl.float32)
        tl.store(out + begin + of_other, (values + shifts) / (1 + tl.exp(-logits)), mask=mask)
        terms = tl.minimum(logits, 0.0, propagate_nan=tl.PropagateNan.ALL) - tl.log(1 + tl.exp(-tl.abs(logits)))
        total += tl.where(mask, terms, 0.0)
    tl.store(log_det + sample, tl.sum(total, 0))


@triton.jit
def couple_backward(
    grad, of_log_det, z, outputs, loc, scaling, of_outputs, positions,
    OTHER: tl.constexpr, HALF: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Writes the gradient of `outputs` of one row; that of z is `latent_backward`'s."""
    row, channel = tl.program_id(0).to(tl.int64), tl.arange(0, PADDED)
    mask, begin, of_other = channel < HALF, row * (2 * HALF), OTHER + channel
    values = tl.load(z + begin + of_other, mask=mask, other=0.0)
    values = (values + tl.load(loc + of_other, mask=mask, other=0.0)) * tl.load(
        scaling + of_other, mask=mask, other=0.0
    )
    logits = tl.load(outputs + begin + channel, mask=mask, other=0.0).to(tl.float32)
    shifts = tl.load(outputs + begin + HALF + channel, mask=mask, other=0.0).to(tl.float32)
    share = 1 / (1 + tl.exp(-logits))
    of_shifts = tl.load(grad + begin + of_other, mask=mask, other=0.0) * share
    of_logits = (tl.load(of_log_det + row // positions) + of_shifts * (values + shifts)) * (1 - share)
    tl.store(of_outputs + begin + channel, of_logits.to(of_outputs.dtype.element_ty), mask=mask)
    tl.store(of_outputs + begin + HALF + channel, of_shifts.to(of_outputs.dtype.element_ty), mask=mask)


@triton.jit
def latent_backward(
    grad, of_condition, z, outputs, loc, scaling, out, partials, rows,
    CONDITION: tl.constexpr, OTHER: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Writes the gradient of z, and `partials` [programs, 2, 2 HALF]: sums for the gradients of `scaling` and `loc`."""
    across: tl.constexpr = (2 * HALF + COLUMNS - 1) // COLUMNS
    program, channel = tl.program_id(0) // across, tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    row, is_channel = program * ROWS + tl.arange(0, ROWS), channel < 2 * HALF
    begin = row.to(tl.int64)[:, None] * (2 * HALF)
    mask = (row < rows)[:, None] & is_channel[None, :]
    place = begin + channel[None, :]
    is_other = ((channel >= OTHER) & (channel < OTHER + HALF))[None, :]
    g = tl.load(grad + place, mask=mask, other=0.0)
    logits = tl.load(outputs + begin + (channel - OTHER)[None, :], mask=mask & is_other, other=0.0).to(tl.float32)
    of_half = row.to(tl.int64)[:, None] * HALF + (channel - CONDITION)[None, :]
    more = tl.load(of_condition + of_half, mask=mask & (is_other == 0), other=0.0).to(tl.float32)
    g = tl.where(is_other, g / (1 + tl.exp(-logits)), g + more)
    values = tl.load(z + place, mask=mask, other=0.0) + tl.load(loc + channel, mask=is_channel, other=0.0)[None, :]
    scale = tl.load(scaling + channel, mask=is_channel, other=0.0)
    tl.store(out + place, g * scale[None, :], mask=mask)
    to = partials + program.to(tl.int64) * (4 * HALF) + channel
    tl.store(to, tl.sum(g * values, 0), mask=is_channel)
    tl.store(to + 2 * HALF, tl.sum(g, 0) * scale, mask=is_channel)
