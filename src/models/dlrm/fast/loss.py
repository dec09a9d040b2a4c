"""The mean cross entropy of logits, as one kernel and a short sum forward, and one kernel backward.

Plain torch runs about fifteen short kernels.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from src.gpu.partial_sums import sum_partials
from src.gpu.triton_helpers import can_take, launch
from src.models.dlrm.fast import loss_triton as kernels

OPTIONS = {"BLOCK": 128, "num_warps": 1}  # four rows a thread: 65,536 rows are four warps a multiprocessor


def bce(logits: Float[Tensor, " batch"], labels: Float[Tensor, " batch"]) -> Float[Tensor, ""]:
    """Returns torch's `binary_cross_entropy_with_logits`. The kernels give no gradient to labels."""
    is_supported = (
        logits.dtype == labels.dtype == torch.float32 and logits.shape == labels.shape and not labels.requires_grad
    )
    if not can_take("mlp", logits, is_supported, logits=logits.dtype, labels=labels.dtype):
        return F.binary_cross_entropy_with_logits(logits, labels)
    return MeanCrossEntropy.apply(logits.contiguous(), labels.contiguous())  # type: ignore[return-value]


class MeanCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        ctx.save_for_backward(logits, labels)
        partials = logits.new_empty(programs(logits))
        launch(kernels.bce, (len(partials),), logits, labels, partials, len(logits), **OPTIONS)
        return sum_partials(partials)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        logits, labels = ctx.saved_tensors
        out = torch.empty_like(logits)
        launch(kernels.bce_backward, (programs(logits),), logits, labels, grads[0], out, len(logits), **OPTIONS)
        return out, None


def programs(logits: Tensor) -> int:
    return -(-len(logits) // OPTIONS["BLOCK"])
