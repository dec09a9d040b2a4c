"""Sentences of random word pieces: they measure throughput without files, vocabulary and downloads.

A positive sentence draws three quarters of its pieces from the upper half of the vocabulary, a negative one from the
lower half, so that a network can learn them.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np

from src.config.ranges import Count, Range, Seed
from src.datamodules.text.data import TokenData
from src.datamodules.text.datamodule import SHORTEST, Length, TokenDataModule
from src.errors import UserError
from src.system.read_ahead import ReadAhead

CLS, SEP, FIRST_WORD = 101, 102, 999  # ids of BERT's uncased vocabulary; words start at FIRST_WORD
MEAN, LONGEST = 13.3, 66  # tokens of SST-2's training sentences
OWN_HALF = 0.75


class SyntheticTokensDataModule(TokenDataModule):
    """Random sentences whose lengths are distributed like SST-2's, or are all equal.

    Args:
        sentences: number of sentences of each split, `train` and `dev`.
        length: tokens of every sentence; random with SST-2's mean if not given.
        vocabulary_size: number of word pieces.
        data_seed: of the sentences.
        options: as for TokenDataModule.
    """

    def __init__(
        self,
        *,
        sentences: Mapping[str, Count],
        length: Length | None = None,
        vocabulary_size: Annotated[int, Range(FIRST_WORD + 2)] = 30522,
        data_seed: Seed = 0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.sentences, self.length = dict(sentences), length
        self.vocabulary_size, self.data_seed = vocabulary_size, data_seed
        self._ahead: ReadAhead[dict[str, TokenData]] | None = None
        if set(self.sentences) != {"train", "dev"}:
            raise UserError(f"datamodule.sentences={self.sentences}: give a number for each of train and dev")
        if length is not None and length > self.max_length:
            raise UserError(f"datamodule.length={length} exceeds datamodule.max_length={self.max_length}; lower it")

    def words(self) -> tuple[int, str]:
        return self.vocabulary_size, "datamodule.vocabulary_size"

    def read_ahead(self) -> None:
        self._ahead = ReadAhead(self._drawn)

    def setup(self, stage: str) -> None:
        if not self.splits:
            drawn = (self._ahead and self._ahead.value()) or self._drawn()
            self.splits = {split: self.resident(data) for split, data in drawn.items()}

    def _drawn(self) -> dict[str, TokenData]:
        """Returns the sentences of each split."""
        splits = sorted(self.sentences)
        randoms = [np.random.default_rng((self.data_seed, number)) for number in range(len(splits))]
        drawn = zip(splits, randoms, strict=True)
        return {split: self._generate(self.sentences[split], random) for split, random in drawn}

    def _generate(self, count: int, random: np.random.Generator) -> TokenData:
        longest = min(LONGEST, self.max_length)
        lengths = SHORTEST + random.exponential(MEAN - SHORTEST + 0.5, count).astype(np.int64)
        lengths = np.full(count, self.length) if self.length else lengths.clip(max=longest)
        starts = np.concatenate([[0], lengths.cumsum()])
        labels = random.integers(2, size=count)
        in_own_half = random.random(starts[-1]) < OWN_HALF
        half = (self.vocabulary_size - FIRST_WORD) // 2
        upper = labels.repeat(lengths) == in_own_half
        ids = FIRST_WORD + random.integers(half, size=starts[-1]) + half * upper
        ids[starts[:-1]], ids[starts[1:] - 1] = CLS, SEP
        return TokenData(ids.astype(np.int32), starts, labels)
