"""Weights' gradients of the atom flow: one product a layer for all steps, its sums divided into parts.

A narrow layer's product waits for memory, so a kernel computes the layer's input from z again instead of reading what
the backward pass would have to store.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from src.gpu.triton_helpers import launch, power_of_2, precision, reads_registers
from src.models.moflow.fast import atom_weights_triton as kernels

NARROW = 64  # outputs of a layer, at most, whose weight's gradient the kernel computes; 0: of none
COLUMNS, DEPTH, STAGES = 128, 64, 3  # of that kernel: inputs of a program, rows that it loads at a time
TILE_OF_WEIGHT = 128, 256  # of a weight's gradient, in cuBLAS's products
FEWEST_TILES = 660  # of all steps' products: five rounds of an H200's 132 multiprocessors; the last may be short


def padded(size: int) -> int:
    """Returns the next power of 2 that tensor cores take."""
    return max(16, power_of_2(size))


def products(z: Tensor) -> dict[str, Any]:
    """Returns the constants of products of this tensor."""
    upcast = z.dtype == torch.bfloat16 and not z.is_cuda  # Triton's interpreter multiplies bfloat16 incorrectly
    return {"PRECISION": precision(z.dtype), "UPCAST": upcast, "SETTLE": reads_registers(z)}


def weight_gradients(
    of_out: Float[Tensor, "steps nodes batch outputs"], inputs: Float[Tensor, "steps nodes batch inputs"]
) -> Float[Tensor, "steps outputs inputs"]:
    """Returns the gradients of a layer's weight of all steps, in float32: sums of products of `parts_of` the nodes."""
    parts = parts_of(of_out.shape, inputs.shape[-1], TILE_OF_WEIGHT)
    factors = [x.view(len(x) * parts, -1, x.shape[-1]) for x in (of_out, inputs)]
    if of_out.dtype == torch.float32 or not of_out.is_cuda:
        out = torch.bmm(factors[0].float().transpose(1, 2), factors[1].float())
    else:
        out = torch.bmm(factors[0].transpose(1, 2), factors[1], out_dtype=torch.float32)
    return out.unflatten(0, (-1, parts)).sum(1) if parts > 1 else out


def parts_of(shape: Sequence[int], inputs: int, tile: tuple[int, int]) -> int:
    """Returns how many parts the nodes are divided into, so that a product's tiles occupy all multiprocessors.

    The least number that divides the nodes and makes FEWEST_TILES tiles, or all nodes.
    """
    steps, nodes, _, outputs = shape
    tiles = steps * -(-outputs // tile[0]) * -(-inputs // tile[1])
    return next((parts for parts in range(1, nodes) if nodes % parts == 0 and tiles * parts >= FEWEST_TILES), nodes)


def narrow_gradients(
    of_out: Float[Tensor, "steps nodes batch outputs"],
    z: Float[Tensor, "steps nodes batch inputs"],
    norms: Float[Tensor, "steps numbers nodes"],
) -> tuple[Float[Tensor, "steps outputs inputs"], Float[Tensor, "steps outputs"]]:
    """Returns the gradients of weight and bias of a layer of relu(BatchNorm(z)), of all steps, in float32."""
    (steps, nodes, batch, outputs), inputs = of_out.shape, z.shape[-1]
    rows, columns = padded(outputs), min(COLUMNS, padded(inputs))
    parts = parts_of(of_out.shape, inputs, (rows, columns))
    weights, biases = norms.new_empty(steps, parts, outputs, inputs), norms.new_empty(steps, parts, outputs)
    launch(
        kernels.weight_gradient, (steps * parts * -(-inputs // columns),),
        of_out, z, norms, weights, biases, batch, nodes, parts, norms.stride(0),
        INPUTS=inputs, OUTPUTS=outputs, ROWS=rows, COLUMNS=columns, DEPTH=min(DEPTH, padded(batch)), **products(z),
        num_warps=4, num_stages=STAGES,
    )  # fmt: skip
    return weights.sum(1), biases.sum(1)
