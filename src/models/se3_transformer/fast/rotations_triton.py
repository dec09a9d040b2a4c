# type: ignore  (the type checker reads Triton as Python)
"""The Wigner matrices of the rotations that take edges to the polar axis as one Triton kernel; see `frames.wigner`.

D_l is linear in the products of an entry of the rotation R with one of D_(l-1): D_l = sum over c of (R_c D_(l-1)) T_c,
which are products on the tensor cores of a tile of edges with a constant matrix for each entry c of R.
"""

import triton
import triton.language as tl


@triton.jit
def _unit(x, y, z):
    inverse = 1.0 / tl.sqrt(x * x + y * y + z * z)
    return x * inverse, y * inverse, z * inverse


@triton.jit
def _next_degree(rotation, before, table, BE: tl.constexpr, INNER: tl.constexpr, OUTER: tl.constexpr):
    """D_l [BE, OUTER] from D_(l-1) [BE, INNER]; the table is [9, OUTER, INNER], each padded with zeros."""
    inner, outer = tl.arange(0, INNER), tl.arange(0, OUTER)
    total = tl.zeros([BE, OUTER], tl.float32)
    for c in tl.static_range(9):
        matrix = tl.load(table + (c * OUTER + outer)[None, :] * INNER + inner[:, None])
        total = tl.dot(rotation[c][:, None] * before, matrix, total, input_precision="tf32x3")
    return total


@triton.jit
def _write(out, values, edge, is_edge, PACKED: tl.constexpr, BEGIN: tl.constexpr, COUNT: tl.constexpr,
           WIDTH: tl.constexpr):  # fmt: skip
    column = tl.arange(0, WIDTH)
    target = out + edge[:, None] * PACKED + BEGIN + column[None, :]
    tl.store(target, values.to(out.dtype.element_ty), mask=is_edge[:, None] & (column < COUNT)[None, :])


@triton.jit
def edge_matrices(
    rel_pos, table2, table3, table4, out, edges, tiny,
    MAX_DEGREE: tl.constexpr, PACKED: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """The matrices of degrees 0 .. MAX_DEGREE <= 4 of BE edges, row by row; an edge of length 0 gets some rotation."""
    edge = tl.program_id(0).to(tl.int64) * BE + tl.arange(0, BE)
    is_edge = edge < edges
    x = tl.load(rel_pos + edge * 3, mask=is_edge, other=0.0).to(tl.float32)
    y = tl.load(rel_pos + edge * 3 + 1, mask=is_edge, other=0.0).to(tl.float32)
    z = tl.load(rel_pos + edge * 3 + 2, mask=is_edge, other=0.0).to(tl.float32)
    largest = tl.maximum(tl.maximum(tl.maximum(tl.abs(x), tl.abs(y)), tl.abs(z)), tiny)  # squares would underflow
    y = tl.where((x == 0) & (y == 0) & (z == 0), largest, y)
    x, y, z = _unit(x / largest, y / largest, z / largest)
    ax, ay, az = tl.abs(x), tl.abs(y), tl.abs(z)
    is_x, is_y = (ax <= ay) & (ax <= az), (ay < ax) & (ay <= az)
    hx, hy, hz = tl.where(is_x, 1.0, 0.0), tl.where(is_y, 1.0, 0.0), tl.where(is_x | is_y, 0.0, 1.0)
    ux, uy, uz = _unit(y * hz - z * hy, z * hx - x * hz, x * hy - y * hx)
    rotation = (ux, uy, uz, x, y, z, uy * z - uz * y, uz * x - ux * z, ux * y - uy * x)
    tl.store(out + edge * PACKED, tl.full([BE], 1.0, out.dtype.element_ty), mask=is_edge)
    if MAX_DEGREE >= 1:
        entry = tl.arange(0, 16)
        first = tl.zeros([BE, 16], tl.float32)
        for c in tl.static_range(9):
            first = tl.where((entry == c)[None, :], rotation[c][:, None], first)
        _write(out, first, edge, is_edge, PACKED, 1, 9, 16)
        if MAX_DEGREE >= 2:
            second = _next_degree(rotation, first, table2, BE, 16, 32)
            _write(out, second, edge, is_edge, PACKED, 10, 25, 32)
            if MAX_DEGREE >= 3:
                third = _next_degree(rotation, second, table3, BE, 32, 64)
                _write(out, third, edge, is_edge, PACKED, 35, 49, 64)
                if MAX_DEGREE >= 4:
                    fourth = _next_degree(rotation, third, table4, BE, 64, 128)
                    _write(out, fourth, edge, is_edge, PACKED, 84, 81, 128)
