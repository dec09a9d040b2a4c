"""Tokenised sentences as flat arrays, on disk and in memory."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from src.system.reading import read_npz


class TokenData(NamedTuple):
    """Concatenated sentences: sentence s is ids[starts[s]:starts[s + 1]], [CLS] and [SEP] included."""

    ids: Int32[np.ndarray, " tokens"]
    starts: Int64[np.ndarray, " sentences_and_1"]
    labels: Int64[np.ndarray, " sentences"]  # src.batches.tokens.UNLABELLED if unknown

    @property
    def lengths(self) -> Int64[np.ndarray, " sentences"]:
        return np.diff(self.starts)

    def truncated(self, max_length: int) -> "TokenData":
        """Truncates sentences to `max_length` tokens as Hugging Face does: the last ones before [SEP] are dropped."""
        lengths = self.lengths
        if lengths.max(initial=0) <= max_length:
            return self
        position = np.arange(len(self.ids)) - self.starts[:-1].repeat(lengths)
        kept = (position < max_length - 1) | (position == lengths.repeat(lengths) - 1)
        starts = np.concatenate([[0], np.minimum(lengths, max_length).cumsum()])
        return TokenData(self.ids[kept], starts, self.labels)

    def save(self, path: Path) -> None:
        """Writes a .npz file."""
        np.savez(path, **self._asdict())

    @classmethod
    def load(cls, path: Path) -> "TokenData":
        """Returns the sentences of a file that `save` wrote."""
        return cls(**read_npz(path, cls._fields))
