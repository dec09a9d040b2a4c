"""SST-2: sentences of film reviews, negative (0) or positive (1), as batches of tokens (`src.batches.tokens`)."""

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from src.datamodules.download import sha256_of
from src.datamodules.prepared import prepare, verified_meta
from src.datamodules.text.data import TokenData
from src.datamodules.text.datamodule import TokenDataModule
from src.datamodules.text.sst2_files import FIRST_LINE, LABELLED, glue_files, own_files, read_tsv
from src.datamodules.text.vocabulary import Vocabulary

LAYOUT = 1


class SST2DataModule(TokenDataModule):
    """SST-2 with the evaluation split `dev`, as published, since GLUE does not publish the labels of `test`.

    Args:
        name, batch_size, seed, padding, test_batch_size, predict: as for TokenDataModule.
        data_dir: folder of the downloaded files and the tokens.
        vocabulary: a folder with a vocab.txt, such a file, or a name on the Hugging Face hub.
        raw: a folder with train.tsv, dev.tsv and optionally test.tsv; GLUE's files are downloaded if not given.
        max_length: longer sentences are truncated.
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
        super().__init__(name, batch_size, seed, padding, max_length, test_batch_size, predict)
        self.data_dir, self.raw = Path(data_dir), None if raw is None else Path(raw)
        self.source = vocabulary

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.source)

    def words(self) -> tuple[int, str]:
        return self.vocabulary.size, str(self.vocabulary.path)

    def word_pieces(self) -> tuple[str, ...]:
        return self.vocabulary.pieces

    def prepare_data(self) -> None:
        self._prepared()

    def setup(self, stage: str) -> None:
        if self.splits:
            return
        folder = self._prepared()
        for split in verified_meta(folder)["sentences"]:
            self.splits[split] = self.resident(TokenData.load(folder / f"{split}.npz").truncated(self.max_length))

    def files(self) -> dict[str, Path]:
        """Returns the sentence files by split; downloads GLUE's if necessary. Raises UserError if one is missing."""
        return glue_files(self.data_dir) if self.raw is None else own_files(self.raw)

    def encode(
        self,
        sentences: Sequence[str],
        where: str,
        first_line: int = 1,
        labels: Int64[np.ndarray, " sentences"] | None = None,
    ) -> TokenData:
        """Returns the tokens of any sentences (see Vocabulary.encode); the files of the data set are not needed."""
        return self.vocabulary.encode(sentences, where, first_line, labels).truncated(self.max_length)

    def _prepared(self) -> Path:
        """Returns the folder of tokens, prepared if necessary; there is one for each vocabulary and set of files."""
        digest = self.vocabulary.sha256  # a missing vocabulary is told before anything is downloaded
        files = self.files()
        origin = {
            "layout": LAYOUT,
            "vocabulary": digest,
            "files": {path.name: sha256_of(path) for path in files.values()},
        }
        digest = hashlib.sha256(json.dumps(origin).encode()).hexdigest()[:12]
        return prepare(self.data_dir / f"tokens_{digest}", origin, lambda part: self._tokenise(files, part))

    def _tokenise(self, files: dict[str, Path], folder: Path) -> dict[str, Any]:
        """Writes one file a split; returns the metadata of the splits."""
        tokens = {}
        for split, path in files.items():
            sentences, labels = read_tsv(path, labelled=split in LABELLED)
            tokens[split] = self.vocabulary.encode(sentences, str(path), FIRST_LINE, labels)
            tokens[split].save(folder / f"{split}.npz")
        return {
            "sentences": {split: len(data.labels) for split, data in tokens.items()},
            "tokens": {split: len(data.ids) for split, data in tokens.items()},
            "longest": {split: int(data.lengths.max()) for split, data in tokens.items()},
        }
