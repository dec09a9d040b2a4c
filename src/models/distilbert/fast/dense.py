"""Attention over padded sentences with all scores in memory, for float32 without TF32.

The scores pass through memory 13 times. Where products are slow that is a small part of the time, and cuBLAS's products
are several times as fast as a Triton kernel's. `heads` in a shape counts the heads of all sentences.
"""

from math import e as euler
from math import log2

import torch
from jaxtyping import Float
from torch import Tensor

from src.gpu.triton_helpers import launch, power_of_2
from src.models.distilbert.fast import dense_triton as kernels
from src.models.distilbert.fast.rows import Drop
from src.models.distilbert.layout import Sentences

SOFTMAX = {"BLOCK": 4, "num_warps": 4}


def attend(
    q: Float[Tensor, "tokens dim"],
    k: Float[Tensor, "tokens dim"],
    v: Float[Tensor, "tokens dim"],
    sentences: Sentences,
    heads: int,
    drop: Drop,
) -> tuple[Float[Tensor, "tokens dim"], Float[Tensor, "heads length length"]]:
    """Returns softmax(q k^T / sqrt(head)) v within each sentence, heads concatenated, and the softmax."""
    weights = torch.bmm(by_head(q, sentences, heads), by_head(k, sentences, heads).transpose(1, 2))
    dropped = torch.empty_like(weights) if drop.p else weights
    launch(
        kernels.softmax, grid(sentences, heads), weights, dropped, sentences.bounds, drop.seed,
        log2(euler) * scale_of(q, heads), **constants(sentences, heads, drop),
    )  # fmt: skip
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    store(torch.bmm(dropped, by_head(v, sentences, heads)), out, sentences, heads)
    return out, weights


def attend_backward(
    grad: Float[Tensor, "tokens dim"],
    q: Float[Tensor, "tokens dim"],
    k: Float[Tensor, "tokens dim"],
    v: Float[Tensor, "tokens dim"],
    weights: Float[Tensor, "heads length length"],
    grads: tuple[Float[Tensor, "tokens dim"], Float[Tensor, "tokens dim"], Float[Tensor, "tokens dim"]],
    sentences: Sentences,
    heads: int,
    drop: Drop,
) -> None:
    """Writes the gradients of q, k and v to `grads`."""
    above = by_head(grad, sentences, heads)
    of_scores = torch.bmm(above, by_head(v, sentences, heads).transpose(1, 2))
    dropped = torch.empty_like(weights) if drop.p else weights
    launch(
        kernels.softmax_backward, grid(sentences, heads), weights, of_scores, dropped, sentences.bounds, drop.seed,
        scale_of(q, heads), **constants(sentences, heads, drop),
    )  # fmt: skip
    of_q, of_k, of_v = grads
    store(torch.bmm(of_scores, by_head(k, sentences, heads)), of_q, sentences, heads)
    store(torch.bmm(of_scores.transpose(1, 2), by_head(q, sentences, heads)), of_k, sentences, heads)
    store(torch.bmm(dropped.transpose(1, 2), above), of_v, sentences, heads)


def by_head(x: Float[Tensor, "tokens dim"], sentences: Sentences, heads: int) -> Float[Tensor, "heads length head"]:
    """Returns x by sentence and head."""
    return x.reshape(sentences.count, sentences.longest, heads, -1).transpose(1, 2).flatten(0, 1)


def store(
    values: Float[Tensor, "heads length head"],
    out: Float[Tensor, "tokens dim"],
    sentences: Sentences,
    heads: int,
) -> None:
    """Copies rows of heads to rows of tokens; `out` may be strided."""
    rows = out.unflatten(0, (sentences.count, sentences.longest)).unflatten(2, (heads, -1))
    rows.copy_(values.unflatten(0, (sentences.count, heads)).transpose(1, 2))


def scale_of(q: Tensor, heads: int) -> float:
    """Returns the factor of the scores, 1 / sqrt(head)."""
    return (q.shape[1] // heads) ** -0.5


def grid(sentences: Sentences, heads: int) -> tuple[int, int, int]:
    return -(-sentences.longest // SOFTMAX["BLOCK"]), heads, sentences.count


def constants(sentences: Sentences, heads: int, drop: Drop) -> dict[str, int | float]:
    longest = sentences.longest
    return {"HEADS": heads, "LONGEST": longest, "WIDTH": power_of_2(longest), **drop.constants, **SOFTMAX}
