"""The embedding, layer norm and dropout as one differentiable function."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from src.batches.tokens import PAD, PaddedTokens, Tokens
from src.gpu import deferred_rows
from src.gpu.gradient_slots import slot_of
from src.gpu.partial_sums import sum_partials
from src.gpu.triton_helpers import working_dtype
from src.models.distilbert.fast import rows
from src.models.distilbert.fast.rows import Drop, TokenIds
from src.models.distilbert.network import EPS, Embeddings, Hidden


class FastEmbeddings(Embeddings):
    """Embeds in autocast's dtype, or that of the weights. Steps of words' vectors may be deferred: `deferred_rows`."""

    def forward(self, batch: Tokens) -> Hidden:
        words = self.word_embeddings.weight
        if not rows.takes("embedding", words):
            return super().forward(batch)
        parameters = words, self.position_embeddings.weight, self.LayerNorm.weight, self.LayerNorm.bias
        dropout = self.dropout if self.training else 0.0
        return embed(batch, *parameters, EPS, dropout, working_dtype(words), behind=deferred_rows.of(words))

    def train(self, mode: bool = True) -> "FastEmbeddings":
        deferred_rows.settle()  # a captured evaluation reads the vectors' memory
        return super().train(mode)


class Embed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, words: TokenIds, drop: Drop, eps: float, dtype: torch.dtype, padding: int,
        behind: deferred_rows.Rows | None, *parameters: Tensor,
    ) -> Tensor:  # fmt: skip
        if behind is not None:
            ctx.in_order = rows.sorted_ids(words.ids)
            behind.catch_up(ctx.in_order[0])
            parameters = behind.weights, *parameters[1:]  # the same memory
        out, statistics = rows.embed(words, *parameters, eps, drop, dtype)  # type: ignore[arg-type]
        ctx.save_for_backward(statistics, *parameters[:-1])
        ctx.words, ctx.drop, ctx.padding, ctx.behind = words, drop, padding, behind
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        statistics, word_vectors, position_vectors, weight = ctx.saved_tensors
        words, dim = ctx.words, len(weight)
        partials = rows.new_partials(len(statistics), 2 * dim, weight)
        grad = rows.embed_backward(
            grads[0].contiguous(), words, word_vectors, position_vectors, weight, statistics, ctx.drop, partials
        )
        of_weight, of_bias = sum_partials(partials).view(2, dim)
        of_words = None
        if ctx.behind is not None:
            ctx.behind.give(grad, *ctx.in_order, ctx.padding, rows.sum_shape(len(words.ids)))
        else:
            of_words = rows.sum_by_id(grad, words.ids, slot_of(word_vectors), ctx.padding)
        if words.positions is None:
            of_positions = torch.zeros_like(position_vectors)
            torch.sum(grad.view(-1, words.length, dim), 0, out=of_positions[: words.length])
        else:
            of_positions = rows.sum_by_id(grad, words.positions, slot_of(position_vectors), -1)
        of_norm = of_weight.to(weight.dtype), of_bias.to(weight.dtype)
        return None, None, None, None, None, None, of_words, of_positions, *of_norm


def token_ids(batch: Tokens) -> TokenIds:
    """Returns the ids and positions of a batch's tokens."""
    if isinstance(batch, PaddedTokens):
        return TokenIds(batch.ids.flatten(), None, batch.ids.shape[1])
    return TokenIds(batch.ids, batch.positions, 0)


def embed(
    batch: Tokens,
    word_vectors: Float[Tensor, "vocabulary dim"],
    position_vectors: Float[Tensor, "positions dim"],
    weight: Float[Tensor, " dim"],
    bias: Float[Tensor, " dim"],
    eps: float,
    dropout: float,
    dtype: torch.dtype,
    padding: int = PAD,
    behind: deferred_rows.Rows | None = None,
) -> Float[Tensor, "tokens dim"]:
    """Returns what `network.Embeddings` does, in `dtype`; the id `padding` gets no gradient, -1 for none.

    Args:
        behind: the word vectors' rows, if they may be behind: then their gradient goes there.
    """
    (drop,) = Drop.seeded([dropout], word_vectors)
    parameters = (word_vectors, position_vectors, weight, bias)
    return Embed.apply(token_ids(batch), drop, eps, dtype, padding, behind, *parameters)  # type: ignore[return-value]
