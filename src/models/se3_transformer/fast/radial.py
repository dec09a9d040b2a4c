"""The hidden layers of a radial network as one kernel for each of forward and backward."""

from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from src.gpu.partial_sums import sum_partials
from src.gpu.second_gradients import gradients_by
from src.gpu.triton_helpers import can_take, launch, thorough
from src.models.se3_transformer.fast import radial_triton as kernels
from src.models.se3_transformer.radial import HiddenLayers

EDGES = 64  # per tile
# At most, in the backward pass: of one tile each up to 67,584 edges, so without a loop, whose registers spill. On an
# H200, 59,648 edges took 0.060 ms with the longer sum of partial sums, instead of 0.114 with 264 programs.
PROGRAMS = 1056
MAX_INPUTS = 16


class FastHiddenLayers(HiddenLayers):
    """Computes in float32, also under autocast."""

    def forward(self, inputs: Float[Tensor, "edges scalars"]) -> Float[Tensor, "edges mid"]:
        if not can_take("radial", inputs, supported(self), layer=self[0]):
            return super().forward(inputs)
        return hidden(inputs, self)


def supported(hidden: nn.Sequential) -> bool:
    """Returns whether the kernels support the network's widths."""
    first = hidden[0]
    return isinstance(first, nn.Linear) and first.in_features <= MAX_INPUTS and first.out_features in (16, 32, 64)


class Hidden(torch.autograd.Function):
    """The autograd function of `hidden`; `packed` are all parameters in the kernels' order."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, packed: Tensor, mid: int, eps: float | None) -> Tensor:
        ctx.save_for_backward(inputs, packed)
        ctx.mid, ctx.eps = mid, eps
        out = inputs.new_empty(len(inputs), mid, dtype=torch.float32)
        launch(kernels.radial, (-(-len(inputs) // EDGES),), 
            inputs, packed, out, len(inputs), eps or 0.0, INPUTS=inputs.shape[1], MID=mid, NORM=eps is not None,
            BE=EDGES, PRECISION=thorough(torch.float32), num_warps=4,
        )  # fmt: skip
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs, packed = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True
            return *gradients_by(partial(plain, mid=ctx.mid, eps=ctx.eps), (inputs, packed), grads[0]), None, None
        wants_inputs = ctx.needs_input_grad[0]
        blocks = -(-len(inputs) // (EDGES * PROGRAMS))
        programs = -(-len(inputs) // (EDGES * blocks))
        partials = packed.new_empty(programs, len(packed), dtype=torch.float32)
        grad_inputs = torch.empty_like(inputs) if wants_inputs else inputs
        launch(kernels.radial_backward, (programs,), 
            inputs, packed, grads[0].contiguous(), grad_inputs, partials, len(inputs), blocks, ctx.eps or 0.0,
            INPUTS=inputs.shape[1], PADDED=16, MID=ctx.mid, NORM=ctx.eps is not None, BE=EDGES,
            WANTS_INPUTS=wants_inputs, PRECISION=thorough(torch.float32), num_warps=4,
        )  # fmt: skip
        return grad_inputs if wants_inputs else None, sum_partials(partials), None, None


def plain(
    inputs: Float[Tensor, "edges scalars"], packed: Float[Tensor, " parameters"], mid: int, eps: float | None
) -> Float[Tensor, "edges mid"]:
    """Computes the function of `Hidden` in plain torch."""
    x, begin = inputs.to(packed.dtype), 0
    for _ in range(2):
        end = begin + mid * x.shape[1]
        weight, (bias, scale, shift) = packed[begin:end].view(mid, -1), packed[end : end + 3 * mid].view(3, mid)
        x, begin = F.linear(x, weight, bias), end + 3 * mid
        x = F.relu(x if eps is None else F.layer_norm(x, (mid,), scale, shift, eps))
    return x


def hidden(inputs: Float[Tensor, "edges scalars"], network: nn.Sequential) -> Float[Tensor, "edges mid"]:
    """Computes `network(inputs)` (Linear, optional LayerNorm, ReLU, twice) in float32, also under autocast."""
    linears = [layer for layer in network if isinstance(layer, nn.Linear)]
    norms = [layer for layer in network if isinstance(layer, nn.LayerNorm)]
    mid = linears[0].out_features
    parts: list[Tensor] = []
    for number, linear in enumerate(linears):
        affine = [norms[number].weight, norms[number].bias] if norms else [inputs.new_zeros(2 * mid)]
        parts += [linear.weight.flatten(), linear.bias, *affine]
    eps = norms[0].eps if norms else None
    packed = torch.cat(parts)  # of half precision in predict.py's precision=fp16
    packed = packed.to(torch.promote_types(packed.dtype, torch.float32))
    return Hidden.apply(inputs.contiguous(), packed, mid, eps)  # type: ignore[return-value]
