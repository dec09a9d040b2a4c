"""Which rows of the hidden states are one sentence, for both forms of a batch."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Int32
from torch import Tensor

from src.batches.tokens import PackedTokens, PaddedTokens

Tokens = PaddedTokens | PackedTokens


class Sentences(NamedTuple):
    """Which rows are one sentence, as kernels are told.

    Padded sentence s is the `longest` rows from s * longest on, of which the first bounds[s] are tokens; packed ones
    are the rows from bounds[s] to bounds[s + 1].
    """

    bounds: Int32[Tensor, " _"]
    count: int
    longest: int  # no sentence has more rows
    padded: bool


@dataclass(frozen=True)
class Layout:
    """Tokens are rows; sentences are `[rows of sentences, length]` places, whose ends may be empty.

    A packed batch's own padding counts here as one more sentence, of one token. Nothing waits for the device, and
    nothing is computed before it is asked for.
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
            return places_of(bounds, longest)
        return places_of(torch.cat([bounds.diff(), torch.ones_like(bounds[:1])]), longest)

    @cached_property
    def first(self) -> Int[Tensor, " labels"]:
        """The row of each sentence's first token."""
        bounds, count, longest, is_padded = self.sentences
        if is_padded:
            return torch.arange(0, count * longest, longest, device=bounds.device)
        return bounds[:-1]

    @cached_property
    def place(self) -> Int[Tensor, " tokens"] | None:
        """Of each token among all places; None where each place is a token's row."""
        if isinstance(self.batch, PaddedTokens):
            return None
        token = torch.arange(len(self.batch.ids), dtype=torch.int32, device=self.batch.ids.device)
        sentence = torch.searchsorted(self.batch.starts[1:], token, right=True)
        return sentence * self.batch.longest + self.batch.positions

    def to_sentences(self, x: Float[Tensor, "tokens width"]) -> Float[Tensor, "sentences length width"]:
        if self.place is not None:
            x = x.new_zeros(self.is_token.numel(), x.shape[1]).index_copy(0, self.place, x)
        return x.unflatten(0, self.is_token.shape)

    def to_tokens(self, x: Float[Tensor, "sentences length width"]) -> Float[Tensor, "tokens width"]:
        x = x.flatten(0, 1)
        return x if self.place is None else x.index_select(0, self.place)


def places_of(lengths: Int[Tensor, " sentences"], length: int) -> Bool[Tensor, "sentences length"]:
    """Which of each sentence's places hold a token."""
    return torch.arange(length, device=lengths.device) < lengths[:, None]
