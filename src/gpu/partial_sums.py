"""Sums of the partial sums that a kernel's programs leave, in one short launch."""

from jaxtyping import Float
from torch import Tensor

from src.gpu import partial_sums_triton as kernels
from src.gpu.triton_helpers import launch, power_of_2

ELEMENTS = 4096  # that a program of four warps reads at once: 32 of each thread are under way
PROGRAMS = 264  # about: two for each multiprocessor of an H200, of
COLUMNS = 8, 512  # at least and at most


def sum_partials(partials: Float[Tensor, "parts *shape"]) -> Float[Tensor, "*shape"]:
    """Returns `partials.sum(0)` of a contiguous float32 tensor."""
    out = partials.new_empty(partials.shape[1:])
    columns = min(max(power_of_2(-(-out.numel() // PROGRAMS)), COLUMNS[0]), COLUMNS[1])
    shape = {"PARTS": min(power_of_2(len(partials)), ELEMENTS // columns), "COLUMNS": columns}
    launch(
        kernels.sum_partials, (-(-out.numel() // columns),),
        partials, out, len(partials), out.numel(), **shape, num_warps=4,
    )  # fmt: skip
    return out
