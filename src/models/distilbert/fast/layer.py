"""A whole transformer layer as one differentiable function.

Activations, also those between layers, have the dtype of the products; statistics, sums and gradients of parameters are
float32. The product that computes a gradient adds it to the residual's. The backward pass recomputes only dropout
masks, inputs of layer norms and attention weights, as loading them would take longer.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from src.gpu import weight_copies
from src.gpu.gradient_slots import slot_of
from src.gpu.products import input_gradient
from src.gpu.transpose import transposed
from src.gpu.triton_helpers import precision, working_dtype
from src.gpu.tuned_products import mm
from src.models.distilbert.fast import attention, rows
from src.models.distilbert.fast.attention import AttentionOptions
from src.models.distilbert.fast.rows import Drop
from src.models.distilbert.layout import Layout
from src.models.distilbert.network import EPS, Block, Hidden


class Parameters(NamedTuple):
    """A layer's parameters, in the order of its state_dict."""

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
class LayerOptions:
    """Options of a layer besides its parameters.

    first: rows of the sentences' first tokens if only those are computed, otherwise None.
    drop: dropout of the feed-forward layers' output.
    cast: the parameters in the products' dtype, where they are cast already.
    """

    attention: AttentionOptions
    first: Int[Tensor, " sentences"] | None
    drop: Drop
    eps: float
    cast: "CastWeights | None" = None


class CastWeights(NamedTuple):
    """Weights and biases in the products' dtype; those of q, k and v concatenated."""

    qkv: Tensor
    qkv_bias: Tensor
    out: Tensor
    out_bias: Tensor
    wide: Tensor
    wide_bias: Tensor
    narrow: Tensor
    narrow_bias: Tensor


class FastBlock(Block):
    """Computes and returns in autocast's dtype, or that of the weights."""

    def forward(self, x: Hidden, layout: Layout, first_only: bool = False) -> Float[Tensor, "rows dim"]:
        weight, num_heads = self.attention.q_lin.weight, self.attention.num_heads
        if not rows.takes("layer", weight, attention.supported(len(weight) // num_heads), num_heads=num_heads):
            return super().forward(x, layout, first_only)
        dropouts = (self.attention.dropout, self.dropout) if self.training else (0.0, 0.0)
        # Padded batches compute all tokens, for a fair comparison with the published code.
        skips = first_only and not layout.sentences.padded
        x = layer(x.to(working_dtype(weight)), layout, skips, num_heads, EPS, dropouts, tuple(self.parameters()))
        return x.index_select(0, layout.first) if first_only and not skips else x


class Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, options: LayerOptions, *tensors: Tensor) -> Tensor:
        parameters = Parameters(*tensors)
        weights = options.cast or cast_weights(parameters, x.dtype)
        dim = x.shape[1]
        if options.first is None:
            queries, qkv = x, mm(x, weights.qkv.t(), bias=weights.qkv_bias)
            q, kv = qkv[:, :dim], qkv[:, dim:]
        else:
            queries = x.index_select(0, options.first)
            q = mm(queries, weights.qkv[:dim].t(), bias=weights.qkv_bias[:dim])
            kv = mm(x, weights.qkv[dim:].t(), bias=weights.qkv_bias[dim:])
        numbers = attention.numbers_of(options.attention, kv)
        context, saved = attention.attend(q, kv[:, :dim], kv[:, dim:], options.attention, numbers)
        attended = mm(context, weights.out.t(), bias=weights.out_bias)
        norm, last, eps = (parameters.norm, parameters.norm_bias), (parameters.last, parameters.last_bias), options.eps
        middle, statistics = rows.add_norm(attended, queries, *norm, eps, Drop())
        wide = mm(middle, weights.wide.t(), bias=weights.wide_bias)
        active = rows.gelu(wide)
        added = mm(active, weights.narrow.t(), bias=weights.narrow_bias)
        out, last_statistics = rows.add_norm(added, middle, *last, eps, options.drop)
        ctx.options = options
        ctx.save_for_backward(
            x, queries, q, kv, context, saved, numbers, attended, middle, statistics, wide, active, added,
            last_statistics, *weights, parameters.norm, parameters.last, parameters.out, parameters.wide,
            parameters.narrow,
        )  # fmt: skip
        ctx.dtype = parameters.q.dtype
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x, queries, q, kv, context, saved, numbers, attended, middle, statistics, wide, active, added,
         last_statistics, *narrow, norm, last, own_out, own_wide, own_narrow) = ctx.saved_tensors  # fmt: skip
        options, weights, (count, dim), hidden = ctx.options, CastWeights(*narrow), queries.shape, wide.shape[1]
        partials = rows.new_partials(count, 6 * dim + hidden, norm)
        of_last, of_wide, of_norm = partials.split([3 * dim, hidden, 3 * dim], 1)

        grad_added, grad_residual = rows.add_norm_backward(
            grads[0].contiguous(), added, middle, last, last_statistics, options.drop, of_last
        )
        narrow_weight = weight_gradient(grad_added, active, own_narrow)
        grad_wide = rows.gelu_backward(input_gradient(grad_added, weights.narrow), wide, of_wide)
        wide_weight = weight_gradient(grad_wide, middle, own_wide)
        grad_middle = input_gradient(grad_wide, weights.wide, grad_residual)

        grad_attended, grad_residual = rows.add_norm_backward(
            grad_middle, attended, queries, norm, statistics, Drop(), of_norm
        )
        out_weight = weight_gradient(grad_attended, context, own_out)
        grad_context = input_gradient(grad_attended, weights.out)
        grad_x, qkv_weight, of_qkv = attention_backward(
            options, grad_context, grad_residual, x, queries, q, kv, context, saved, numbers, weights.qkv
        )
        last_weight, last_bias, narrow_bias, wide_bias, norm_weight, norm_bias, out_bias, *qkv_bias = rows.sum_partials(
            partials, of_qkv
        ).split([dim, dim, dim, hidden, *[dim] * 6])
        gradients = Parameters(
            qkv_weight[:dim], qkv_bias[0], qkv_weight[dim : 2 * dim], qkv_bias[1],
            qkv_weight[2 * dim :], qkv_bias[2], out_weight, out_bias, norm_weight, norm_bias,
            wide_weight, wide_bias, narrow_weight, narrow_bias, last_weight, last_bias,
        )  # fmt: skip
        return grad_x, None, *(grad.to(ctx.dtype) for grad in gradients)


def attention_backward(
    options: LayerOptions, grad: Tensor, grad_residual: Tensor, x: Tensor, queries: Tensor, q: Tensor, kv: Tensor,
    context: Tensor, saved: Tensor, numbers: Tensor | None, weight: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns the gradients of a layer's input and of the weight of q, k and v, and partial sums of that of their bias.

    `grad_residual` is the other part of the gradient of `queries`.
    """
    dim, (k, v), rest = x.shape[1], kv.chunk(2, 1), (context, saved)
    if options.first is None:
        grad_qkv = x.new_empty(len(x), 3 * dim)
        of_q, of_k, of_v = grad_qkv.chunk(3, 1)
        of_bias = attention.attend_backward(grad, q, k, v, *rest, (of_q, of_k, of_v), options.attention, numbers)
        return input_gradient(grad_qkv, weight, grad_residual), weight_gradient(grad_qkv, x), of_bias
    grad_q, grad_kv = torch.empty_like(q), torch.empty_like(kv)
    of_k, of_v = grad_kv.chunk(2, 1)
    of_bias = attention.attend_backward(grad, q, k, v, *rest, (grad_q, of_k, of_v), options.attention, numbers)
    grad_x = input_gradient(grad_kv, weight[dim:])
    # The rows are distinct, so the sum is deterministic.
    grad_x.index_add_(0, options.first, input_gradient(grad_q, weight[:dim], grad_residual))
    of_weight = torch.cat([weight_gradient(grad_q, queries), weight_gradient(grad_kv, x)])
    return grad_x, of_weight, of_bias


def cast_weights(parameters: Parameters, dtype: torch.dtype) -> CastWeights:
    """Returns the weights in `dtype`, kept copies or cast in one launch; float32 ones are only concatenated."""
    qkv = [parameters.q, parameters.k, parameters.v]
    biases = [parameters.q_bias, parameters.k_bias, parameters.v_bias]
    if parameters.q.dtype == dtype:
        rest = parameters.out, parameters.out_bias, parameters.wide, parameters.wide_bias
        return CastWeights(torch.cat(qkv), torch.cat(biases), *rest, parameters.narrow, parameters.narrow_bias)

    def make() -> tuple[CastWeights, list[Tensor]]:
        cast = empty_casts(parameters, dtype)
        return cast, targets_of(cast)

    return weight_copies.cast(sources_of(parameters), dtype, make)


def empty_casts(parameters: Parameters, dtype: torch.dtype) -> CastWeights:
    """Returns memory for the weights in `dtype`."""
    dim = len(parameters.q)
    weight, bias = parameters.q.new_empty(3 * dim, dim, dtype=dtype), parameters.q.new_empty(3 * dim, dtype=dtype)
    rest = parameters.out, parameters.out_bias, parameters.wide, parameters.wide_bias
    narrow = parameters.narrow, parameters.narrow_bias
    return CastWeights(weight, bias, *(torch.empty_like(part, dtype=dtype) for part in (*rest, *narrow)))


def sources_of(parameters: Parameters) -> list[Tensor]:
    """Returns the weights and biases that are cast."""
    of = parameters
    attention = of.q, of.k, of.v, of.q_bias, of.k_bias, of.v_bias, of.out, of.out_bias
    return [*attention, of.wide, of.wide_bias, of.narrow, of.narrow_bias]


def targets_of(cast: CastWeights) -> list[Tensor]:
    """Returns the memory of these casts, in the order of `sources_of`."""
    return [*cast.qkv.chunk(3), *cast.qkv_bias.chunk(3), *cast[2:]]


def weight_gradient(
    grad: Float[Tensor, "rows outputs"],
    x: Float[Tensor, "rows inputs"],
    weight: Float[Tensor, "outputs inputs"] | None = None,
) -> Float[Tensor, "outputs inputs"]:
    """Returns a linear layer's weight gradient in float32, in the gradient slot of `weight` if given.

    In float32 a large batch's gradient neither overflows nor loses small terms. Hopper's TF32 products need the summed
    index last in both factors: cuBLAS then multiplies 1.5 to 2.7 times as fast, which pays for the copies of all but
    small factors.
    """
    if weight is not None and weight.dtype == torch.float32:
        out = slot_of(weight)
    else:
        out = grad.new_empty(grad.shape[1], x.shape[1], dtype=torch.float32)
    if grad.dtype != torch.float32 and grad.is_cuda:
        return mm(grad.t(), x, out=out)
    if precision(grad.dtype) != "tf32" or not grad.is_cuda:
        return torch.mm(grad.float().t(), x.float(), out=out)
    x = transposed(x).t() if grad.shape[1] > 3 * x.shape[1] else x
    return torch.mm(transposed(grad), x, out=out)


def layer(
    x: Float[Tensor, "tokens dim"],
    layout: Layout,
    first_only: bool,
    num_heads: int,
    eps: float,
    dropouts: tuple[float, float],
    parameters: tuple[Tensor, ...],
    cast: CastWeights | None = None,
) -> Float[Tensor, "rows dim"]:
    """See `network.Block`; `dropouts` are those of attention weights and of the feed-forward layers' output.

    The products are in the dtype of x; `parameters` are in the order of the state_dict, and `cast` are they in that
    dtype, if they are cast already. With `first_only` it returns the rows of first tokens and computes only keys and
    values of the others.
    """
    of_attention, of_hidden = Drop.seeded(dropouts, x)
    attention_options = AttentionOptions(layout.sentences, num_heads, of_attention, first_only)
    options = LayerOptions(attention_options, layout.first if first_only else None, of_hidden, eps, cast)
    return Layer.apply(x, options, *parameters)  # type: ignore[return-value]
