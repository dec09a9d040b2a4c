# type: ignore  (the type checker reads Triton as Python)
"""`flow.Limit` in kernels: what it cuts off and how far values went, with the gradients."""

import triton
import triton.language as tl


@triton.jit
def limited(y, BOUND: tl.constexpr):
    """Returns y between -BOUND and BOUND; NaN becomes 0."""
    return tl.where(y == y, tl.minimum(tl.maximum(y, -BOUND), BOUND), 0.0)


@triton.jit
def far(y, FREE: tl.constexpr):
    """Returns by how much |y| exceeds FREE: 10,000 where it is infinite, 0 where it is NaN."""
    distance = tl.abs(y) - FREE
    distance = tl.where(distance > 0, distance, 0.0)
    return tl.where(distance < float("inf"), distance, 1e4)


@triton.jit
def of_limited(grad, of_beyond, y, FREE: tl.constexpr, BOUND: tl.constexpr):
    """Returns the gradient of y from those of `limited` and of log(1 + `far`)."""
    size = tl.abs(y)
    pull = tl.where((size > FREE) & (size < float("inf")), of_beyond / (1 + far(y, FREE)), 0.0)
    return tl.where(size <= BOUND, grad, 0.0) + tl.where(y < 0, -pull, pull)
