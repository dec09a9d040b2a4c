"""Sentences as tokens: what data and models of text both know. A batch is padded or packed.

Token ids follow Hugging Face's BERT vocabularies: a sentence is [CLS], its word pieces, [SEP]; padding has id 0. No
batch says how many of its tokens are real: a model must not need it on the host, and the loader counts them.
"""

from typing import NamedTuple

from jaxtyping import Int32, Int64
from torch import Tensor

PAD = 0
UNLABELLED = -1  # the label of a sentence whose label nobody knows


class PaddedTokens(NamedTuple):
    """Sentences of one length each, filled up with padding at their ends."""

    ids: Int32[Tensor, "sentences length"]
    lengths: Int32[Tensor, " sentences"]  # tokens of each sentence that are no padding, at least 3
    labels: Int64[Tensor, " sentences"]

    @property
    def num_sentences(self) -> int:
        return len(self.labels)

    @property
    def processed_tokens(self) -> int:
        """Tokens of the batch, padding included."""
        return self.ids.numel()


class PackedTokens(NamedTuple):
    """Sentences one behind the other: sentence s is ids[starts[s]:starts[s + 1]].

    Behind starts[-1] stands padding (id 0, position 0) that belongs to no sentence, so that the number of tokens is one
    of few. All batches of a loader have the same `longest`, a constant of attention kernels.
    """

    ids: Int32[Tensor, " tokens"]
    positions: Int32[Tensor, " tokens"]  # of each token in its sentence, from 0
    starts: Int32[Tensor, " sentences_and_1"]
    labels: Int64[Tensor, " sentences"]
    longest: int  # no sentence has more tokens

    @property
    def num_sentences(self) -> int:
        return len(self.labels)

    @property
    def processed_tokens(self) -> int:
        """Tokens of the batch, padding included."""
        return self.ids.numel()
