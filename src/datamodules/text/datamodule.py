"""Base of all data sets of sentences, kept as tokens on the training device."""

from abc import abstractmethod

from src.datamodules.base import SplitDataModule
from src.datamodules.text.data import TokenData
from src.datamodules.text.loader import PADDINGS, ResidentTokens, TokenLoader
from src.errors import UserError

SHORTEST = 3  # [CLS], a word piece, [SEP]


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
        batch_size: int,
        seed: int,
        padding: str = "max_length",
        max_length: int = 512,
        test_batch_size: int | None = None,
        predict: str = "dev",
    ) -> None:
        super().__init__(name, batch_size, seed, predict, test_batch_size)
        self.padding, self.max_length = padding, max_length
        if padding not in PADDINGS:
            raise UserError(
                f"datamodule.padding={padding}: there is no such padding; choose from {', '.join(PADDINGS)}"
            )
        if max_length < SHORTEST:
            raise UserError(f"datamodule.max_length={max_length} leaves no word of a sentence; give {SHORTEST} or more")

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
        counts = self._training.loader.counts[steps] if self._training else []
        return sum(real for real, _ in counts), sum(processed for _, processed in counts)

    def resident(self, data: TokenData) -> ResidentTokens:
        """Returns the sentences on `target_device`."""
        return ResidentTokens(data, self.target_device)
