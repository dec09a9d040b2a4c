"""The hidden layers of all radial networks of a convolution as one kernel for each of forward and backward."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from src.gpu.triton_helpers import float32_precision, launch, power_of_2, reads_registers
from src.models.se3_transformer.fast import edge_networks_triton as kernels

EDGES = 64  # per tile
STEP = 32  # inputs of a product
PROGRAMS = 264  # in the backward pass: two per multiprocessor of an H200
MAX_SCALARS = 128


class EdgeNetworks(torch.autograd.Function):
    """The autograd function of `hidden`; `packed` are all parameters in the kernels' order."""

    @staticmethod
    def forward(
        ctx: Any, scalars: Tensor, lengths: Tensor, packed: Tensor, count: int, mid: int, eps: float | None,
        dtype: torch.dtype,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(scalars, lengths, packed)
        ctx.count, ctx.mid, ctx.eps = count, mid, eps
        out = scalars.new_empty(count, len(scalars), mid, dtype=dtype)
        launch(
            kernels.networks, (max(1, -(-len(scalars) // EDGES)), count), scalars, lengths, packed, out, len(scalars),
            eps or 0.0, **constants(ctx, scalars), num_warps=4,
        )  # fmt: skip
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scalars, lengths, packed = ctx.saved_tensors
        edges, width = scalars.shape
        wants_inputs = any(ctx.needs_input_grad[:2])
        blocks = max(1, -(-edges // (EDGES * max(1, PROGRAMS // ctx.count))))
        programs = max(1, -(-edges // (EDGES * blocks)))
        shares = packed.new_empty(programs, len(packed), dtype=torch.float32)
        grad_scalars, grad_lengths = (
            packed.new_empty(ctx.count, edges, *shape) if wants_inputs else packed for shape in ((width,), ())
        )
        launch(
            kernels.networks_backward, (programs, ctx.count), scalars, lengths, packed, grads[0].contiguous(),
            grad_scalars, grad_lengths, shares, edges, blocks, ctx.eps or 0.0, PADDED=max(16, power_of_2(width)),
            WANTS_INPUTS=wants_inputs, SETTLE=reads_registers(packed), **constants(ctx, scalars), num_warps=4,
        )  # fmt: skip
        inputs = (grad_scalars.sum(0), grad_lengths.sum(0)) if wants_inputs else (None, None)
        return *inputs, shares.sum(0), None, None, None, None


def constants(ctx: Any, scalars: Tensor) -> dict[str, Any]:
    width = scalars.shape[1]
    return {
        "SCALARS": width, "MID": ctx.mid, "NORM": ctx.eps is not None, "BE": EDGES,
        "STEP": min(STEP, max(16, power_of_2(max(width, 1)))), "PRECISION": float32_precision(torch.float32),
    }  # fmt: skip


def hidden(
    scalars: Float[Tensor, "edges _"],
    lengths: Float[Tensor, " edges"],
    networks: Sequence[Sequence[nn.Module]],
    dtype: torch.dtype,
) -> Float[Tensor, "networks edges mid"]:
    """Returns the hidden layers (Linear, optional LayerNorm, ReLU, twice) of each network, in `dtype`.

    Args:
        lengths: the last input of each network.
        networks: each one's layers, of the same widths.
    """
    first = next(layer for layer in networks[0] if isinstance(layer, nn.Linear))
    mid, eps, parts = first.out_features, None, list[Tensor]()
    for layers in networks:
        norms = [layer for layer in layers if isinstance(layer, nn.LayerNorm)]
        linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
        for number, linear in enumerate(linears):
            affine = [norms[number].weight, norms[number].bias] if norms else [scalars.new_zeros(2 * mid)]
            parts += [linear.weight.flatten(), linear.bias, *affine]
        eps = norms[0].eps if norms else None
    packed = torch.cat(parts).float()
    inputs = scalars.float().contiguous(), lengths.float().contiguous()
    return EdgeNetworks.apply(*inputs, packed, len(networks), mid, eps, dtype)  # type: ignore[return-value]


def supported(networks: Sequence[Sequence[nn.Module]]) -> bool:
    """Returns whether the kernels take the networks' widths."""
    firsts = [next(layer for layer in layers if isinstance(layer, nn.Linear)) for layers in networks]
    shapes = {(first.in_features, first.out_features) for first in firsts}
    return len(shapes) == 1 and all(width <= MAX_SCALARS + 1 and mid in (16, 32, 64) for width, mid in shapes)
