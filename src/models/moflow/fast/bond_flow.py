"""The bond flow in training: products by torch, and a Triton kernel for what lies between two of them.

Nothing of it is compiled by Inductor, whose compilation would be most of a run's start.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from src.gpu.triton_helpers import can_take_all, launch, power_of_2, working_dtype
from src.models.moflow.actnorm import BatchNorm
from src.models.moflow.bond import BondFlow, BondStep, squeeze, unsqueeze
from src.models.moflow.fast import bond_triton as kernels
from src.models.moflow.fast.bond_network import POSITIONS, Values, network, network_backward
from src.models.moflow.fast.bond_reverse import ReverseStep
from src.models.moflow.flow import Limit

WIDEST = 4096  # channels of a half, which a program holds whole
LATENT = {"ROWS": 32, "COLUMNS": 128, "num_warps": 4}


class FastBondFlow(BondFlow):
    """With float32 weights, 2x2 maps and no 1x1 convolutions: by kernels, all steps in training.

    And all of them backwards with the statistics that training has kept.
    """

    def forward(
        self, adj: Float[Tensor, "batch kinds nodes nodes"]
    ) -> tuple[Float[Tensor, "batch kinds nodes nodes"], Float[Tensor, " batch"]]:
        steps = [cast(BondStep, step) for step in self.steps]
        z = squeeze(adj, self.fold).contiguous()
        if not self.training or not is_supported(steps, z):
            return super().forward(adj)
        dtype, log_dets = working_dtype(z), []
        with torch.autocast(z.device.type, enabled=False):
            for step in steps:
                z, log_det, *statistics = Step.apply(z, step, dtype, *step.parameters())  # type: ignore[misc]
                log_dets.append(log_det)
                keep(step, statistics)
            scales = torch.cat([step.actnorm.scale for step in steps])
            return unsqueeze(z, self.fold), torch.stack(log_dets).sum(0) + POSITIONS * scales.abs().log().sum()

    def reverse(
        self, z: Float[Tensor, "batch kinds nodes nodes"], limit: Limit | None = None
    ) -> Float[Tensor, "batch kinds nodes nodes"]:
        steps = [cast(BondStep, step) for step in self.steps]
        y = squeeze(z, self.fold).contiguous()
        norms = norms_of(steps[0])
        if not norms or not norms[0].reuses or not is_supported(steps, y, reverse=True):
            return super().reverse(z, limit)
        dtype = working_dtype(y)
        with torch.autocast(y.device.type, enabled=False):
            for step in reversed(steps):
                kept = [tensor for norm in norms_of(step) for tensor in (norm.kept_mean, norm.kept_var)]
                y, beyond = ReverseStep.apply(y, step, dtype, limit is not None, *kept, *step.parameters())  # type: ignore[misc]
                if limit is not None:
                    limit.beyond = limit.beyond + beyond.mean()
            return unsqueeze(y, self.fold)


def is_supported(steps: Sequence[BondStep], z: Tensor, reverse: bool = False) -> bool:
    """Returns whether the kernels take a training batch, or latents in reverse with kept statistics."""
    first, (batch, positions, channels), weights = steps[0], z.shape, steps[0].actnorm.scale.dtype
    norms = [cast(BatchNorm, norm) for norm in first.coupling.norms]
    is_supported = {
        "positions": (positions, positions == POSITIONS),
        "conv_lu": ("0 or 1", first.conv is None),
        "norm_batch": (
            norms and norms[0].group,
            reverse or all(n.group is None or batch * positions <= n.group for n in norms),
        ),
        "kept_statistics": ("reused", reverse or not any(norm.reuses for norm in norms)),
        "weights": (weights, z.dtype == weights == torch.float32),
        "channels": (channels, channels <= 2 * WIDEST),
    }
    return can_take_all("bond_flow", z, is_supported)


def norms_of(step: BondStep) -> list[BatchNorm]:
    return [cast(BatchNorm, norm) for norm in step.coupling.norms]


def keep(step: BondStep, statistics: Sequence[Tensor]) -> None:
    """Keeps means and variances, in turn, for the BatchNorms that shall."""
    for norm, mean, variance in zip(norms_of(step), statistics[::2], statistics[1::2], strict=False):
        norm.kept_mean, norm.kept_var = mean, variance


class Step(torch.autograd.Function):
    """One step without ActNorm's log-determinant; `parameters` are the step's own in their order.

    Returns the latent, the log-determinant, and of BatchNorms that keep them mean and variance in turn.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, step: BondStep, dtype: torch.dtype, *parameters: Tensor) -> tuple[Tensor, ...]:
        loc, scaling = parameters[:2]
        (batch, positions, channels), norms = z.shape, norms_of(step)
        rows, half, layers = batch * positions, channels // 2, 2 + 2 * len(step.coupling.convs)
        z = z.contiguous()
        hidden = z.new_empty(batch, positions * half, dtype=dtype)
        launch(kernels.condition, (rows,), z, loc, scaling, hidden, CONDITION=half * step.swap, **constants(half))
        running = [buffer for norm in norms for buffer in (norm.running_mean, norm.running_var)]
        values = network(hidden, parameters[2:layers], parameters[layers:], running)
        out, log_det = torch.empty_like(z), z.new_empty(batch)
        launch(
            kernels.couple, (batch,), z, values.outputs[-1], loc, scaling, out, log_det, positions,
            CONDITION=half * step.swap, OTHER=half * (not step.swap), **constants(half),
        )  # fmt: skip
        ctx.step = step
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(z, loc, scaling, *parameters[2:layers:2], *values.flat())
        if not any(norm.keeps for norm in norms):
            return out, log_det
        norms[0].kept_matrices = values.matrices
        return out, log_det, *values.statistics()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        step: BondStep = ctx.step
        z, loc, scaling, *rest = ctx.saved_tensors
        count = len(step.coupling.convs)
        convs, values = rest[:count], Values.of(rest[count:])
        batch, positions, channels = z.shape
        rows, half, grad = batch * positions, channels // 2, contiguous(grads[0], z)
        of_output = torch.empty_like(values.outputs[-1])
        launch(
            kernels.couple_backward, (rows,),
            grad, contiguous(grads[1], z[:, 0, 0]), z, values.outputs[-1], loc, scaling, of_output, positions,
            OTHER=half * (not step.swap), **constants(half),
        )  # fmt: skip
        of = network_backward(of_output, convs, values, grads[2:])
        out, programs = torch.empty_like(z), -(-rows // LATENT["ROWS"])
        partials = z.new_empty(programs, 2, channels)
        launch(
            kernels.latent_backward, (programs * -(-channels // LATENT["COLUMNS"]),),
            grad, of.input, z, values.outputs[-1], loc, scaling, out, partials, rows,
            CONDITION=half * step.swap, OTHER=half * (not step.swap), HALF=half, **LATENT,
        )  # fmt: skip
        of_scaling, of_loc = partials.sum(0)
        return out, None, None, of_loc, of_scaling, *of.convs, *of.norms


def contiguous(grad: Tensor | None, like: Tensor) -> Tensor:
    """Returns the gradient of an output, 0 where nothing depends on that."""
    return torch.zeros_like(like, memory_format=torch.contiguous_format) if grad is None else grad.contiguous()


def constants(half: int) -> dict[str, int]:
    """Returns the constants of the kernels that hold a half of a row."""
    return {"HALF": half, "PADDED": power_of_2(half), "num_warps": 4}
