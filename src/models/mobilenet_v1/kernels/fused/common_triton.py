# type: ignore  (the type checker reads Triton as Python)
"""What the kernels share: BatchNorm and ReLU when an output is loaded, its gradient, statistics and sums on the way.

`norm` [4, channels] are a layer's mean, 1 / deviation, scale and shift: what it hands on is relu(scale z + shift).
`slopes` [3, channels] are p, q and r of the gradient of z: p g + q z + r, where g is that of the normalised numbers.
Numbers are computed in float32, except the factors of large products.
"""

import triton
import triton.language as tl


@triton.jit
def vector(vectors, number: tl.constexpr, channel, channels):
    """One of several vectors; 0 for a channel that is none."""
    return tl.load(vectors + number * channels + channel, mask=channel < channels, other=0.0)


@triton.jit
def relu(x):
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def passed(gradient, before):
    """The gradient before a ReLU of `before`; not a number stays what it is."""
    return tl.where(before <= 0, 0.0, gradient)


@triton.jit
def slope(g, z, place, wanted, p, q, r):
    """The gradient of an output; 0 where it is not wanted."""
    gradient = tl.load(g + place, mask=wanted, other=0.0).to(tl.float32)
    output = tl.load(z + place, mask=wanted, other=0.0).to(tl.float32)
    return tl.where(wanted, p * gradient + (q * output + r), 0.0)


@triton.jit
def merged(mean, squares, count, values, is_row, number):
    """Means and squared distances from them of `count` rows and of `number` rows more, by Chan's formula."""
    own = tl.sum(tl.where(is_row[:, None], values, 0.0), 0) / tl.maximum(number, 1)
    distance = tl.where(is_row[:, None], values - own[None, :], 0.0)
    share = number / tl.maximum(count + number, 1).to(tl.float32)
    apart = own - mean
    return mean + apart * share, squares + tl.sum(distance * distance, 0) + apart * apart * (count * share)


@triton.jit
def followed(mean, squares, count, values, is_row):
    """The same of each place of a block by itself, as Welford has it: `count` [rows] grows where there is a row."""
    count += is_row.to(tl.float32)
    apart = tl.where(is_row[:, None], values - mean, 0.0)
    mean += apart * (1.0 / tl.maximum(count, 1.0))[:, None]
    return mean, squares + apart * (values - mean), count


@triton.jit
def together(mean, squares, count):
    """Of what `followed` has found, the means and squared distances of all rows."""
    total = tl.sum(mean * count[:, None], 0) / tl.maximum(tl.sum(count, 0), 1.0)
    apart = mean - total[None, :]
    return total, tl.sum(squares + apart * apart * count[:, None], 0)


@triton.jit
def keep(vectors, number: tl.constexpr, channel, values, channels):
    """Writes one of several vectors."""
    tl.store(vectors + number * channels + channel, values, mask=channel < channels)


@triton.jit
def note(partials, row, number: tl.constexpr, channel, values, parts, channels):
    """Writes a program's vector to `partials` [programs, parts, channels]."""
    keep(partials + row.to(tl.int64) * (parts * channels), number, channel, values, channels)
