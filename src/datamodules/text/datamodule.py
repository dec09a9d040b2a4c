"""What all data sets of sentences share: sentences as tokens on the training device, and batches of them."""

from abc import abstractmethod

from src.datamodules.base import DataModule, Metered
from src.datamodules.text.data import TokenData
from src.datamodules.text.loader import PADDINGS, ResidentTokens, TokenLoader
from src.errors import UserError

SHORTEST = 3  # [CLS], a word piece, [SEP]


class TokenDataModule(DataModule):
    """Splits of sentences, `train` and `dev` among them; a subclass fills `_splits` in `setup`.

    Args:
        name: as records call the data set.
        batch_size: sentences of each rank and step.
        seed: of the order of the training sentences.
        padding: how the sentences of a batch become one length; see TokenLoader.
        max_length: that no sentence is longer than.
        test_batch_size: sentences of each rank in a batch of an evaluation; as in training if not given.
        predict: the split that `predict_dataloader` goes over.
    """

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
        super().__init__(name)
        self.batch_size, self.seed, self.predict = batch_size, seed, predict
        self.test_batch_size = batch_size if test_batch_size is None else test_batch_size
        self.padding, self.max_length = padding, max_length
        if padding not in PADDINGS:
            raise UserError(
                f"datamodule.padding={padding}: there is no such padding; choose from {', '.join(PADDINGS)}"
            )
        if max_length < SHORTEST:
            raise UserError(f"datamodule.max_length={max_length} leaves no word of a sentence; give {SHORTEST} or more")
        if self.test_batch_size < 1:
            raise UserError(f"datamodule.test_batch_size={test_batch_size} tests nothing; give 1 or more")
        self._splits: dict[str, ResidentTokens] = {}

    @abstractmethod
    def words(self) -> tuple[int, str]:
        """How many word pieces there are, which tokens' ids are below, and what says so."""

    def loader(self, sentences: str | TokenData, *, train: bool = False, batch_size: int | None = None) -> TokenLoader:
        """Batches of a split, or of other sentences, for this rank, on its device; in their order unless `train`.

        Raises UserError for a split that is not there.
        """
        if isinstance(sentences, str) and sentences not in self._splits:
            known = ", ".join(self._splits)
            raise UserError(f"datamodule.predict={sentences}: there is no such split; choose from {known}")
        rank, world_size = self.rank_and_world
        return TokenLoader(
            self._splits[sentences] if isinstance(sentences, str) else self.resident(sentences),
            batch_size or self.test_batch_size,
            padding=self.padding,
            max_length=self.max_length,
            train=train,
            seed=self.seed,
            rank=rank,
            world_size=world_size,
        )

    def train_dataloader(self) -> Metered:
        return self.metered(self.loader("train", train=True, batch_size=self.batch_size))

    def val_dataloader(self) -> TokenLoader:
        return self.loader("dev")

    def test_dataloader(self) -> TokenLoader:
        return self.loader("dev")

    def predict_dataloader(self) -> TokenLoader:
        return self.loader(self.predict)

    def tokens(self, steps: slice) -> tuple[int, int]:
        """Real and processed tokens of this rank's training batches of those numbers, counted from the run's first."""
        counts = self._training.loader.counts[steps] if self._training else []
        return sum(real for real, _ in counts), sum(processed for _, processed in counts)

    def resident(self, data: TokenData) -> ResidentTokens:
        """On the training device, where there is a trainer."""
        return ResidentTokens(data, self.target_device)
