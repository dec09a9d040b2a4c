"""The classification head as one differentiable function: bias and ReLU fused into the product, dropout and logits."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from src.gpu import weight_copies
from src.gpu.partial_sums import sum_partials
from src.gpu.products import input_gradient
from src.gpu.triton_helpers import launch, power_of_2, working_dtype
from src.gpu.tuned_products import mm
from src.models.distilbert.fast import head_triton as kernels
from src.models.distilbert.fast import rows
from src.models.distilbert.fast.layer import weight_gradient
from src.models.distilbert.fast.rows import Drop
from src.models.distilbert.network import DistilBert

MAX_LABELS = 16  # the kernels unroll their loop over labels
LOGITS = {"BLOCK": 1, "num_warps": 4}
LOGITS_BACKWARD = {"BLOCK": 8, "WIDTH": 128, "num_warps": 1}  # a warp sums rows without others; 72 programs of 96 rows


class FastDistilBert(DistilBert):
    """Computes the head's products in autocast's dtype, or that of the weights."""

    def head(self, pooled: Float[Tensor, "sentences dim"]) -> Float[Tensor, "sentences labels"]:
        first, last = self.pre_classifier, self.classifier
        num_labels = len(last.weight)
        if not rows.takes("layer", first.weight, num_labels <= MAX_LABELS, num_labels=num_labels):
            return super().head(pooled)
        (drop,) = Drop.seeded([self.dropout.head if self.training else 0.0], pooled)
        pooled = pooled.to(working_dtype(first.weight))
        return head(pooled, drop, first.weight, first.bias, last.weight, last.bias)


class Head(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, drop: Drop, *parameters: Tensor) -> Tensor:
        weight, bias, last, last_bias = weight_copies.cast_each(parameters, x.dtype)
        hidden = mm(x, weight.t(), bias=bias, relu=True)
        ctx.save_for_backward(x, hidden, weight, last, parameters[0])
        ctx.drop = drop
        return logits(hidden, last, last_bias, drop)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, hidden, weight, last, parameter = ctx.saved_tensors
        grad, *of_rest = logits_backward(grads[0].contiguous(), hidden, last, ctx.drop)
        gradients = weight_gradient(grad, x, parameter), *of_rest
        of_x = input_gradient(grad, weight) if ctx.needs_input_grad[0] else None
        return of_x, None, *(gradient.to(parameter.dtype) for gradient in gradients)


def head(x: Float[Tensor, "sentences dim"], drop: Drop, *parameters: Tensor) -> Float[Tensor, "sentences labels"]:
    """See `DistilBert.head`; `parameters` are weight and bias of both layers. Products are in the dtype of x.

    Logits are float32.
    """
    return Head.apply(x, drop, *parameters)  # type: ignore[return-value]


def logits(
    x: Float[Tensor, "rows dim"], weight: Float[Tensor, "labels dim"], bias: Float[Tensor, " labels"], drop: Drop
) -> Float[Tensor, "rows labels"]:
    """Returns the last layer of dropout(x), in float32."""
    (labels, columns), out = weight.shape, x.new_empty(len(x), len(weight), dtype=torch.float32)
    launch(
        kernels.logits, (-(-len(x) // LOGITS["BLOCK"]),), x, weight, bias, out, drop.seed, len(x),
        **drop.constants, LABELS=labels, COLUMNS=columns, WIDTH=power_of_2(columns), **LOGITS,
    )  # fmt: skip
    return out


def logits_backward(
    grad: Float[Tensor, "rows labels"], x: Float[Tensor, "rows dim"], weight: Float[Tensor, "labels dim"], drop: Drop
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the gradients before the ReLU of `x`, of the bias there, of the last weight and of the last bias."""
    (labels, columns), out = weight.shape, torch.empty_like(x)
    sizes = labels * columns, columns, labels
    programs = -(-len(x) // LOGITS_BACKWARD["BLOCK"])
    partials = x.new_empty(programs, sum(sizes), dtype=torch.float32)
    launch(
        kernels.logits_backward, (programs, -(-columns // LOGITS_BACKWARD["WIDTH"])),
        x, weight, grad, out, partials, drop.seed, len(x),
        **drop.constants, LABELS=labels, COLUMNS=columns, **LOGITS_BACKWARD,
    )  # fmt: skip
    of_weight, of_bias, of_last_bias = sum_partials(partials).split(sizes)
    return out, of_bias, of_weight.view(labels, columns), of_last_bias
