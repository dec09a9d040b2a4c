"""A bond step backwards with the statistics that its BatchNorms kept, and its gradients: see `bond_flow`."""

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from src.gpu.triton_helpers import launch, power_of_2
from src.models.moflow.actnorm import BatchNorm
from src.models.moflow.bond import BondStep
from src.models.moflow.fast import bond_reverse_triton as kernels
from src.models.moflow.fast.bond_network import Values, network, network_backward
from src.models.moflow.flow import Limit

LATENT = {"ROWS": 32, "COLUMNS": 64, "num_warps": 4}


class ReverseStep(torch.autograd.Function):
    """`rest` are means and variances of the BatchNorms in turn, and the step's parameters in their order.

    Returns the latent, cut off if it `limits`, and of each sample what `Limit.beyond` sums.
    """

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, step: BondStep, dtype: torch.dtype, limits: bool, *rest: Tensor
    ) -> tuple[Tensor, Tensor]:
        count = len(step.coupling.norms)
        statistics, (loc, scaling, *parameters) = rest[: 2 * count], rest[2 * count :]
        layers = 2 * len(step.coupling.convs)
        given = list(zip(statistics[::2], statistics[1::2], strict=True))
        (batch, positions, channels), z = z.shape, z.contiguous()
        half = channels // 2
        hidden = z.narrow(2, half * step.swap, half).to(dtype).reshape(batch, -1)
        matrices = cast(BatchNorm, step.coupling.norms[0]).kept_matrices
        values = network(hidden, parameters[:layers], parameters[layers:], (), given, matrices)
        out, beyond = torch.empty_like(z), z.new_empty(batch)
        launch(
            kernels.uncouple, (batch,), z, values.outputs[-1], loc, scaling, out, beyond, positions,
            PADDED=power_of_2(channels), num_warps=8, **constants(step, half, limits),
        )  # fmt: skip
        ctx.step, ctx.limits = step, limits
        ctx.save_for_backward(z, loc, scaling, *parameters[:layers:2], *values.flat())
        return out, beyond

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        step: BondStep = ctx.step
        z, loc, scaling, *rest = ctx.saved_tensors
        count = len(step.coupling.convs)
        convs, values = rest[:count], Values.of(rest[count:])
        batch, positions, channels = z.shape
        rows, half = batch * positions, channels // 2
        out, of_output, programs = torch.empty_like(z), torch.empty_like(values.outputs[-1]), -(-rows // LATENT["ROWS"])
        partials = z.new_empty(programs, 2, channels)
        launch(
            kernels.uncouple_backward, (programs * -(-channels // LATENT["COLUMNS"]),),
            grads[0].contiguous(), grads[1].contiguous(), z, values.outputs[-1], loc, scaling, out, of_output, partials,
            rows, positions, **constants(step, half, ctx.limits), **LATENT,
        )  # fmt: skip
        of = network_backward(of_output, convs, values, given=True)
        out.narrow(2, half * step.swap, half).add_(of.input.view(batch, positions, half))
        of_scaling, of_loc = partials.sum(0)
        return out, None, None, None, *of.statistics, of_loc, of_scaling, *of.convs, *of.norms


def constants(step: BondStep, half: int, limits: bool) -> dict[str, Any]:
    """Returns the constants of both kernels."""
    return {"OTHER": half * (not step.swap), "HALF": half, "LIMITS": limits, "FREE": Limit.FREE, "BOUND": Limit.BOUND}
