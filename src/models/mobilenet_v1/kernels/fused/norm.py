"""The kernels of `norm_triton`: a layer's BatchNorm out of sums that other kernels make on their way."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from src.gpu.triton_helpers import launch, power_of_2
from src.models.mobilenet_v1.kernels.fused import norm_triton as kernels

WIDTH, PIXELS = 64, 64  # most channels and pixels of a program that pools
CONCLUDED, CONCLUDED_AT_ONCE = 8, 1024  # channels of a program that concludes, and how many others it reads at most


class Partials(NamedTuple):
    """What each program has noted of its rows."""

    values: Float[Tensor, "programs parts channels"]
    rows: int  # of all programs together


class Gradients(NamedTuple):
    weight: Float[Tensor, " channels"]
    bias: Float[Tensor, " channels"]
    slopes: Float[Tensor, "3 channels"]  # see common_triton


def at_once(programs: int) -> int:
    """Of how many programs one that concludes reads what they have noted at a time."""
    return min(CONCLUDED_AT_ONCE, max(2, power_of_2(programs)))


def conclude(partials: Partials, norm: nn.BatchNorm2d) -> Float[Tensor, "4 channels"]:
    """What later kernels need of a layer, see common_triton; the running statistics follow the batch."""
    if partials.rows == 1:
        raise ValueError("BatchNorm needs more than one value of a channel; give a larger batch or larger images")
    programs, _, channels = partials.values.shape
    found = partials.values.new_empty(4, channels)
    launch(
        kernels.conclude, (-(-channels // CONCLUDED),),
        partials.values, norm.weight, norm.bias, norm.running_mean, norm.running_var, found,
        programs, partials.rows, channels, norm.eps, norm.momentum,
        WIDTH=CONCLUDED, BLOCK=at_once(programs), num_warps=8,
    )  # fmt: skip
    return found


def conclude_backward(partials: Partials, norm: Float[Tensor, "4 channels"]) -> Gradients:
    """Of the sums that the kernel has noted which made the layer's gradient."""
    programs, parts, channels = partials.values.shape
    weight, bias, *_ = values = partials.values.new_empty(5, channels)
    found = Gradients(weight, bias, values[2:])
    launch(
        kernels.conclude_backward, (-(-channels // CONCLUDED),), partials.values, norm, *found, programs, partials.rows,
        channels, PARTS=parts, WIDTH=CONCLUDED, BLOCK=at_once(programs), num_warps=8,
    )  # fmt: skip
    return found


def pool(
    z: Float[Tensor, "images height width channels"], norm: Float[Tensor, "4 channels"]
) -> Float[Tensor, "images channels"]:
    """Means over an image of what the last layer hands on."""
    images, height, width, channels = z.shape
    out = z.new_empty(images, channels)
    pixels = height * width
    launch(kernels.pool, (images, -(-channels // WIDTH)), z, norm, out, pixels, channels, **pooled(pixels))
    return out


def pool_backward(
    gradient: Float[Tensor, "images channels"],
    z: Float[Tensor, "images height width channels"],
    norm: Float[Tensor, "4 channels"],
) -> tuple[Float[Tensor, "images height width channels"], Partials]:
    """The gradient of the last layer's normalised numbers, and its sums."""
    images, height, width, channels = z.shape
    g = torch.empty_like(z)
    values = z.new_empty(images, 2, channels, dtype=torch.float32)
    launch(
        kernels.pool_backward, (images, -(-channels // WIDTH)), gradient.contiguous(), z, norm, g, values,
        height * width, channels, **pooled(height * width),
    )  # fmt: skip
    return g, Partials(values, images * height * width)


def pooled(pixels: int) -> dict[str, int]:
    return {"WIDTH": WIDTH, "ROWS": min(PIXELS, power_of_2(pixels)), "num_warps": 4}
