"""Base of data sets of written sentences, which a vocabulary makes tokens of."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Int64

from src.datamodules.text.data import TokenData
from src.datamodules.text.datamodule import TokenDataModule
from src.datamodules.text.vocabulary import Vocabulary
from src.measure.reading import Reading

LABEL_NAMES = ("negative", "positive")  # SST-2's 0 and 1


@dataclass(frozen=True)
class Sentences:
    """Text to be judged, where it stands (each sentence's line in the file), and what is known of it.

    Sentences for a prediction may be "": they get no label.
    """

    text: list[str]
    where: str
    lines: Sequence[int]
    labels: Int64[np.ndarray, " sentences"]
    reading: Reading | None = None  # what became of the file, of one's own


class TextDataModule(TokenDataModule):
    """Sentences as text; a subclass implements `read` and fills `splits` in `setup`.

    Args:
        vocabulary: a folder with a vocab.txt, such a file, or a name on the Hugging Face hub.
        options: as for TokenDataModule.
    """

    text_column, label_column = "text", "label"  # of a table that a prediction reads
    delimiter: str | None = None  # of such a table, where it is none of the usual ones
    encoding: str | None = None  # of such a table, where it is not UTF-8

    def __init__(self, *, vocabulary: str | None, **options: Any) -> None:
        super().__init__(**options)
        self.source_of_words = vocabulary
        self.expected_names: Sequence[str] | None = None  # labels of a trained network

    @property
    def label_names(self) -> Sequence[str]:
        """Names of the labels, by number."""
        return LABEL_NAMES if self.expected_names is None else self.expected_names

    @cached_property
    def vocabulary(self) -> Vocabulary:
        assert self.source_of_words is not None
        return Vocabulary(self.source_of_words)

    def words(self) -> tuple[int, str]:
        return self.vocabulary.size, str(self.vocabulary.path)

    def word_pieces(self) -> tuple[str, ...]:
        return self.vocabulary.pieces

    @abstractmethod
    def read(self, split: str) -> Sentences:
        """Returns the sentences of a split as they are written. Raises UserError where there is no such split."""

    def encode(
        self,
        sentences: Sequence[str],
        where: str,
        lines: Sequence[int] | int = 1,
        labels: Int64[np.ndarray, " sentences"] | None = None,
    ) -> TokenData:
        """Returns the tokens of any sentences (see Vocabulary.encode); the files of the data set are not needed."""
        return self.vocabulary.encode(sentences, where, lines, labels).truncated(self.max_length)
