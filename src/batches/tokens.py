"""Batches of tokenised sentences, padded or packed.

Token ids follow Hugging Face's BERT vocabularies: a sentence is [CLS], its word pieces, [SEP]; padding has id 0. The
loader counts real tokens; a batch does not have their number, since a model must not need it on the host.
"""

from typing import NamedTuple

from jaxtyping import Int32, Int64
from torch import Tensor

PAD = 0
UNLABELLED = -1  # label of a sentence with unknown label


class PaddedTokens(NamedTuple):
    """Sentences padded at their ends to one length."""

    ids: Int32[Tensor, "sentences length"]
    lengths: Int32[Tensor, " sentences"]  # real tokens of each sentence, at least 3
    labels: Int64[Tensor, " sentences"]

    @property
    def num_sentences(self) -> int:
        return len(self.labels)

    @property
    def processed_tokens(self) -> int:
        """Tokens of the batch, padding included."""
        return self.ids.numel()


class PackedTokens(NamedTuple):
    """Concatenated sentences: sentence s is ids[starts[s]:starts[s + 1]].

    From starts[-1] on there is padding (id 0, position 0), so that batches have few different sizes. All batches of a
    loader have the same `longest`, a compile-time constant of attention kernels.
    """

    ids: Int32[Tensor, " tokens"]
    positions: Int32[Tensor, " tokens"]  # of each token in its sentence, from 0
    starts: Int32[Tensor, " sentences_and_1"]
    labels: Int64[Tensor, " sentences"]
    longest: int  # most tokens of a sentence

    @property
    def num_sentences(self) -> int:
        return len(self.labels)

    @property
    def processed_tokens(self) -> int:
        """Tokens of the batch, padding included."""
        return self.ids.numel()


Tokens = PaddedTokens | PackedTokens


class Work(NamedTuple):
    """An average sentence: its tokens, and their square (tokens times tokens attended to)."""

    tokens: float
    squares: float
