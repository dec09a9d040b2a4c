"""The coupling network of a bond step, forward and backward: products by torch, BatchNorm with ReLU by kernels."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from src.gpu.products import input_gradient
from src.gpu.triton_helpers import launch, power_of_2
from src.gpu.tuned_products import mm
from src.models.moflow.actnorm import BATCH_NORM_EPS, BATCH_NORM_MOMENTUM
from src.models.moflow.fast import bond_triton as kernels
from src.models.moflow.fast import conv_triton
from src.models.moflow.fast.column_sums import column_sums
from src.models.moflow.fast.conv import FOLD, folded

POSITIONS = 4  # of a map: its 3x3 convolutions are dense products then
NORM = {"ROWS": 64, "COLUMNS": 64, "num_warps": 4}
MOST_PARTS = 64  # that the rows are divided into for BatchNorm's sums

Statistics = Sequence[tuple[Tensor, Tensor]]  # mean and biased variance of each BatchNorm's channels


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


class Values(NamedTuple):
    """What the backward pass needs: of each convolution matrix, input and output, of each BatchNorm `norm`."""

    matrices: list[Tensor]
    inputs: list[Tensor]
    outputs: list[Tensor]
    norms: list[Tensor]

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> "Values":
        """Returns those that `flat` gave."""
        count = (len(tensors) + 1) // 4
        return cls(*(list(tensors[part * count : (part + 1) * count]) for part in range(4)))

    def flat(self) -> list[Tensor]:
        return [*self.matrices, *self.inputs, *self.outputs, *self.norms]

    def statistics(self) -> list[Tensor]:
        """Returns mean and biased variance of each BatchNorm, in turn."""
        of_norms = ((norm[0].clone(), (norm[1].pow(-2) - BATCH_NORM_EPS).clamp_min(0)) for norm in self.norms)
        return [tensor for pair in of_norms for tensor in pair]


class Gradients(NamedTuple):
    """Of the input, of convolutions and BatchNorms in their order (weight, bias), and of given statistics."""

    input: Tensor
    convs: list[Tensor]
    norms: list[Tensor]
    statistics: list[Tensor]


def network(
    hidden: Float[Tensor, "batch inputs"],
    convs: Sequence[Tensor],
    norms: Sequence[Tensor],
    running: Sequence[Tensor],
    given: Statistics = (),
    matrices: Sequence[Tensor] = (),
) -> Values:
    """Returns the network's values; the last of `outputs` is its output.

    Args:
        hidden: positions outermost, in the dtype of the products.
        convs, norms: weights and biases in turn.
        running: means and variances in turn, which are updated; not read where statistics are `given`.
        matrices: `Values.matrices` of these convolutions in this dtype, if there are any already.
    """
    values, rows = Values([], [hidden], [], []), POSITIONS * len(hidden)
    for number in range(len(convs) // 2):
        conv, bias = convs[2 * number : 2 * number + 2]
        values.matrices.append(matrices[number] if matrices else dense(conv, hidden.dtype))
        repeated = bias.to(hidden.dtype).repeat(POSITIONS)
        output = mm(values.inputs[-1], values.matrices[-1].t(), bias=repeated)
        values.outputs.append(output)
        if 2 * number < len(norms):
            width, weight = len(bias), norms[2 * number]
            parts = parts_of(rows, width)
            statistics = given[number] if given else running[2 * number : 2 * number + 2]
            partials = weight.new_empty(width, 3, parts.count)
            if not given:
                launch(kernels.norm_sums, parts.grid, output, partials, rows, parts.rows, width, **NORM)
            values.inputs.append(torch.empty_like(output))
            values.norms.append(weight.new_empty(6, width))
            launch(
                kernels.norm_relu, parts.grid,
                output, partials, weight, norms[2 * number + 1], *statistics, values.norms[-1], values.inputs[-1],
                rows, parts.rows, width, GIVEN=bool(given), PARTIALS=power_of_2(parts.count), EPS=BATCH_NORM_EPS,
                MOMENTUM=BATCH_NORM_MOMENTUM, **NORM,
            )  # fmt: skip
    return values


def network_backward(
    of_output: Float[Tensor, "batch outputs"],
    convs: Sequence[Tensor],
    values: Values,
    of_kept: Sequence[Tensor | None] = (),
    given: bool = False,
) -> Gradients:
    """Returns the gradients of `network` from that of its output.

    Args:
        convs: the weights.
        of_kept: gradients of mean and variance of each BatchNorm in turn, of what else depends on them.
        given: whether the statistics were, whose gradients are then part of the result.
    """
    of_convs, of_norms, of_statistics = list[Tensor](), list[Tensor](), list[Tensor]()  # backwards
    of_bias = column_sums(of_output[None]).view(-1, of_output.shape[1] // POSITIONS).sum(0)
    rows = POSITIONS * len(of_output)
    for number in reversed(range(len(convs))):
        of_matrix = mm(of_output.t(), values.inputs[number])
        of_convs += [of_bias, folded(of_matrix, convs[number])]
        of_input = input_gradient(of_output, values.matrices[number])
        if number == 0:
            return Gradients(of_input, of_convs[::-1], of_norms[::-1], of_statistics[::-1])
        norm, before, width = values.norms[number - 1], values.outputs[number - 1], convs[number].shape[1]
        of_mean, of_variance = of_kept[2 * number - 2 : 2 * number] or (None, None)
        if of_mean is not None or of_variance is not None:
            zeros = norm[4]
            of_mean, of_variance = (zeros if grad is None else grad for grad in (of_mean, of_variance))
            norm = torch.cat([norm[:4], of_mean[None], of_variance[None]])
        parts = parts_of(rows, width)
        partials, of_norm, of_output = (
            norm.new_empty(width, 2, parts.count), norm.new_empty(5 if given else 2, width), torch.empty_like(of_input)
        )  # fmt: skip
        launch(
            kernels.norm_sums_backward, parts.grid,
            of_input, before, norm, partials, rows, parts.rows, width, **NORM,
        )  # fmt: skip
        launch(
            kernels.norm_relu_backward, parts.grid,
            of_input, before, partials, norm, of_norm, of_output, rows, parts.rows, width,
            GIVEN=given, PARTIALS=power_of_2(parts.count), **NORM,
        )  # fmt: skip
        # BatchNorm subtracts what a bias adds, unless the mean is given.
        of_bias = of_norm[4] if given else norm.new_zeros(width) if of_mean is None else of_mean
        if given:
            of_statistics += [of_norm[3], of_norm[2]]
        of_norms += [of_norm[1], of_norm[0]]
    raise AssertionError("a network has a convolution")


def dense(weight: Float[Tensor, "outputs inputs 3 3"], dtype: torch.dtype) -> Float[Tensor, "_ _"]:
    """Returns the 3x3 kernel as `conv.DenseMatrix` does, in one pass."""
    outputs, inputs = weight.shape[:2]
    out = weight.new_empty(4 * outputs, 4 * inputs, dtype=dtype)
    grid = outputs, -(-inputs // FOLD["BLOCK"])
    launch(conv_triton.unfold, grid, weight, out, inputs, outputs, *weight.stride(), **FOLD)
    return out
