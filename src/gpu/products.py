"""What linear layers of several models share. Hopper's TF32 products want the summed index last in both factors."""

import torch
from jaxtyping import Float
from torch import Tensor

from src.gpu.tuned_products import mm


def input_gradient(
    grad: Float[Tensor, "rows outputs"],
    weight: Float[Tensor, "outputs inputs"],
    add_to: Float[Tensor, "rows inputs"] | None = None,
    out: Float[Tensor, "rows inputs"] | None = None,
) -> Float[Tensor, "rows inputs"]:
    """Returns the gradient of a linear layer's input; added in place to `add_to`, or written to `out`, if given."""
    if weight.dtype == torch.float32 and weight.is_cuda:
        weight = weight.t().contiguous().t()
    return mm(grad, weight, out=out if add_to is None else add_to, adds=add_to is not None)
