# type: ignore  (the type checker reads Triton as Python)
"""What lies between the products of a bond step: ActNorm, BatchNorm with ReLU, coupling, and their gradients.

A latent is [rows, 2 HALF], a row being a position of a sample; CONDITION is the first channel of the half that the
other half is transformed by, OTHER that of the transformed one. BatchNorm is that of `norm_triton`, whose nodes are
channels here. All computation is in float32.
"""

import triton
import triton.language as tl

from src.models.moflow.fast.norm_triton import (
    conclude,
    conclude_backward,
    load_vector,
    normalise,
    relu,
    store_vector,
)


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
def part(rows_each, channels, COLUMNS: tl.constexpr):
    """Returns number and count of the programs of a channel, the channels of this one, and its first row."""
    across = tl.cdiv(channels, COLUMNS)
    program = tl.program_id(0) // across
    channel = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    return program, tl.num_programs(0) // across, channel, program * rows_each


@triton.jit
def block(begin, channel, rows, channels, ROWS: tl.constexpr):
    """Returns offsets and mask of ROWS rows."""
    row = begin + tl.arange(0, ROWS)
    mask = (row < rows)[:, None] & (channel < channels)[None, :]
    return row.to(tl.int64)[:, None] * channels + channel[None, :], mask


@triton.jit
def norm_sums(values, partials, rows, rows_each, channels, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Writes `partials` [channels, 3, programs] of parts of `rows_each` rows, a multiple of ROWS."""
    program, programs, channel, first = part(rows_each, channels, COLUMNS)
    mean, squares, count = tl.zeros([COLUMNS], tl.float32), tl.zeros([COLUMNS], tl.float32), 0
    for begin in range(first, tl.minimum(first + rows_each, rows), ROWS):
        offset, mask = block(begin, channel, rows, channels, ROWS)
        z = tl.load(values + offset, mask=mask, other=0.0).to(tl.float32)
        number = tl.minimum(rows - begin, ROWS)
        new_mean = tl.sum(z, 0) / number
        distance = tl.where(mask, z - new_mean[None, :], 0.0)
        share, apart = number / (count + number).to(tl.float32), new_mean - mean
        mean += apart * share
        squares += tl.sum(distance * distance, 0) + apart * apart * (count * share)
        count += number
    to, is_channel = partials + channel * (3 * programs) + program, channel < channels
    tl.store(to, mean, mask=is_channel)
    tl.store(to + programs, squares, mask=is_channel)
    tl.store(to + 2 * programs, tl.zeros([COLUMNS], tl.float32) + count, mask=is_channel)


@triton.jit
def norm_relu(
    values, partials, weight, bias, running_mean, running_var, norm, out, rows, rows_each, channels,
    GIVEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PARTIALS: tl.constexpr, EPS: tl.constexpr,
    MOMENTUM: tl.constexpr,
):  # fmt: skip
    """Writes relu(BatchNorm(values)) and `norm` [6, channels]; updates the running statistics.

    If these are GIVEN it normalises with them and updates none.
    """
    program, programs, channel, first = part(rows_each, channels, COLUMNS)
    if GIVEN:
        mean, variance = load_vector(running_mean, 0, channel, channels), load_vector(running_var, 0, channel, channels)
        scale, shift = normalise(mean, variance, weight, bias, norm, channel, channels, program == 0, EPS)
    else:
        scale, shift = conclude(partials, weight, bias, running_mean, running_var, norm, channel, channels, programs,
                                program == 0, PARTIALS, EPS, MOMENTUM, 1)  # fmt: skip
    for begin in range(first, tl.minimum(first + rows_each, rows), ROWS):
        offset, mask = block(begin, channel, rows, channels, ROWS)
        z = tl.load(values + offset, mask=mask, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
        tl.store(out + offset, relu(z).to(out.dtype.element_ty), mask=mask)


@triton.jit
def norm_sums_backward(
    grad, values, norm, partials, rows, rows_each, channels, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Writes `partials` [channels, 2, programs] of `norm_relu_backward`."""
    program, programs, channel, first = part(rows_each, channels, COLUMNS)
    mean, scale, shift = (load_vector(norm, 0, channel, channels), load_vector(norm, 2, channel, channels),
                          load_vector(norm, 3, channel, channels))  # fmt: skip
    sums, products = tl.zeros([COLUMNS], tl.float32), tl.zeros([COLUMNS], tl.float32)
    for begin in range(first, tl.minimum(first + rows_each, rows), ROWS):
        offset, mask = block(begin, channel, rows, channels, ROWS)
        z = tl.load(values + offset, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(grad + offset, mask=mask, other=0.0).to(tl.float32)
        g = tl.where(z * scale[None, :] + shift[None, :] <= 0, 0.0, g)
        sums += tl.sum(g, 0)
        products += tl.sum(g * (z - mean[None, :]), 0)
    to = partials + channel * (2 * programs) + program
    tl.store(to, sums, mask=channel < channels)
    tl.store(to + programs, products, mask=channel < channels)


@triton.jit
def norm_relu_backward(
    grad, values, partials, norm, gradients, of_values, rows, rows_each, channels,
    GIVEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PARTIALS: tl.constexpr,
):  # fmt: skip
    """The gradients of `norm_relu`: of `values`, and `gradients` [2, channels] of weight and bias.

    Where statistics are GIVEN, `gradients` [5, channels] also are of mean and variance and of a constant in `values`.
    """
    program, programs, channel, first = part(rows_each, channels, COLUMNS)
    mean, p, q, r = conclude_backward(partials, norm, gradients, channel, channels, programs, rows, program == 0,
                                      PARTIALS, 1)  # fmt: skip
    if GIVEN:  # what else would go through them
        store_vector(gradients, 2, channel, r * rows, channels, program == 0)
        store_vector(gradients, 3, channel, 0.5 * q * rows, channels, program == 0)
        store_vector(gradients, 4, channel, -r * rows, channels, program == 0)
        q, r = 0.0 * p, 0.0 * p
    shift = load_vector(norm, 3, channel, channels)
    for begin in range(first, tl.minimum(first + rows_each, rows), ROWS):
        offset, mask = block(begin, channel, rows, channels, ROWS)
        z = tl.load(values + offset, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(grad + offset, mask=mask, other=0.0).to(tl.float32)
        g = tl.where(z * p[None, :] + shift[None, :] <= 0, 0.0, g)
        g = p[None, :] * g + q[None, :] * (z - mean[None, :]) + r[None, :]
        tl.store(of_values + offset, g.to(of_values.dtype.element_ty), mask=mask)


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
