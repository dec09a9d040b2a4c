# type: ignore  (the type checker reads Triton as Python)
"""The chip's own clock, read where a stream stands."""

import triton
import triton.language as tl


@triton.jit
def add_time(total, SIGN: tl.constexpr):
    """`total` becomes larger (or smaller) by the nanoseconds of the GPU's clock."""
    now = tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer; // $1", "=l,r", [tl.program_id(0)], dtype=tl.int64, is_pure=False, pack=1
    )
    tl.store(total, tl.load(total) + SIGN * now)
