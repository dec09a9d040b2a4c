# type: ignore  (the type checker reads Triton as Python)
"""Functions that the kernels share: BatchNorm and ReLU of a loaded output, its gradient, statistics and partial sums.

`norm` [4, channels] are a layer's mean, 1 / deviation, scale and shift: its output is relu(scale z + shift), which ends
at CAP if that is positive (ReLU6).
`slopes` [3, channels] are p, q and r of the gradient of z, which is p g + q z + r, with g the gradient of BatchNorm's
output. All computation is in float32, except the factors of large products.
"""

import triton
import triton.language as tl


@triton.jit
def load_vector(vectors, number: tl.constexpr, channel, channels):
    """Loads one of several vectors; 0 beyond the last channel."""
    return tl.load(vectors + number * channels + channel, mask=channel < channels, other=0.0)


@triton.jit
def relu(x, CAP: tl.constexpr):
    x = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return tl.minimum(x, CAP, propagate_nan=tl.PropagateNan.ALL) if CAP > 0 else x


@triton.jit
def relu_gradient(gradient, before, CAP: tl.constexpr):
    """Returns the gradient of a ReLU with input `before`; NaN stays NaN."""
    gradient = tl.where(before <= 0, 0.0, gradient)
    return tl.where(before >= CAP, 0.0, gradient) if CAP > 0 else gradient


@triton.jit
def norm_gradient(g, z, offset, mask, p, q, r):
    """Returns the gradient of z; 0 outside of `mask`."""
    gradient = tl.load(g + offset, mask=mask, other=0.0).to(tl.float32)
    output = tl.load(z + offset, mask=mask, other=0.0).to(tl.float32)
    return tl.where(mask, p * gradient + (q * output + r), 0.0)


@triton.jit
def merge_statistics(mean, squares, count, values, is_row, number):
    """Merges mean and squared deviations of `count` rows with those of `number` more rows, by Chan's formula."""
    new_mean = tl.sum(tl.where(is_row[:, None], values, 0.0), 0) / tl.maximum(number, 1)
    distance = tl.where(is_row[:, None], values - new_mean[None, :], 0.0)
    share = number / tl.maximum(count + number, 1).to(tl.float32)
    apart = new_mean - mean
    return mean + apart * share, squares + tl.sum(distance * distance, 0) + apart * apart * (count * share)


@triton.jit
def update_statistics(mean, squares, count, values, is_row):
    """Does the same for each element of a block by Welford's formula; `count` [rows] grows where there is a row."""
    count += is_row.to(tl.float32)
    apart = tl.where(is_row[:, None], values - mean, 0.0)
    mean += apart * (1.0 / tl.maximum(count, 1.0))[:, None]
    return mean, squares + apart * (values - mean), count


@triton.jit
def combine_statistics(mean, squares, count):
    """Returns means and squared deviations of all rows from the results of `update_statistics`."""
    total = tl.sum(mean * count[:, None], 0) / tl.maximum(tl.sum(count, 0), 1.0)
    apart = mean - total[None, :]
    return total, tl.sum(squares + apart * apart * count[:, None], 0)


@triton.jit
def store_vector(vectors, number: tl.constexpr, channel, values, channels):
    """Stores one of several vectors."""
    tl.store(vectors + number * channels + channel, values, mask=channel < channels)


@triton.jit
def store_partial(partials, row, number: tl.constexpr, channel, values, parts, channels):
    """Stores a program's vector in `partials` [programs, parts, channels]."""
    store_vector(partials + row.to(tl.int64) * (parts * channels), number, channel, values, channels)
