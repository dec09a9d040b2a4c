"""Base of all data sets of sentences, kept as tokens on the training device."""

from abc import abstractmethod
from typing import Annotated, Any

from src.config.ranges import Count, Range, Seed
from src.datamodules.base import SplitDataModule
from src.datamodules.text.data import TokenData
from src.datamodules.text.loader import Padding, ResidentTokens, TokenLoader

SHORTEST = 3  # [CLS], a word piece, [SEP]
Length = Annotated[int, Range(SHORTEST)]


class TokenDataModule(SplitDataModule):
    """Splits of sentences, with at least `train` and `dev`; a subclass fills `splits` in `setup`.

    Args:
        name, batch_size, seed, test_batch_size, predict: as for SplitDataModule.
        padding: how the sentences of a batch get one length; see TokenLoader.
        max_length: most tokens of a sentence.
    """

    val_split = test_split = "dev"
    splits: dict[str, ResidentTokens]

    def __init__(
        self,
        name: str,
        batch_size: Count,
        seed: Seed,
        padding: Padding = "max_length",
        max_length: Length = 512,
        test_batch_size: Count | None = None,
        predict: str = "dev",
    ) -> None:
        super().__init__(name, batch_size, seed, predict, test_batch_size)
        self.padding, self.max_length = padding, max_length

    @abstractmethod
    def words(self) -> tuple[int, str]:
        """Returns the size of the vocabulary, which bounds token ids, and the file or key that defines it."""

    def word_pieces(self) -> tuple[str, ...]:
        """Returns the vocabulary's word pieces by id; none where tokens have no text."""
        return ()

    def loader(self, split: str | TokenData, /, *, train: bool = False, batch_size: int | None = None) -> TokenLoader:
        """Batches of a split, or of other sentences, for this rank, on its device; in their order unless `train`.

        Raises UserError for an unknown split.
        """
        if isinstance(split, str):
            self.check_split(split)
        return TokenLoader(
            self.splits[split] if isinstance(split, str) else self.resident(split),
            batch_size or self.test_batch_size,
            padding=self.padding,
            max_length=self.max_length,
            train=train,
            **self.order,
        )

    def tokens(self, steps: slice) -> tuple[int, int]:
        loader: Any = self._training.loader if self._training else None
        counts = loader.counts[self._training.batches_of(steps)] if self._training else []
        return sum(real for real, _ in counts), sum(processed for _, processed in counts)

    def resident(self, data: TokenData) -> ResidentTokens:
        """Returns the sentences on `target_device`."""
        return ResidentTokens(data, self.target_device)
