"""Which rows of the hidden states are one sentence, for both forms of a batch."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from src.tokens import PackedTokens, PaddedTokens

Tokens = PaddedTokens | PackedTokens


class Layout(NamedTuple):
    """Tokens are rows; sentences are `[rows of sentences, length]` places, whose ends may be empty.

    A packed batch's own padding counts here as one more sentence, of one token. Nothing waits for the device.
    """

    is_token: Bool[Tensor, "sentences length"]
    first: Int[Tensor, " labels"]  # the row of each sentence's first token
    place: Int[Tensor, " tokens"] | None  # of each token among all places; None where each place is a token's row

    @classmethod
    def of(cls, batch: Tokens) -> "Layout":
        if isinstance(batch, PaddedTokens):
            sentences, length = batch.ids.shape
            first = torch.arange(0, sentences * length, length, device=batch.ids.device)
            return cls(places_of(batch.lengths, length), first, None)
        token = torch.arange(len(batch.ids), dtype=torch.int32, device=batch.ids.device)
        sentence = torch.searchsorted(batch.starts[1:], token, right=True)
        lengths = torch.cat([batch.starts.diff(), torch.ones_like(batch.starts[:1])])
        return cls(places_of(lengths, batch.longest), batch.starts[:-1], sentence * batch.longest + batch.positions)

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
