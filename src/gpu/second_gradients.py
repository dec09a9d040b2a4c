"""Gradients that can be differentiated again, for functions whose kernels give only first ones."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def gradients_by(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], gradient: Tensor
) -> tuple[Tensor | None, ...]:
    """Returns the gradients of a function in plain torch with their graph; None for inputs that need none.

    For the backward pass of a kernel under create_graph=True, where `torch.is_grad_enabled()`: autograd would take the
    kernel's results for constants.

    Args:
        inputs: saved inputs of the autograd function, not copies: autograd knows where those come from. Read
            `ctx.saved_tensors` once: a checkpoint allows no second time.
        gradient: that of the function's value.
    """
    needed = [tensor for tensor in inputs if tensor.requires_grad]
    gradients = iter(torch.autograd.grad(function(*inputs), needed, gradient, create_graph=True))
    return tuple(next(gradients) if tensor.requires_grad else None for tensor in inputs)
