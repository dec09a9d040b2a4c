"""The 3x3 convolution of a 2x2 map as one dense product.

Exactly one tap connects each pair of positions, so a padded 3x3 convolution is one dense matrix from 4 x inputs to
4 x outputs: 16 of the 36 multiply-adds that a convolution executes.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from src.gpu.gradient_slots import slot_of
from src.gpu.triton_helpers import can_take, lacks, launch, package, working_dtype
from src.models.moflow.bond import Conv3x3

FOLD = {"BLOCK": 256, "num_warps": 2}
CORNERS = [(y, x) for y in (0, 1) for x in (0, 1)]


class DenseMatrix(torch.autograd.Function):
    """The 3x3 kernel as the matrix [4 outputs, 4 inputs] of a padded 2x2 map, positions outermost on both sides.

    Output position (y, x) reads input position (v, u) through tap (v - y + 1, u - x + 1), so its four taps are a 2x2
    window of the kernel: four slices, whose gradient is four slices added. Coalesced when `weight` is channels-last.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(weight)
        return torch.stack(windows(weight.to(dtype))).flatten(2).flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (weight,) = ctx.saved_tensors
        return folded(grads[0].contiguous(), weight), None


def windows(weight: Float[Tensor, "outputs inputs 3 3"]) -> list[Float[Tensor, "outputs 2 2 inputs"]]:
    """Returns the window of a 3x3 kernel that each position of a padded 2x2 map uses."""
    taps = weight.permute(0, 2, 3, 1)
    return [taps[:, 1 - y : 3 - y, 1 - x : 3 - x] for y, x in CORNERS]


# A custom op, because a compiled step cannot look up the gradient slot.
@torch.library.custom_op("reprise::folded", mutates_args=())
def folded(grad: Tensor, weight: Tensor) -> Tensor:
    """Returns `weight`'s gradient from that of its `DenseMatrix`, in its gradient slot; sums in float32 or wider."""
    out, (outputs, inputs) = slot_of(weight), weight.shape[:2]
    kernels = can_take("conv", grad) and package("src.models.moflow.fast.conv_triton")
    if kernels:
        launch(kernels.fold, (outputs, -(-inputs // FOLD["BLOCK"])), grad, out, inputs, outputs, *out.stride(), **FOLD)
        return out
    total = torch.zeros_like(out, dtype=torch.promote_types(out.dtype, torch.float32))
    for window, part in zip(windows(total), grad.unflatten(1, (4, inputs)).unflatten(0, (4, outputs)), strict=True):
        window += part.unflatten(1, (2, 2))
    return out.copy_(total)


@folded.register_fake
def _(grad: Tensor, weight: Tensor) -> Tensor:
    return torch.empty_like(weight)


class FastConv3x3(Conv3x3):
    """Conv3x3 as one dense product on 2x2 maps."""

    def forward(self, input: Float[Tensor, "batch positions inputs"]) -> Float[Tensor, "batch positions outputs"]:
        if input.shape[1] != 4:
            lacks("conv", input, f"maps of {input.shape[1]} positions")
            return super().forward(input)
        assert self.bias is not None
        matrix = DenseMatrix.apply(self.weight, working_dtype(self.weight))
        return F.linear(input.flatten(1), matrix, self.bias.repeat(4)).unflatten(1, (4, -1))  # type: ignore[arg-type]
