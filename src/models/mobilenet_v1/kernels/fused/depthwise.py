"""The kernels of `depthwise_triton`: 3 x 3 convolutions of each channel by itself, forward and backward."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from src.models.kernels import launch
from src.models.mobilenet_v1.kernels.fused import depthwise_triton as kernels
from src.models.mobilenet_v1.kernels.fused.norm import CONCLUDED, CONCLUDED_AT_ONCE, Partials
from src.models.mobilenet_v1.kernels.fused.tiles import PROGRAMS, block_of, programs_for, tiles_each

FORWARD = {"PIXELS": 16, "num_warps": 4}
BACKWARD = {"PIXELS": 16, "num_warps": 4}
BLOCK = 64, 32  # channels of a program, forward and backward


def shape_of(z: Tensor, stride: int) -> dict[str, int]:
    _, height, width, channels = z.shape
    return {"STRIDE": stride, "HEIGHT": height, "WIDTH": width, "DOWN": -(-height // stride),
            "ACROSS": -(-width // stride), "CHANNELS": channels}  # fmt: skip


def plan(shape: dict[str, int], images: int, most: int, tile: dict[str, int]) -> tuple[tuple[int, int], dict[str, Any]]:
    """The grid of programs and how each one works."""
    pixels, block = images * shape["DOWN"] * shape["ACROSS"], block_of(shape["CHANNELS"], most)
    blocks = -(-shape["CHANNELS"] // block)
    each = tiles_each(pixels, tile["PIXELS"], 2 * PROGRAMS // blocks)
    return (programs_for(pixels, tile["PIXELS"], each), blocks), {**shape, **tile, "BLOCK": block, "TILES": each}


def forward(
    z: Float[Tensor, "images height width channels"],
    norm: Float[Tensor, "4 channels"],
    weight: Float[Tensor, "channels 9"],
    stride: int,
) -> tuple[Float[Tensor, "images down across channels"], Partials]:
    """The convolution of what the layer of z hands on, and its statistics."""
    shape = shape_of(z, stride)
    out = z.new_empty(len(z), shape["DOWN"], shape["ACROSS"], shape["CHANNELS"])
    grid, constants = plan(shape, len(z), BLOCK[0], FORWARD)
    values = z.new_empty(grid[0], 2, shape["CHANNELS"], dtype=torch.float32)
    pixels = out.numel() // shape["CHANNELS"]
    launch(kernels.forward, grid, z, norm, weight, out, values, pixels, **constants)
    return out, Partials(values, pixels, constants["PIXELS"] * constants["TILES"])


def backward(
    g: Float[Tensor, "images down across channels"],
    out: Float[Tensor, "images down across channels"],
    slopes: Float[Tensor, "3 channels"],
    weight: Float[Tensor, "channels 9"],
    z: Float[Tensor, "images height width channels"],
    norm: Float[Tensor, "4 channels"],
    stride: int,
) -> tuple[Float[Tensor, "images height width channels"], Partials, Float[Tensor, "channels 9"]]:
    """The gradient of what the layer of z has normalised, its sums, and the weight's gradient."""
    g_in, shape = torch.empty_like(z), shape_of(z, stride)
    grid, constants = plan(shape, len(z), BLOCK[1], BACKWARD)
    values = z.new_empty(grid[0], 11, shape["CHANNELS"], dtype=torch.float32)
    pixels = out.numel() // shape["CHANNELS"]
    launch(kernels.backward, grid, g, out, slopes, weight, z, norm, g_in, values, pixels, **constants)
    rows = z.numel() // shape["CHANNELS"]
    return g_in, Partials(values, rows, 0), of_weight(values)


def of_weight(values: Float[Tensor, "programs 11 channels"]) -> Float[Tensor, "channels 9"]:
    """The weight's gradient of what the programs have noted."""
    programs, _, channels = values.shape
    out = values.new_empty(channels, 9)
    launch(
        kernels.conclude_weight, (-(-channels // CONCLUDED), 9), values, out, programs,
        CHANNELS=channels, WIDTH=CONCLUDED, BLOCK=CONCLUDED_AT_ONCE, num_warps=4,
    )  # fmt: skip
    return out
