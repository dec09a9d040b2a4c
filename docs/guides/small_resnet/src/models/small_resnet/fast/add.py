"""The sum and the ReLU at the end of a block as one differentiable function."""

from typing import Any

import torch
from jaxtyping import Float
from src.models.small_resnet.fast import add_triton as kernels
from src.models.small_resnet.network import Block
from torch import Tensor

from src.gpu.triton_helpers import can_take, launch

BLOCK = 1024  # elements of a program


class FastBlock(Block):
    """Adds tensors of one dtype and memory order by a kernel, others in plain torch."""

    def add(self, y: Tensor, shortcut: Tensor) -> Tensor:
        strides = y.stride(), shortcut.stride()
        is_supported = y.dtype == shortcut.dtype and y.is_contiguous() and shortcut.is_contiguous()
        if not can_take("add", y, is_supported, shortcut=shortcut.dtype, strides=strides):
            return super().add(y, shortcut)
        return AddReLU.apply(y, shortcut)  # type: ignore[return-value]


class AddReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, shortcut: Tensor) -> Float[Tensor, "batch channels height width"]:
        out = torch.empty_like(y)
        launch(kernels.add_relu, programs(out), y, shortcut, out, out.numel(), BLOCK=BLOCK)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        (out,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: autograd differentiates plain torch, but no kernel
            grad = torch.where(out <= 0, 0, grads[0])
            return grad, grad
        grad = torch.empty_like(out)
        launch(kernels.relu_backward, programs(out), grads[0].contiguous(), out, grad, out.numel(), BLOCK=BLOCK)
        return grad, grad


def programs(tensor: Tensor) -> tuple[int]:
    return (-(-tensor.numel() // BLOCK),)
