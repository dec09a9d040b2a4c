"""A whole MLP as one differentiable function: bias and ReLU fused into the products, weight gradients in float32."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from src.gpu import weight_copies
from src.gpu.partial_sums import sum_partials
from src.gpu.products import input_gradient
from src.gpu.triton_helpers import can_take, launch, power_of_2, working_dtype
from src.gpu.tuned_products import mm
from src.models.dlrm.fast import mlp_triton as kernels
from src.models.dlrm.mlp import MLP

ALIGNED = 8  # elements: rows of products begin at multiples of 16 bytes
RELU_BACKWARD = {"ROWS": 128, "BLOCK": 32, "WIDTH": 128, "num_warps": 4}
FIRST_LAYER = {"BLOCK": 32, "WIDTH": 128, "num_warps": 4, "num_stages": 2}
SLOTS = 4 * 132  # programs of FIRST_LAYER at most: four on each multiprocessor of an H200 at once
MAX_INPUTS = 31  # of a first layer: 32 columns with the ones for the bias
HEAD = {"BLOCK": 32, "num_warps": 4}
HEAD_BACKWARD = {"ROWS": 128, "BLOCK": 16, "num_warps": 4}  # 65,536 rows are one program of each slot of an H200
MAX_LOGIT = 1024  # width of the last hidden layer that one program holds


def supported(widths: tuple[int, ...], logit: bool) -> bool:
    """Returns whether the kernels support layers of these widths."""
    hidden = widths[1:-1] if logit else widths[1:]
    return bool(hidden) and all(width % ALIGNED == 0 for width in hidden) and (not logit or hidden[-1] <= MAX_LOGIT)


class FastMLP(MLP):
    """All layers as one function, in autocast's dtype or that of the weights; logits are float32."""

    def forward(self, x: Float[Tensor, "batch inputs"]) -> Float[Tensor, "batch outputs"]:
        parameters = [parameter for layer in self.layers for parameter in layer.parameters()]
        if not can_take("mlp", parameters[0], supported(self.widths, self.logit), widths=self.widths):
            return super().forward(x)
        return mlp(x.to(working_dtype(parameters[0])), self.logit, *parameters)


class FusedMLP(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, logit: bool, *parameters: Tensor) -> Tensor:
        narrow = weight_copies.cast_each(parameters, x.dtype)
        weights, biases = narrow[0::2], narrow[1::2]
        missing = -x.shape[1] % ALIGNED
        if missing:
            x, weights[0] = F.pad(x, (0, missing)), F.pad(weights[0], (0, missing))
        ctx.logit, ctx.inputs = logit, parameters[0].shape[1]
        activations = [x]
        hidden = len(weights) - logit
        for weight, bias in zip(weights[:hidden], biases[:hidden], strict=True):
            activations.append(mm(activations[-1], weight.t(), bias=bias, relu=True))
        ctx.num_activations = len(activations)
        ctx.save_for_backward(*activations, *weights)
        return head(activations[-1], weights[-1], biases[-1]) if logit else activations[-1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved = list(ctx.saved_tensors)
        activations, weights = saved[: ctx.num_activations], saved[ctx.num_activations :]
        gradients: list[Tensor] = []  # gradients of parameters, last one first
        if ctx.logit:
            grad, of_weight, of_bias, of_logit_bias = head_backward(activations[-1], weights.pop(), grads[0])
            gradients += [of_logit_bias, of_weight]
        else:
            grad, of_bias = relu_backward(grads[0].contiguous(), activations[-1])
        activations.pop()
        while True:
            gradients += [of_bias, product(grad.t(), activations[-1])]
            if len(activations) == 1:
                break
            grad = input_gradient(grad, weights.pop())
            if len(activations) == 2 and not ctx.needs_input_grad[0] and is_narrow(activations[0], ctx.inputs):
                gradients += first_layer_gradients(grad, activations[1], activations[0], ctx.inputs)
                return None, None, *reversed(gradients)
            grad, of_bias = relu_backward(grad, activations.pop(), out=grad)
        gradients[-1] = gradients[-1][:, : ctx.inputs]
        of_x = input_gradient(grad, weights[0])[:, : ctx.inputs] if ctx.needs_input_grad[0] else None
        return of_x, None, *reversed(gradients)


def mlp(x: Float[Tensor, "batch inputs"], logit: bool, *parameters: Tensor) -> Float[Tensor, "batch outputs"]:
    """See `MLP.forward`; `parameters` are weight and bias of each layer. Products are in the dtype of `x`.

    Logits are float32.
    """
    return FusedMLP.apply(x, logit, *parameters)  # type: ignore[return-value]


def product(a: Float[Tensor, "m k"], b: Float[Tensor, "k n"]) -> Float[Tensor, "m n"]:
    """Returns a @ b, summed and stored in float32: a large batch's gradient neither overflows nor loses small terms."""
    if a.dtype == torch.float32 or not a.is_cuda:
        return a.float() @ b.float()
    return mm(a, b, dtype=torch.float32)


def relu_backward(
    grad: Float[Tensor, "batch width"],
    activation: Float[Tensor, "batch width"],
    out: Float[Tensor, "batch width"] | None = None,
) -> tuple[Float[Tensor, "batch width"], Float[Tensor, " width"]]:
    """Returns the gradient before the ReLU, written to `out` if given, which may be `grad`, and that of the bias."""
    out, (rows, columns), options = torch.empty_like(grad) if out is None else out, grad.shape, RELU_BACKWARD
    programs = -(-rows // options["ROWS"])
    partials = grad.new_empty(programs, columns, dtype=torch.float32)
    launch(
        kernels.relu_backward, (-(-columns // options["WIDTH"]), programs), grad, activation, out, partials, rows,
        COLUMNS=columns, **options,
    )  # fmt: skip
    return out, sum_partials(partials)


def is_narrow(x: Float[Tensor, "batch inputs"], inputs: int) -> bool:
    """Returns whether `first_layer_gradients` supports the input. In TF32 its sums for a bias would lose digits."""
    return x.dtype != torch.float32 and inputs <= MAX_INPUTS


def first_layer_gradients(
    grad: Float[Tensor, "batch width"],
    activation: Float[Tensor, "batch width"],
    x: Float[Tensor, "batch padded"],
    inputs: int,
) -> tuple[Float[Tensor, " width"], Float[Tensor, "width inputs"]]:
    """Returns the gradients of bias and weight of a layer whose input needs none, from that of its ReLU's output.

    The gradient before the ReLU, which is several times as large as all else, is not written.
    """
    (rows, columns), options = grad.shape, FIRST_LAYER
    blocks = -(-columns // options["WIDTH"])
    length = max(-(-rows // max(SLOTS // blocks, 1)), 1)
    length += -length % options["BLOCK"]
    programs = -(-rows // length)
    partials = grad.new_empty(programs, columns * (inputs + 1), dtype=torch.float32)
    launch(
        kernels.first_layer_backward, (blocks, programs), grad, activation, x.contiguous(), partials, rows, length,
        COLUMNS=columns, INPUTS=inputs, STRIDE=x.shape[1], NUMBERS=max(power_of_2(inputs + 1), 16), **options,
    )  # fmt: skip
    of_weight, of_bias = sum_partials(partials).split([columns * inputs, columns])
    return of_bias, of_weight.view(columns, inputs)


def head(
    x: Float[Tensor, "batch width"], weight: Float[Tensor, "1 width"], bias: Float[Tensor, " 1"]
) -> Float[Tensor, "batch 1"]:
    """Applies the layer to one logit."""
    out, columns = x.new_empty(len(x), 1, dtype=torch.float32), x.shape[1]
    launch(
        kernels.logit, (-(-len(x) // HEAD["BLOCK"]),), x, weight, bias, out, len(x),
        COLUMNS=columns, WIDTH=power_of_2(columns), **HEAD,
    )  # fmt: skip
    return out


def head_backward(
    x: Float[Tensor, "batch width"], weight: Float[Tensor, "1 width"], grad: Float[Tensor, "batch 1"]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the gradients before the ReLU of `x`, of the logit's weight, of the bias in `x`, of the logit's bias."""
    out, columns, programs = torch.empty_like(x), x.shape[1], -(-len(x) // HEAD_BACKWARD["ROWS"])
    partials = x.new_empty(programs, 3, columns, dtype=torch.float32)
    launch(
        kernels.logit_backward, (programs,), x, weight, grad.contiguous(), out, partials, len(x),
        COLUMNS=columns, WIDTH=power_of_2(columns), **HEAD_BACKWARD,
    )  # fmt: skip
    of_weight, of_bias, of_logit_bias = sum_partials(partials)
    return out, of_weight[None], of_bias, of_logit_bias[:1]
