"""1 x 1 convolutions with the kernels of `pointwise_triton`, forward and backward."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from src.gpu.partial_sums import sum_partials
from src.gpu.triton_helpers import launch, precision, reads_registers
from src.models.mobilenet_v1.fast import pointwise_triton as kernels
from src.models.mobilenet_v1.fast.norm import Partials
from src.models.mobilenet_v1.fast.tiles import Tile, programs_for, tile_of, tile_of_both, tiles_per_program


def tile_for(kernel: str, z: Tensor, outputs: int) -> Tile:
    """Returns the tile for input z."""
    inputs = z.shape[-1]
    return tile_of(kernel, z.numel() // inputs, inputs, outputs, precision_name(z))


def precision_name(z: Tensor) -> str:
    return "half" if z.dtype != torch.float32 else precision(z.dtype)


def constants(z: Tensor, inputs: int, outputs: int, tile: Tile) -> dict[str, Any]:
    # Triton's interpreter multiplies bfloat16 incorrectly.
    upcast = z.dtype == torch.bfloat16 and not z.is_cuda
    return {"INPUTS": inputs, "OUTPUTS": outputs, "ROWS": tile.rows, "COLUMNS": tile.columns, "DEPTH": tile.depth,
            "PRECISION": precision(z.dtype), "UPCAST": upcast, "SETTLE": reads_registers(z), "num_warps": tile.warps,
            "num_stages": tile.stages}  # fmt: skip


def forward(
    z: Float[Tensor, "images height width inputs"],
    norm: Float[Tensor, "4 inputs"],
    weight: Float[Tensor, "outputs inputs"],
    cap: float = 0.0,
) -> tuple[Float[Tensor, "images height width outputs"], Partials]:
    """Returns the convolution of relu(BatchNorm(z)), and its partial statistics.

    `weight` has the dtype of z; the ReLU ends at `cap` if that is positive.
    """
    outputs, inputs = weight.shape
    rows = z.numel() // inputs
    out = z.new_empty(*z.shape[:-1], outputs)
    tile = tile_for("forward", z, outputs)
    blocks = -(-outputs // tile.columns)
    tiles = tiles_per_program(rows, tile.rows, tile.programs // blocks)
    programs = programs_for(rows, tile.rows, tiles)
    values = z.new_empty(programs, 3, outputs, dtype=torch.float32)
    launch(
        kernels.forward, (programs * blocks,), z, norm, weight, out, values, rows, tiles,
        CAP=cap, **constants(z, inputs, outputs, tile),
    )  # fmt: skip
    return out, Partials(values, rows)


def backward(
    g: Float[Tensor, "images height width outputs"],
    out: Float[Tensor, "images height width outputs"],
    slopes: Float[Tensor, "3 outputs"],
    weight: Float[Tensor, "outputs inputs"],
    z: Float[Tensor, "images height width inputs"],
    norm: Float[Tensor, "4 inputs"],
    cap: float = 0.0,
) -> tuple[Float[Tensor, "images height width inputs"], Partials]:
    """Returns the gradient of BatchNorm(z), and its partial sums."""
    outputs, inputs = weight.shape
    rows = z.numel() // inputs
    g_in = torch.empty_like(z)
    tile = tile_for("backward", z, outputs)
    blocks = -(-inputs // tile.columns)
    tiles = tiles_per_program(rows, tile.rows, tile.programs // blocks)
    programs = programs_for(rows, tile.rows, tiles)
    values = z.new_empty(programs, 2, inputs, dtype=torch.float32)
    launch(
        kernels.backward, (programs * blocks,), g, out, slopes, weight, z, norm, g_in, values, rows, tiles,
        CAP=cap, **constants(z, inputs, outputs, tile),
    )  # fmt: skip
    return g_in, Partials(values, rows)


def backward_weight(
    g: Float[Tensor, "images height width outputs"],
    out: Float[Tensor, "images height width outputs"],
    slopes: Float[Tensor, "3 outputs"],
    z: Float[Tensor, "images height width inputs"],
    norm: Float[Tensor, "4 inputs"],
    cap: float = 0.0,
) -> Float[Tensor, "outputs inputs"]:
    """Returns the weight's gradient, summed in float32."""
    outputs, inputs = out.shape[-1], z.shape[-1]
    rows = z.numel() // inputs
    tile = tile_for("weight", z, outputs)
    blocks = -(-outputs // tile.rows) * -(-inputs // tile.columns)
    tiles = tiles_per_program(rows, tile.depth, tile.programs // blocks)
    programs = programs_for(rows, tile.depth, tiles)
    partials = z.new_empty(programs, outputs, inputs, dtype=torch.float32)
    launch(
        kernels.backward_weight, (programs * blocks,), g, out, slopes, z, norm, partials, rows, tiles,
        CAP=cap, **constants(z, inputs, outputs, tile),
    )  # fmt: skip
    return sum_partials(partials) if programs > 1 else partials[0]


def gradients(
    g: Float[Tensor, "images height width outputs"],
    out: Float[Tensor, "images height width outputs"],
    slopes: Float[Tensor, "3 outputs"],
    weight: Float[Tensor, "outputs inputs"],
    z: Float[Tensor, "images height width inputs"],
    norm: Float[Tensor, "4 inputs"],
    cap: float = 0.0,
) -> tuple[Float[Tensor, "images height width inputs"], Partials, Float[Tensor, "outputs inputs"]]:
    """Returns the results of `backward` and the weight's gradient, by one kernel where `tiles` has a tile for both."""
    outputs, inputs = weight.shape
    tile = tile_of_both(z.numel() // inputs, inputs, outputs, precision_name(z))
    if tile is not None:
        return backward_both(g, out, slopes, weight, z, norm, cap, tile)
    of_weight = backward_weight(g, out, slopes, z, norm, cap)
    return *backward(g, out, slopes, weight, z, norm, cap), of_weight


def backward_both(
    g: Float[Tensor, "images height width outputs"],
    out: Float[Tensor, "images height width outputs"],
    slopes: Float[Tensor, "3 outputs"],
    weight: Float[Tensor, "outputs inputs"],
    z: Float[Tensor, "images height width inputs"],
    norm: Float[Tensor, "4 inputs"],
    cap: float,
    tile: Tile,
) -> tuple[Float[Tensor, "images height width inputs"], Partials, Float[Tensor, "outputs inputs"]]:
    """Returns what `gradients` does by one kernel, which reads g, out and z once. The tile holds all channels."""
    outputs, inputs = weight.shape
    rows = z.numel() // inputs
    g_in = torch.empty_like(z)
    tiles = tiles_per_program(rows, tile.rows, tile.programs)
    programs = programs_for(rows, tile.rows, tiles)
    values = z.new_empty(programs, 2, inputs, dtype=torch.float32)
    shares = z.new_empty(programs, outputs, inputs, dtype=torch.float32)
    launch(
        kernels.backward_both, (programs,), g, out, slopes, weight, z, norm, g_in, values, shares, rows, tiles,
        CAP=cap, **constants(z, inputs, outputs, tile),
    )  # fmt: skip
    return g_in, Partials(values, rows), sum_partials(shares)
