"""The discrepancy of generated molecules with a Triton kernel that reads the products of all pairs once.

In plain torch each of four scales reads and writes all pairs several times, and again for gradients.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from src.gpu.triton_helpers import can_take, launch
from src.models.moflow import generated_molecules as plain
from src.models.moflow.fast import discrepancy_triton as kernels
from src.models.moflow.generated_molecules import REAL, SCALES

TILE = {"ROWS": 4, "COLUMNS": 512, "num_warps": 4}
WIDTHS = {"FIRST": SCALES[0], "RATIO": SCALES[1] / SCALES[0], "SCALES": len(SCALES)}


def discrepancy(generated: Float[Tensor, "generated counts"], real: Float[Tensor, "real counts"]) -> Float[Tensor, ""]:
    """Returns what `generated_molecules.discrepancy` does. Gives no gradient to real molecules."""
    is_supported = generated.dtype == real.dtype == torch.float32 and not real.requires_grad
    if not can_take("discrepancy", generated, is_supported, dtype=generated.dtype):
        return plain.discrepancy(generated, real)
    variance = plain.variance_of(real)
    among = sum(Similarities.apply(x, None, variance) / plain.pairs_among(x) for x in (generated, real[:REAL]))  # type: ignore[operator]
    return among - Similarities.apply(generated, real, variance) * (2 / (len(generated) * len(real)))  # type: ignore[operator]


class Similarities(torch.autograd.Function):
    """The sum of `kernel` over pairs of a row of `first` and one of `others`; of two rows of `first`, where None."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, others: Tensor | None, variance: Tensor) -> Tensor:
        second = first if others is None else others
        products = first @ second.T
        squares = first.square().sum(1)
        other_squares = squares if others is None else others.square().sum(1)
        sums, slopes = first.new_empty(2, len(first)).unbind()
        launch(
            kernels.similarities, (-(-len(first) // TILE["ROWS"]),),
            products, squares, other_squares, variance, sums, slopes, len(first), len(second), SKIPS=others is None,
            **WIDTHS, **TILE,
        )  # fmt: skip
        ctx.is_among = others is None
        ctx.save_for_backward(first, second, products, slopes)
        return sums.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        first, second, products, slopes = ctx.saved_tensors
        gradient = torch.addmm(first * slopes[:, None], products, second, beta=-2)
        return gradient * (2 * grads[0] if ctx.is_among else grads[0]), None, None
