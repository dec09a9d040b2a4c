# type: ignore  (the type checker reads Triton as Python)
"""The maximum over each molecule's nodes as Triton kernels. Nodes of molecule g are pointers[g] .. pointers[g + 1] - 1.

The first node with the maximum gets the gradient, and a NaN counts as larger than every number.
"""

import triton
import triton.language as tl


@triton.jit
def maxima(features, pointers, out, holders, columns, WIDTH: tl.constexpr, BN: tl.constexpr):
    """Writes each molecule's maxima (0 without nodes) and the nodes that hold them (-1 without nodes)."""
    molecule = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    is_column = column < columns
    begin, end = tl.load(pointers + molecule).to(tl.int64), tl.load(pointers + molecule + 1).to(tl.int64)
    best, holder = tl.full([WIDTH], float("-inf"), tl.float32), tl.full([WIDTH], -1, tl.int64)
    for first in range(begin, end, BN):
        node = first + tl.arange(0, BN)
        is_node = (node < end)[:, None] & is_column[None, :]
        x = tl.load(features + node[:, None] * columns + column[None, :], mask=is_node, other=float("-inf"))
        x = x.to(tl.float32)
        rank = tl.where(x != x, float("inf"), x)
        is_nan = tl.max((x != x).to(tl.int32), 0) > 0
        top = tl.where(is_nan, float("nan"), tl.max(rank, 0))
        holds = ((x == top[None, :]) | (x != x)) & is_node
        candidate = tl.min(tl.where(holds, node[:, None], end), 0)
        takes = (holder < 0) | ((best == best) & (is_nan | (top > best)))
        best, holder = tl.where(takes, top, best), tl.where(takes, candidate, holder)
    place = molecule * columns + column
    tl.store(out + place, tl.where(holder < 0, 0.0, best).to(out.dtype.element_ty), mask=is_column)
    tl.store(holders + place, holder, mask=is_column)


@triton.jit
def maxima_backward(grad, pointers, holders, grad_features, nodes, columns, WIDTH: tl.constexpr, BN: tl.constexpr):
    """Writes the gradients of a molecule's nodes; the program after the last molecule has the padded nodes."""
    molecule = tl.program_id(0).to(tl.int64)
    is_last = molecule == tl.num_programs(0) - 1
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    is_read = (column < columns) & (molecule < tl.num_programs(0) - 1)
    begin = tl.load(pointers + molecule).to(tl.int64)
    end = tl.load(pointers + molecule + 1, mask=molecule < tl.num_programs(0) - 1, other=0).to(tl.int64)
    end = tl.where(is_last, nodes, end)
    g = tl.load(grad + molecule * columns + column, mask=is_read, other=0.0)
    holder = tl.load(holders + molecule * columns + column, mask=is_read, other=-1)
    for first in range(begin, end, BN):
        node = first + tl.arange(0, BN)
        value = tl.where(node[:, None] == holder[None, :], g[None, :], 0.0)
        target = grad_features + node[:, None] * columns + column[None, :]
        mask = (node < end)[:, None] & (column < columns)[None, :]
        tl.store(target, value.to(grad_features.dtype.element_ty), mask=mask)
