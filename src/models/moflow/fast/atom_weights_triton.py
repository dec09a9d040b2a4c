# type: ignore  (the type checker reads Triton as Python)
"""Weights' gradients of the atom flow's narrow layers, whose inputs are computed from z again instead of stored."""

import triton
import triton.language as tl

from src.gpu.wgmma_triton import settle
from src.models.moflow.fast.atom_triton import product
from src.models.moflow.fast.norm_triton import relu


@triton.jit
def weight_gradient(
    of_out, z, norms, out, out_biases, batch, nodes, parts, norm_stride,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr, UPCAST: tl.constexpr, SETTLE: tl.constexpr,
):  # fmt: skip
    """Sums of one part of the nodes: of_out^T relu(BatchNorm(z)), and of the columns of `of_out`.

    `of_out` [steps, nodes, batch, OUTPUTS], `z` [steps, nodes, batch, INPUTS]; `norms` are those of the first step, the
    next one's `norm_stride` further. Writes `out` [steps, parts, OUTPUTS, INPUTS] and `out_biases` [steps, parts,
    OUTPUTS]. A program has ROWS outputs, all of them, and COLUMNS inputs.
    """
    across: tl.constexpr = (INPUTS + COLUMNS - 1) // COLUMNS
    tile, part = tl.program_id(0) % across, tl.program_id(0) // across
    step, count = part // parts, nodes // parts
    output, column = tl.arange(0, ROWS), tile * COLUMNS + tl.arange(0, COLUMNS)
    is_output, is_input = output < OUTPUTS, column < INPUTS
    down = tl.cdiv(batch, DEPTH)
    total, sums = tl.zeros([ROWS, COLUMNS], tl.float32), tl.zeros([DEPTH, ROWS], tl.float32)
    for block in range(count * down):
        node, row = part % parts * count + block // down, block % down * DEPTH + tl.arange(0, DEPTH)
        first, is_row = (step * nodes + node).to(tl.int64) * batch, (row < batch)[:, None]
        b = tl.load(z + first * INPUTS + (row[:, None] * INPUTS + column[None, :]),
                    mask=is_row & is_input[None, :], other=0.0)  # fmt: skip
        a = tl.load(of_out + first * OUTPUTS + (row[:, None] * OUTPUTS + output[None, :]),
                    mask=is_row & is_output[None, :], other=0.0)  # fmt: skip
        norm = norms + step * norm_stride + node
        b = b.to(tl.float32) * tl.load(norm + 2 * nodes) + tl.load(norm + 3 * nodes)
        sums += a.to(tl.float32)
        # Rows behind the batch add nothing: their `a` is 0.
        total = product(tl.trans(a), relu(b).to(a.dtype), total, PRECISION, UPCAST)
        settle(SETTLE)
    to = out + (part * OUTPUTS + output)[:, None] * INPUTS + column[None, :]
    tl.store(to, total, mask=is_output[:, None] & is_input[None, :])
    tl.store(out_biases + part * OUTPUTS + output, tl.sum(sums, 0), mask=is_output & (tile == 0))
