"""The autograd function of the kernels in `radial_triton`."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from src.gpu.triton_helpers import launch, thorough
from src.models.se3_transformer.kernels.fused import radial_triton as kernels

EDGES = 64  # per tile
PROGRAMS = 264  # in the backward pass: two per multiprocessor of an H200
MAX_INPUTS = 16


def supported(hidden: nn.Sequential) -> bool:
    """Returns whether the kernels support the network's widths."""
    first = hidden[0]
    return isinstance(first, nn.Linear) and first.in_features <= MAX_INPUTS and first.out_features in (16, 32, 64)


class Hidden(torch.autograd.Function):
    """The autograd function of `hidden`; `packed` are all parameters in the kernels' order."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, packed: Tensor, mid: int, eps: float | None) -> Tensor:
        inputs = inputs.contiguous()
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
        return grad_inputs if wants_inputs else None, partials.sum(0), None, None


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
    return Hidden.apply(inputs, packed, mid, eps)  # type: ignore[return-value]
