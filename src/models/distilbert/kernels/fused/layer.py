"""A whole transformer layer as one differentiable function.

Activations, also those between layers, are in the dtype of the products; statistics, sums and gradients of parameters
are float32. A residual's gradient is added by the product that makes the rest of it. Nothing is computed twice but
dropout's masks, layer norms' inputs and attention's weights, which memory would take longer to give back.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from src.gpu.triton_helpers import precision
from src.models.distilbert.kernels.fused import attention, rows
from src.models.distilbert.kernels.fused.attention import Attention
from src.models.distilbert.kernels.fused.rows import Drop
from src.models.distilbert.layout import Layout
from src.parallel.gradient_slots import slot_of


class Parameters(NamedTuple):
    """Of a layer, in the order of its state_dict."""

    q: Tensor
    q_bias: Tensor
    k: Tensor
    k_bias: Tensor
    v: Tensor
    v_bias: Tensor
    out: Tensor
    out_bias: Tensor
    norm: Tensor
    norm_bias: Tensor
    wide: Tensor
    wide_bias: Tensor
    narrow: Tensor
    narrow_bias: Tensor
    last: Tensor
    last_bias: Tensor


@dataclass(frozen=True)
class Job:
    """What a layer is to do beside its parameters.

    first: rows of the sentences' first tokens, where the layer is wanted for those alone.
    drop: of what the feed-forward layers add.
    """

    attention: Attention
    first: Int[Tensor, " sentences"] | None
    drop: Drop
    eps: float


class Narrow(NamedTuple):
    """Weights and biases of products in the products' dtype; q, k and v one behind the other."""

    qkv: Tensor
    qkv_bias: Tensor
    out: Tensor
    out_bias: Tensor
    wide: Tensor
    wide_bias: Tensor
    narrow: Tensor
    narrow_bias: Tensor


def supported(dim: int, num_heads: int) -> bool:
    return attention.supported(dim // num_heads)


class Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, job: Job, *tensors: Tensor) -> Tensor:
        parameters = Parameters(*tensors)
        weights = narrowed(parameters, x.dtype)
        dim = x.shape[1]
        if job.first is None:
            chosen, qkv = x, F.linear(x, weights.qkv, weights.qkv_bias)
            q, kv = qkv[:, :dim], qkv[:, dim:]
        else:
            chosen = x.index_select(0, job.first)
            q = F.linear(chosen, weights.qkv[:dim], weights.qkv_bias[:dim])
            kv = F.linear(x, weights.qkv[dim:], weights.qkv_bias[dim:])
        context, noted = attention.attend(q, kv[:, :dim], kv[:, dim:], job.attention)
        attended = F.linear(context, weights.out, weights.out_bias)
        middle, statistics = rows.add_norm(attended, chosen, parameters.norm, parameters.norm_bias, job.eps, Drop())
        wide = F.linear(middle, weights.wide, weights.wide_bias)
        active = rows.gelu(wide)
        added = F.linear(active, weights.narrow, weights.narrow_bias)
        out, last_statistics = rows.add_norm(added, middle, parameters.last, parameters.last_bias, job.eps, job.drop)
        ctx.job = job
        ctx.save_for_backward(
            x, chosen, q, kv, context, noted, attended, middle, statistics, wide, active, added, last_statistics,
            *weights, parameters.norm, parameters.last, parameters.out, parameters.wide, parameters.narrow,
        )  # fmt: skip
        ctx.dtype = parameters.q.dtype
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x, chosen, q, kv, context, noted, attended, middle, statistics, wide, active, added, last_statistics,
         *narrow, norm, last, own_out, own_wide, own_narrow) = ctx.saved_tensors  # fmt: skip
        job, weights, (count, dim), hidden = ctx.job, Narrow(*narrow), chosen.shape, wide.shape[1]
        shares = rows.new_shares(count, 6 * dim + hidden, norm)
        of_last, of_wide, of_norm = shares.split([3 * dim, hidden, 3 * dim], 1)

        grad_added, onto = rows.add_norm_backward(
            grads[0].contiguous(), added, middle, last, last_statistics, job.drop, of_last
        )
        narrow_weight = weight_gradient(grad_added, active, own_narrow)
        grad_wide = rows.gelu_backward(through(grad_added, weights.narrow), wide, of_wide)
        wide_weight = weight_gradient(grad_wide, middle, own_wide)
        grad_middle = through(grad_wide, weights.wide, onto)

        grad_attended, onto = rows.add_norm_backward(grad_middle, attended, chosen, norm, statistics, Drop(), of_norm)
        out_weight = weight_gradient(grad_attended, context, own_out)
        grad_context = through(grad_attended, weights.out)
        grad_x, qkv_weight, qkv_bias = attention_backward(
            job, grad_context, onto, x, chosen, q, kv, context, noted, weights.qkv
        )
        last_weight, last_bias, narrow_bias, wide_bias, norm_weight, norm_bias, out_bias = shares.sum(0).split(
            [dim, dim, dim, hidden, dim, dim, dim]
        )
        found = Parameters(
            qkv_weight[:dim], qkv_bias[:dim], qkv_weight[dim : 2 * dim], qkv_bias[dim : 2 * dim],
            qkv_weight[2 * dim :], qkv_bias[2 * dim :], out_weight, out_bias, norm_weight, norm_bias,
            wide_weight, wide_bias, narrow_weight, narrow_bias, last_weight, last_bias,
        )  # fmt: skip
        return grad_x, None, *(grad.to(ctx.dtype) for grad in found)


def attention_backward(
    job: Job, grad: Tensor, onto: Tensor, x: Tensor, chosen: Tensor, q: Tensor, kv: Tensor, context: Tensor,
    noted: Tensor, weight: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of a layer's input and of weight and bias of q, k and v. `onto` is what `chosen` gets besides."""
    dim, (k, v), rest = x.shape[1], kv.chunk(2, 1), (context, noted)
    if job.first is None:
        grad_qkv = x.new_empty(len(x), 3 * dim)
        of_q, of_k, of_v = grad_qkv.chunk(3, 1)
        attention.attend_backward(grad, q, k, v, *rest, (of_q, of_k, of_v), job.attention)
        return through(grad_qkv, weight, onto), weight_gradient(grad_qkv, x), grad_qkv.sum(0, dtype=torch.float32)
    grad_q, grad_kv = torch.empty_like(q), torch.empty_like(kv)
    of_k, of_v = grad_kv.chunk(2, 1)
    attention.attend_backward(grad, q, k, v, *rest, (grad_q, of_k, of_v), job.attention)
    grad_x = through(grad_kv, weight[dim:])
    grad_x.index_add_(0, job.first, through(grad_q, weight[:dim], onto))  # one row each: there is no order to be random
    of_weight = torch.cat([weight_gradient(grad_q, chosen), weight_gradient(grad_kv, x)])
    of_bias = torch.cat([part.sum(0, dtype=torch.float32) for part in (grad_q, grad_kv)])
    return grad_x, of_weight, of_bias


def narrowed(parameters: Parameters, dtype: torch.dtype) -> Narrow:
    """One launch, and one more for float32, whose other weights are as they are."""
    qkv = [parameters.q, parameters.k, parameters.v]
    biases = [parameters.q_bias, parameters.k_bias, parameters.v_bias]
    rest = [parameters.out, parameters.out_bias, parameters.wide, parameters.wide_bias, parameters.narrow,
            parameters.narrow_bias]  # fmt: skip
    weight, bias = (torch.cat(part) if part[0].dtype == dtype else None for part in (qkv, biases))
    if weight is not None and bias is not None:
        return Narrow(weight, bias, *rest)
    dim = len(parameters.q)
    weight, bias = parameters.q.new_empty(3 * dim, dim, dtype=dtype), parameters.q.new_empty(3 * dim, dtype=dtype)
    narrow = [torch.empty_like(part, dtype=dtype) for part in rest]
    torch._foreach_copy_([*weight.chunk(3), *bias.chunk(3), *narrow], [*qkv, *biases, *rest])  # pyright: ignore
    return Narrow(weight, bias, *narrow)


def through(grad: Tensor, weight: Tensor, onto: Tensor | None = None) -> Tensor:
    """The gradient before a linear layer; added to `onto`, in its memory, if that is given.

    Hopper's TF32 products want both factors with the summed index last.
    """
    if grad.dtype == torch.float32 and grad.is_cuda:
        weight = weight.t().contiguous().t()
    return grad @ weight if onto is None else onto.addmm_(grad, weight)


def weight_gradient(
    grad: Float[Tensor, "rows outputs"],
    x: Float[Tensor, "rows inputs"],
    weight: Float[Tensor, "outputs inputs"] | None = None,
) -> Float[Tensor, "outputs inputs"]:
    """In float32, summed and written: a gradient over a large batch neither overflows nor loses small parts.

    It is written where that of `weight` is wanted, if that is given.

    Hopper's TF32 products want both factors with the summed index last: cuBLAS multiplies 1.5 to 2.7 times as fast when
    they are, which pays for the copies of all but small ones.
    """
    if weight is not None and weight.dtype == torch.float32:
        out = slot_of(weight)
    else:
        out = grad.new_empty(grad.shape[1], x.shape[1], dtype=torch.float32)
    if grad.dtype != torch.float32 and grad.is_cuda:
        return torch.mm(grad.t(), x, out_dtype=torch.float32, out=out)
    if precision(grad.dtype) != "tf32" or not grad.is_cuda:
        return torch.mm(grad.float().t(), x.float(), out=out)
    x = rows.transposed(x).t() if grad.shape[1] > 3 * x.shape[1] else x
    return torch.mm(rows.transposed(grad), x, out=out)


def layer(
    x: Float[Tensor, "tokens dim"],
    layout: Layout,
    first_alone: bool,
    num_heads: int,
    eps: float,
    dropouts: tuple[float, float],
    parameters: tuple[Tensor, ...],
) -> Float[Tensor, "rows dim"]:
    """See `network.Block`; `dropouts` are of attention's weights and of what the feed-forward layers add.

    The products are in the dtype of x; `parameters` are in the order of the state_dict. `first_alone` gives the rows of
    first tokens, by a part of the work: keys and values are all that other tokens are asked for.
    """
    of_attention, of_hidden = Drop.drawn(dropouts, x)
    asked = Attention(layout.sentences, num_heads, of_attention, first_alone)
    job = Job(asked, layout.first if first_alone else None, of_hidden, eps)
    return Layer.apply(x, job, *parameters)  # type: ignore[return-value]
