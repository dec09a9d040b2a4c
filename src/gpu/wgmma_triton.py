# type: ignore  (the type checker reads Triton as Python)
"""What Triton kernels of all models need of the tensor cores of Hopper GPUs."""

import triton
import triton.language as tl


@triton.jit
def settle(SETTLE: tl.constexpr):
    """Waits until no product on the tensor cores is under way any more: the end of a step of a loop of products.

    Hopper's products read their left factor from registers while the program goes on, where that factor is computed
    and not just loaded. Triton 3.6 and 3.7 let the newest three run into the next step, which writes the next left
    factor into the same registers, and ptxas may read sums in float16 before the last product has ended: races that
    were both seen (gradients wrong by 4% of the largest, 5% of a layer's outputs; other ones at each call).
    `python -m benchmarks.wgmma` finds kernels that need it. SETTLE is `reads_registers` of triton_helpers.py.
    """
    if SETTLE:
        tl.inline_asm_elementwise(
            "wgmma.wait_group.sync.aligned 0; mov.b32 $0, $1;", "=r,r", [tl.arange(0, 32)], dtype=tl.int32,
            is_pure=False, pack=1,
        )  # fmt: skip
