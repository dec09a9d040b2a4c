"""The bond flow in training: products by torch, and a Triton kernel for what lies between two of them.

Nothing of it is compiled by Inductor, whose compilation would be most of a run's start.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from src.gpu.products import input_gradient
from src.gpu.triton_helpers import can_take_all, launch, power_of_2, working_dtype
from src.models.moflow.actnorm import BATCH_NORM_EPS, BATCH_NORM_MOMENTUM, BatchNorm
from src.models.moflow.bond import BondFlow, BondStep, squeeze, unsqueeze
from src.models.moflow.fast import bond_triton as kernels
from src.models.moflow.fast import conv_triton
from src.models.moflow.fast.column_sums import column_sums
from src.models.moflow.fast.conv import FOLD, folded

POSITIONS = 4  # of a map: its 3x3 convolutions are dense products then
WIDEST = 4096  # channels of a half, which a program holds whole
NORM = {"ROWS": 64, "COLUMNS": 64, "num_warps": 4}
MOST_PARTS = 64  # that the rows are divided into for BatchNorm's sums
LATENT = {"ROWS": 32, "COLUMNS": 128, "num_warps": 4}


class FastBondFlow(BondFlow):
    """In training with float32 weights, 2x2 maps and no 1x1 convolutions: all steps by the kernels of this module."""

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
                z, log_det = Step.apply(z, step, dtype, *step.parameters())  # type: ignore[misc]
                log_dets.append(log_det)
            scales = torch.cat([step.actnorm.scale for step in steps])
            return unsqueeze(z, self.fold), torch.stack(log_dets).sum(0) + POSITIONS * scales.abs().log().sum()


def is_supported(steps: Sequence[BondStep], z: Tensor) -> bool:
    """Returns whether the kernels take a training batch."""
    first, (batch, positions, channels), weights = steps[0], z.shape, steps[0].actnorm.scale.dtype
    norms = [cast(BatchNorm, norm) for norm in first.coupling.norms]
    is_supported = {
        "positions": (positions, positions == POSITIONS),
        "conv_lu": ("0 or 1", first.conv is None),
        "norm_batch": (norms and norms[0].group, all(n.group is None or batch * positions <= n.group for n in norms)),
        "kept_statistics": (True, not any(norm.keeps or norm.reuses for norm in norms)),
        "weights": (weights, z.dtype == weights == torch.float32),
        "channels": (channels, channels <= 2 * WIDEST),
    }
    return can_take_all("bond_flow", z, is_supported)


class Parts(NamedTuple):
    """How the programs of BatchNorm's kernels divide its rows."""

    rows: int
    count: int
    grid: tuple[int]


def parts_of(rows: int, channels: int) -> Parts:
    """Returns parts of whole blocks of rows."""
    most = NORM["ROWS"] * -(-rows // (NORM["ROWS"] * MOST_PARTS))
    count = -(-rows // most)
    return Parts(most, count, (count * -(-channels // NORM["COLUMNS"]),))


class Step(torch.autograd.Function):
    """One step without ActNorm's log-determinant; `parameters` are the step's own in their order."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, step: BondStep, dtype: torch.dtype, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        loc, scaling = parameters[:2]
        (batch, positions, channels), coupling = z.shape, step.coupling
        rows, half, norms = batch * positions, channels // 2, [cast(BatchNorm, norm) for norm in coupling.norms]
        z = z.contiguous()
        hidden = z.new_empty(batch, positions * half, dtype=dtype)
        launch(kernels.condition, (rows,), z, loc, scaling, hidden, CONDITION=half * step.swap, **constants(half))
        matrices, inputs, outputs, statistics = list[Tensor](), [hidden], list[Tensor](), list[Tensor]()
        for number in range(len(norms) + 1):
            weight, bias = parameters[2 + 2 * number : 4 + 2 * number]
            matrices.append(dense(weight, dtype))
            outputs.append(F.linear(inputs[-1], matrices[-1], bias.to(dtype).repeat(positions)))
            if number < len(norms):
                norm, width = norms[number], len(bias)
                parts = parts_of(rows, width)
                partials = z.new_empty(width, 3, parts.count)
                inputs.append(torch.empty_like(outputs[-1]))
                statistics.append(z.new_empty(4, width))
                launch(kernels.norm_sums, parts.grid, outputs[-1], partials, rows, parts.rows, width, **NORM)
                launch(
                    kernels.norm_relu, parts.grid,
                    outputs[-1], partials, norm.weight, norm.bias, norm.running_mean, norm.running_var, statistics[-1],
                    inputs[-1], rows, parts.rows, width, PARTIALS=power_of_2(parts.count), EPS=BATCH_NORM_EPS,
                    MOMENTUM=BATCH_NORM_MOMENTUM, **NORM,
                )  # fmt: skip
        out, log_det = torch.empty_like(z), z.new_empty(batch)
        launch(
            kernels.couple, (batch,), z, outputs[-1], loc, scaling, out, log_det, positions,
            CONDITION=half * step.swap, OTHER=half * (not step.swap), **constants(half),
        )  # fmt: skip
        ctx.step = step
        convs = [parameters[2 + 2 * number] for number in range(len(norms) + 1)]
        ctx.save_for_backward(z, loc, scaling, *convs, *matrices, *inputs, *outputs, *statistics)
        return out, log_det

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        step: BondStep = ctx.step
        z, loc, scaling, *rest = ctx.saved_tensors
        count = len(step.coupling.convs)
        convs, matrices, inputs, outputs = (rest[part * count : (part + 1) * count] for part in range(4))
        statistics = rest[4 * count :]
        batch, positions, channels = z.shape
        rows, half, grad = batch * positions, channels // 2, grads[0].contiguous()
        of_output = torch.empty_like(outputs[-1])
        launch(
            kernels.couple_backward, (rows,),
            grad, grads[1].contiguous(), z, outputs[-1], loc, scaling, of_output, positions,
            OTHER=half * (not step.swap), **constants(half),
        )  # fmt: skip
        of_bias = column_sums(of_output[None]).view(-1, channels).sum(0)
        of_convs, of_norms = list[Tensor](), list[Tensor]()
        for number in reversed(range(count)):
            of_matrix = of_output.t() @ inputs[number]
            of_convs += [of_bias, folded(of_matrix, convs[number])]  # backwards, as all of these
            of_input = input_gradient(of_output, matrices[number])
            if number > 0:
                width, statistic = convs[number].shape[1], statistics[number - 1]
                parts, before = parts_of(rows, width), outputs[number - 1]
                partials, of_norm = z.new_empty(width, 2, parts.count), z.new_empty(2, width)
                of_output = torch.empty_like(of_input)
                launch(
                    kernels.norm_sums_backward, parts.grid,
                    of_input, before, statistic, partials, rows, parts.rows, width, **NORM,
                )  # fmt: skip
                launch(
                    kernels.norm_relu_backward, parts.grid,
                    of_input, before, partials, statistic, of_norm, of_output, rows, parts.rows, width,
                    PARTIALS=power_of_2(parts.count), **NORM,
                )  # fmt: skip
                of_norms += [of_norm[1], of_norm[0]]
                of_bias = z.new_zeros(width)  # BatchNorm subtracts what a bias adds
            else:
                of_output = of_input
        out, programs = torch.empty_like(z), -(-rows // LATENT["ROWS"])
        partials = z.new_empty(programs, 2, channels)
        launch(
            kernels.latent_backward, (programs * -(-channels // LATENT["COLUMNS"]),),
            grad, of_output, z, outputs[-1], loc, scaling, out, partials, rows,
            CONDITION=half * step.swap, OTHER=half * (not step.swap), HALF=half, **LATENT,
        )  # fmt: skip
        of_scaling, of_loc = partials.sum(0)
        return out, None, None, of_loc, of_scaling, *reversed(of_convs), *reversed(of_norms)


def dense(weight: Float[Tensor, "outputs inputs 3 3"], dtype: torch.dtype) -> Float[Tensor, "_ _"]:
    """Returns the 3x3 kernel as `conv.DenseMatrix` does, in one pass."""
    outputs, inputs = weight.shape[:2]
    out = weight.new_empty(4 * outputs, 4 * inputs, dtype=dtype)
    grid = outputs, -(-inputs // FOLD["BLOCK"])
    launch(conv_triton.unfold, grid, weight, out, inputs, outputs, *weight.stride(), **FOLD)
    return out


def constants(half: int) -> dict[str, int]:
    """Returns the constants of the kernels that hold a half of a row."""
    return {"HALF": half, "PADDED": power_of_2(half), "num_warps": 4}
