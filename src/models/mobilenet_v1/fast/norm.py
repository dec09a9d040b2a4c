"""BatchNorm from the partial sums of other kernels, and average pooling, with the kernels of `norm_triton`."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from src.gpu.triton_helpers import launch, power_of_2
from src.models.mobilenet_v1.fast import norm_triton as kernels

WIDTH, PIXELS = 64, 64  # most channels and pixels of a pooling program
# Channels of a program that adds partial sums, and most programs' sums that it loads at a time.
CONCLUDED, CONCLUDED_AT_ONCE = 8, 1024


class Partials(NamedTuple):
    """The partial sums of each program over its rows."""

    values: Float[Tensor, "programs parts channels"]
    rows: int  # of all programs


class Gradients(NamedTuple):
    """Gradients of BatchNorm's weight and bias, the coefficients of its input's gradient, and a depthwise weight's."""

    weight: Float[Tensor, " channels"]
    bias: Float[Tensor, " channels"]
    slopes: Float[Tensor, "3 channels"]  # see common_triton
    taps: Float[Tensor, "channels taps"] | None  # of the next layer's weight, if that is depthwise


def programs_at_once(programs: int) -> int:
    """Returns how many programs' partial sums a kernel loads at a time."""
    return min(CONCLUDED_AT_ONCE, max(2, power_of_2(programs)))


def conclude(partials: Partials, norm: nn.BatchNorm2d) -> Float[Tensor, "4 channels"]:
    """Returns BatchNorm's vectors for later kernels (see common_triton); updates the running statistics."""
    if partials.rows == 1:
        raise ValueError("BatchNorm needs more than one value of a channel; give a larger batch or larger images")
    programs, _, channels = partials.values.shape
    vectors = partials.values.new_empty(4, channels)
    launch(
        kernels.conclude, (-(-channels // CONCLUDED),),
        partials.values, norm.weight, norm.bias, norm.running_mean, norm.running_var, vectors,
        programs, partials.rows, channels, norm.eps, norm.momentum,
        WIDTH=CONCLUDED, BLOCK=programs_at_once(programs), num_warps=8,
    )  # fmt: skip
    return vectors


def conclude_backward(partials: Partials, norm: Float[Tensor, "4 channels"]) -> Gradients:
    """Returns BatchNorm's gradients from the partial sums of the kernel that computed g."""
    programs, parts, channels = partials.values.shape
    vectors = partials.values.new_empty(3 + parts, channels)
    launch(
        kernels.conclude_backward, (-(-channels // CONCLUDED), parts - 1), partials.values, norm, vectors, programs,
        partials.rows, channels, PARTS=parts, WIDTH=CONCLUDED, BLOCK=programs_at_once(programs), num_warps=8,
    )  # fmt: skip
    taps = vectors[5:].view(channels, parts - 2) if parts > 2 else None
    return Gradients(vectors[0], vectors[1], vectors[2:5], taps)


def pool(
    z: Float[Tensor, "images height width channels"], norm: Float[Tensor, "4 channels"], cap: float = 0.0
) -> Float[Tensor, "images channels"]:
    """Returns relu(BatchNorm(z)), at most `cap` if that is positive, averaged over each image."""
    images, height, width, channels = z.shape
    out = z.new_empty(images, channels)
    pixels = height * width
    launch(kernels.pool, (images, -(-channels // WIDTH)), z, norm, out, pixels, channels, CAP=cap, **pooled(pixels))
    return out


def pool_backward(
    gradient: Float[Tensor, "images channels"],
    z: Float[Tensor, "images height width channels"],
    norm: Float[Tensor, "4 channels"],
    cap: float = 0.0,
) -> tuple[Float[Tensor, "images height width channels"], Partials]:
    """Returns the gradient of the last BatchNorm's output, and its partial sums."""
    images, height, width, channels = z.shape
    g = torch.empty_like(z)
    values = z.new_empty(images, 2, channels, dtype=torch.float32)
    launch(
        kernels.pool_backward, (images, -(-channels // WIDTH)), gradient.contiguous(), z, norm, g, values,
        height * width, channels, CAP=cap, **pooled(height * width),
    )  # fmt: skip
    return g, Partials(values, images * height * width)


def pooled(pixels: int) -> dict[str, int]:
    """Returns the constants of the pooling kernels."""
    return {"WIDTH": WIDTH, "ROWS": min(PIXELS, power_of_2(pixels)), "num_warps": 4}
