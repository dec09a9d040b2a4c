# type: ignore  (the type checker reads Triton as Python)
"""A 3x3 kernel as its dense matrix on a 2x2 map, and its gradient from that of the matrix."""

import triton
import triton.language as tl


@triton.jit
def fold(
    grad, out, inputs, outputs, output_stride, input_stride, y_stride, x_stride,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """`grad` [4, outputs, 4, inputs]: each tap of `out` is the sum over the pairs of positions that it connects."""
    row, column = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_input = column < inputs
    for tap_y in tl.static_range(3):
        for tap_x in tl.static_range(3):
            total = tl.zeros([BLOCK], tl.float32)
            for y in tl.static_range(2):
                for x in tl.static_range(2):
                    # The input position; 16 of the 36 lie inside the map.
                    v, u = y + tap_y - 1, x + tap_x - 1
                    if (v >= 0 and v < 2) and (u >= 0 and u < 2):
                        begin = ((2 * y + x) * outputs + row).to(tl.int64) * 4 * inputs + (2 * v + u) * inputs
                        total += tl.load(grad + begin + column, mask=is_input, other=0.0).to(tl.float32)
            tap = row.to(tl.int64) * output_stride + tap_y * y_stride + tap_x * x_stride
            tl.store(out + tap + column * input_stride, total.to(out.dtype.element_ty), mask=is_input)


@triton.jit
def unfold(
    weight, out, inputs, outputs, output_stride, input_stride, y_stride, x_stride,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes the matrix `out` [4, outputs, 4, inputs], whose pair of positions is the tap that connects them."""
    row, column = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_input = column < inputs
    for tap_y in tl.static_range(3):
        for tap_x in tl.static_range(3):
            tap = row.to(tl.int64) * output_stride + tap_y * y_stride + tap_x * x_stride
            value = tl.load(weight + tap + column * input_stride, mask=is_input, other=0.0).to(out.dtype.element_ty)
            for y in tl.static_range(2):
                for x in tl.static_range(2):
                    v, u = y + tap_y - 1, x + tap_x - 1
                    if (v >= 0 and v < 2) and (u >= 0 and u < 2):
                        begin = ((2 * y + x) * outputs + row).to(tl.int64) * 4 * inputs + (2 * v + u) * inputs
                        tl.store(out + begin + column, value, mask=is_input)
