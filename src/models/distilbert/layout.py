"""The rows of hidden states that belong to each sentence, for padded and packed batches."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Int32
from torch import Tensor

from src.batches.tokens import PaddedTokens, Tokens


class Sentences(NamedTuple):
    """The rows of each sentence, as arguments of the kernels.

    Padded sentence s is the `longest` rows from s * longest on, of which the first bounds[s] are tokens; packed ones
    are the rows from bounds[s] to bounds[s + 1].
    """

    bounds: Int32[Tensor, " _"]
    count: int
    longest: int  # no sentence has more rows
    padded: bool


@dataclass(frozen=True)
class Layout:
    """Maps rows of tokens to padded sentences and back.

    A packed batch's padding counts as one more sentence, of one token. Nothing synchronises with the device; properties
    are computed at first use.
    """

    batch: Tokens
    sentences: Sentences

    @classmethod
    def of(cls, batch: Tokens) -> "Layout":
        if isinstance(batch, PaddedTokens):
            sentences, length = batch.ids.shape
            return cls(batch, Sentences(batch.lengths, sentences, length, True))
        return cls(batch, Sentences(batch.starts, len(batch.starts) - 1, batch.longest, False))

    @cached_property
    def is_token(self) -> Bool[Tensor, "sentences length"]:
        bounds, _, longest, is_padded = self.sentences
        if is_padded:
            return token_mask(bounds, longest)
        return token_mask(torch.cat([bounds.diff(), torch.ones_like(bounds[:1])]), longest)

    @cached_property
    def first(self) -> Int[Tensor, " labels"]:
        """Returns the row of each sentence's first token."""
        bounds, count, longest, is_padded = self.sentences
        if is_padded:
            return torch.arange(0, count * longest, longest, device=bounds.device)
        return bounds[:-1]

    @cached_property
    def padded_row(self) -> Int[Tensor, " tokens"] | None:
        """Returns each token's row among padded sentences, flattened; None for a padded batch, where both are equal."""
        if isinstance(self.batch, PaddedTokens):
            return None
        token = torch.arange(len(self.batch.ids), dtype=torch.int32, device=self.batch.ids.device)
        sentence = torch.searchsorted(self.batch.starts[1:], token, right=True)
        return sentence * self.batch.longest + self.batch.positions

    def to_sentences(self, x: Float[Tensor, "tokens width"]) -> Float[Tensor, "sentences length width"]:
        """Pads rows of tokens to sentences, with zeros."""
        if self.padded_row is not None:
            x = x.new_zeros(self.is_token.numel(), x.shape[1]).index_copy(0, self.padded_row, x)
        return x.unflatten(0, self.is_token.shape)

    def to_tokens(self, x: Float[Tensor, "sentences length width"]) -> Float[Tensor, "tokens width"]:
        """Returns the rows of tokens of padded sentences."""
        x = x.flatten(0, 1)
        return x if self.padded_row is None else x.index_select(0, self.padded_row)


def token_mask(lengths: Int[Tensor, " sentences"], length: int) -> Bool[Tensor, "sentences length"]:
    """Returns True where a sentence's position holds a token."""
    return torch.arange(length, device=lengths.device) < lengths[:, None]
