"""SST-2: sentences of film reviews, negative (0) or positive (1), as batches of tokens (`src.tokens`)."""

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64

from src.datamodules.base import DataModule, Metered
from src.datamodules.download import sha256_of
from src.datamodules.prepared import opened, prepare
from src.datamodules.sst2_files import FIRST_LINE, LABELLED, glue_files, own_files, read_tsv
from src.datamodules.token_data import TokenData
from src.datamodules.token_loader import PADDINGS, ResidentTokens, TokenLoader
from src.datamodules.token_vocabulary import Vocabulary
from src.errors import UserError

LAYOUT = 1
SHORTEST = 3  # [CLS], a word piece, [SEP]


class SST2DataModule(DataModule):
    """Sentences with one evaluation set, the split `dev`, as published; GLUE keeps the labels of `test` to itself.

    Args:
        name: as records call the data set.
        data_dir: where the files that were fetched and the tokens are kept.
        batch_size: sentences of each rank and step.
        seed: of the order of the training sentences.
        vocabulary: a folder with a vocab.txt, such a file, or a name on the Hugging Face hub.
        raw: a folder with train.tsv, dev.tsv and perhaps test.tsv; GLUE's own are fetched if not given.
        padding: how the sentences of a batch become one length; see TokenLoader.
        max_length: longer sentences are truncated.
        test_batch_size: sentences of each rank in a batch of an evaluation; as in training if not given.
        predict: the split that `predict_dataloader` goes over.
    """

    def __init__(
        self,
        name: str,
        data_dir: str,
        batch_size: int,
        seed: int,
        vocabulary: str = "distilbert-base-uncased",
        raw: str | None = None,
        padding: str = "max_length",
        max_length: int = 512,
        test_batch_size: int | None = None,
        predict: str = "dev",
    ) -> None:
        super().__init__(name)
        self.data_dir, self.raw = Path(data_dir), None if raw is None else Path(raw)
        self.batch_size, self.seed, self.predict = batch_size, seed, predict
        self.test_batch_size = batch_size if test_batch_size is None else test_batch_size
        self.source, self.padding, self.max_length = vocabulary, padding, max_length
        if padding not in PADDINGS:
            raise UserError(
                f"datamodule.padding={padding}: there is no such padding; choose from {', '.join(PADDINGS)}"
            )
        if max_length < SHORTEST:
            raise UserError(f"datamodule.max_length={max_length} leaves no word of a sentence; give {SHORTEST} or more")
        if self.test_batch_size < 1:
            raise UserError(f"datamodule.test_batch_size={test_batch_size} tests nothing; give 1 or more")
        self.device: torch.device | None = None  # where the sentences go without a trainer
        self._splits: dict[str, ResidentTokens] = {}

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.source)

    def prepare_data(self) -> None:
        self._prepared()

    def setup(self, stage: str) -> None:
        if self._splits:
            return
        folder = self._prepared()
        for split in opened(folder)["sentences"]:
            self._splits[split] = self._resident(TokenData.load(folder / f"{split}.npz").truncated(self.max_length))

    def files(self) -> dict[str, Path]:
        """The files of sentences by split, fetched where they are not there. Raises UserError where one is missing."""
        return glue_files(self.data_dir) if self.raw is None else own_files(self.raw)

    def encode(
        self,
        sentences: Sequence[str],
        where: str,
        first_line: int = 1,
        labels: Int64[np.ndarray, " sentences"] | None = None,
    ) -> TokenData:
        """The tokens of sentences that need be no part of the data set; see Vocabulary.encode. Needs no files."""
        return self.vocabulary.encode(sentences, where, first_line, labels).truncated(self.max_length)

    def loader(self, sentences: str | TokenData, *, train: bool = False, batch_size: int | None = None) -> TokenLoader:
        """Batches of a split, or of what `encode` gave, for this rank, on its device; in their order unless `train`.

        Raises UserError for a split that is not there.
        """
        if isinstance(sentences, str) and sentences not in self._splits:
            known = ", ".join(self._splits)
            raise UserError(f"datamodule.predict={sentences}: there is no such split; choose from {known}")
        return TokenLoader(
            self._splits[sentences] if isinstance(sentences, str) else self._resident(sentences),
            batch_size or self.test_batch_size,
            padding=self.padding,
            max_length=self.max_length,
            train=train,
            seed=self.seed,
            rank=self.trainer.global_rank if self.trainer else 0,
            world_size=self.trainer.world_size if self.trainer else 1,
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

    def _resident(self, data: TokenData) -> ResidentTokens:
        device = self.trainer.strategy.root_device if self.trainer else self.device or torch.device("cpu")
        return ResidentTokens(data, device)

    def _prepared(self) -> Path:
        """The folder of tokens, made where it is not there: one for each vocabulary and each set of files."""
        files = self.files()
        origin = {
            "layout": LAYOUT,
            "vocabulary": self.vocabulary.sha256,
            "files": {path.name: sha256_of(path) for path in files.values()},
        }
        digest = hashlib.sha256(json.dumps(origin).encode()).hexdigest()[:12]
        return prepare(self.data_dir / f"tokens_{digest}", origin, lambda part: self._tokenise(files, part))

    def _tokenise(self, files: dict[str, Path], folder: Path) -> dict[str, Any]:
        """Writes one file a split; returns what is worth noting of them."""
        made = {}
        for split, path in files.items():
            sentences, labels = read_tsv(path, labelled=split in LABELLED)
            made[split] = self.vocabulary.encode(sentences, str(path), FIRST_LINE, labels)
            made[split].save(folder / f"{split}.npz")
        return {
            "sentences": {split: len(data.labels) for split, data in made.items()},
            "tokens": {split: len(data.ids) for split, data in made.items()},
            "longest": {split: int(data.lengths.max()) for split, data in made.items()},
        }
