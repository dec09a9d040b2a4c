"""The kernels of `pointwise_triton`: 1 x 1 convolutions, forward and backward."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from src.models.kernels import launch, precision
from src.models.mobilenet_v1.kernels.fused import pointwise_triton as kernels
from src.models.mobilenet_v1.kernels.fused.norm import Partials
from src.models.mobilenet_v1.kernels.fused.tiles import PROGRAMS, Tile, block_of, programs_for, tiles_each

SPREAD = 2 * 132  # programs of a weight's gradient: each takes its share of all rows


def product_tile(rows: int, summed: int, columns: int, dtype: torch.dtype) -> Tile:
    """For [rows, summed] x [summed, columns]."""
    half = dtype != torch.float32
    height = 128 if rows >= 128 else block_of(rows, 128)
    return Tile(height, block_of(columns, 128), block_of(summed, 64 if half else 32), 8 if columns >= 64 else 4, 3)


def weight_tile(rows: int, outputs: int, inputs: int, dtype: torch.dtype) -> Tile:
    """For [outputs, rows] x [rows, inputs]."""
    depth = block_of(rows, 64 if dtype != torch.float32 else 32)
    return Tile(block_of(outputs, 128), block_of(inputs, 128), depth, 8 if outputs > 64 else 4, 3)


def constants(z: Tensor, inputs: int, outputs: int, tile: Tile, each: int) -> dict[str, Any]:
    # Triton's interpreter multiplies bfloat16 wrongly.
    upcast = z.dtype == torch.bfloat16 and not z.is_cuda
    return {"INPUTS": inputs, "OUTPUTS": outputs, "ROWS": tile.rows, "COLUMNS": tile.columns, "DEPTH": tile.depth,
            "TILES": each, "PRECISION": precision(z.dtype), "UPCAST": upcast, "num_warps": tile.warps,
            "num_stages": tile.stages}  # fmt: skip


def forward(
    z: Float[Tensor, "images height width inputs"],
    norm: Float[Tensor, "4 inputs"],
    weight: Float[Tensor, "outputs inputs"],
) -> tuple[Float[Tensor, "images height width outputs"], Partials]:
    """The convolution of what the layer of z hands on, and its statistics; `weight` has the dtype of z."""
    outputs, inputs = weight.shape
    rows = z.numel() // inputs
    out = z.new_empty(*z.shape[:-1], outputs)
    tile = product_tile(rows, inputs, outputs, z.dtype)
    blocks = -(-outputs // tile.columns)
    each = tiles_each(rows, tile.rows, PROGRAMS // blocks)
    programs = programs_for(rows, tile.rows, each)
    values = z.new_empty(programs, 3, outputs, dtype=torch.float32)
    launch(
        kernels.forward, (programs * blocks,), z, norm, weight, out, values, rows,
        **constants(z, inputs, outputs, tile, each),
    )  # fmt: skip
    return out, Partials(values, rows)


def backward(
    g: Float[Tensor, "images height width outputs"],
    out: Float[Tensor, "images height width outputs"],
    slopes: Float[Tensor, "3 outputs"],
    weight: Float[Tensor, "outputs inputs"],
    z: Float[Tensor, "images height width inputs"],
    norm: Float[Tensor, "4 inputs"],
) -> tuple[Float[Tensor, "images height width inputs"], Partials]:
    """The gradient of what the layer of z has normalised, and its sums."""
    outputs, inputs = weight.shape
    rows = z.numel() // inputs
    g_in = torch.empty_like(z)
    tile = product_tile(rows, outputs, inputs, z.dtype)
    blocks = -(-inputs // tile.columns)
    each = tiles_each(rows, tile.rows, PROGRAMS // blocks)
    programs = programs_for(rows, tile.rows, each)
    values = z.new_empty(programs, 2, inputs, dtype=torch.float32)
    launch(
        kernels.backward, (programs * blocks,), g, out, slopes, weight, z, norm, g_in, values, rows,
        **constants(z, inputs, outputs, tile, each),
    )  # fmt: skip
    return g_in, Partials(values, rows)


def backward_weight(
    g: Float[Tensor, "images height width outputs"],
    out: Float[Tensor, "images height width outputs"],
    slopes: Float[Tensor, "3 outputs"],
    z: Float[Tensor, "images height width inputs"],
    norm: Float[Tensor, "4 inputs"],
) -> Float[Tensor, "outputs inputs"]:
    """The weight's gradient, summed in float32."""
    outputs, inputs = out.shape[-1], z.shape[-1]
    rows = z.numel() // inputs
    tile = weight_tile(rows, outputs, inputs, z.dtype)
    blocks = -(-outputs // tile.rows) * -(-inputs // tile.columns)
    each = tiles_each(rows, tile.depth, SPREAD // blocks)
    programs = programs_for(rows, tile.depth, each)
    shares = z.new_empty(programs, outputs, inputs, dtype=torch.float32)
    launch(
        kernels.backward_weight, (programs * blocks,), g, out, slopes, z, norm, shares, rows,
        **constants(z, inputs, outputs, tile, each),
    )  # fmt: skip
    return shares.sum(0) if programs > 1 else shares[0]
