"""The first convolution with the kernels of `stem_triton`: forward, and the weight's gradient."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from src.gpu.partial_sums import sum_partials
from src.gpu.triton_helpers import launch, precision
from src.models.mobilenet_v1.fast import stem_triton as kernels
from src.models.mobilenet_v1.fast.norm import Partials
from src.models.mobilenet_v1.fast.tiles import PROGRAMS, block_of, programs_for, tiles_per_program

PIXELS, BLOCK = 128, 64


def plan(
    images: Tensor, weight: Tensor, dtype: torch.dtype, stride: int
) -> tuple[tuple[int, int], tuple[int, int], dict[str, Any]]:
    """Returns the grid, the size of the output (down, across), and the kernel's constants."""
    count, height, width, colours = images.shape
    outputs, taps = weight.shape
    down, across = -(-height // stride), -(-width // stride)
    block = block_of(outputs, BLOCK)
    tiles = tiles_per_program(count * down * across, PIXELS, PROGRAMS)
    # Triton's interpreter multiplies bfloat16 incorrectly.
    upcast = dtype == torch.bfloat16 and not images.is_cuda
    constants = {"STRIDE": stride, "HEIGHT": height, "WIDTH": width, "DOWN": down, "ACROSS": across,
                 "COLOURS": colours, "OUTPUTS": outputs, "PIXELS": PIXELS, "BLOCK": block, "TAPS": block_of(taps, 1024),
                 "TILES": tiles, "PRECISION": precision(dtype), "UPCAST": upcast, "num_warps": 4}  # fmt: skip
    return (programs_for(count * down * across, PIXELS, tiles), -(-outputs // block)), (down, across), constants


def forward(
    images: Float[Tensor, "images height width colours"], weight: Float[Tensor, "outputs taps"], stride: int
) -> tuple[Float[Tensor, "images down across outputs"], Partials]:
    """Returns the convolution in the dtype of `weight`, and its partial statistics."""
    grid, size, constants = plan(images, weight, weight.dtype, stride)
    out = weight.new_empty(len(images), *size, len(weight))
    values = weight.new_empty(grid[0], 3, len(weight), dtype=torch.float32)
    pixels = out.numel() // len(weight)
    launch(kernels.forward, grid, images, weight, out, values, pixels, **constants)
    return out, Partials(values, pixels)


def backward_weight(
    g: Float[Tensor, "images down across outputs"],
    out: Float[Tensor, "images down across outputs"],
    slopes: Float[Tensor, "3 outputs"],
    images: Float[Tensor, "images height width colours"],
    weight: Float[Tensor, "outputs taps"],
    stride: int,
) -> Float[Tensor, "outputs taps"]:
    """Returns the weight's gradient, summed in float32."""
    grid, _, constants = plan(images, weight, g.dtype, stride)
    partials = g.new_empty(grid[0], *weight.shape, dtype=torch.float32)
    launch(
        kernels.backward_weight, grid, g, out, slopes, images, partials, out.numel() // len(weight), **constants
    )  # fmt: skip
    return sum_partials(partials)
