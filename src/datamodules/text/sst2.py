"""SST-2: sentences of film reviews, negative (0) or positive (1), as batches of tokens (`src.batches.tokens`)."""

import hashlib
import json
from pathlib import Path
from typing import Any

from src.datamodules.download import sha256_of
from src.datamodules.fingerprint import CONTENT, hash_of
from src.datamodules.prepared import prepare, sums_of, verified_meta
from src.datamodules.text.data import TokenData
from src.datamodules.text.sst2_files import FIRST_LINE, LABELLED, glue_files, own_files, read_tsv
from src.datamodules.text.texts import Sentences, TextDataModule
from src.errors import UserError

LAYOUT = 1


class SST2DataModule(TextDataModule):
    """SST-2 with the evaluation split `dev`, as published, since GLUE does not publish the labels of `test`.

    Args:
        data_dir: folder of the downloaded files and the tokens.
        vocabulary: a folder with a vocab.txt, such a file, or a name on the Hugging Face hub.
        raw: a folder with train.tsv, dev.tsv and optionally test.tsv; GLUE's files are downloaded if not given.
        options: as for TokenDataModule.
    """

    text_column = "sentence"

    def __init__(
        self, *, data_dir: str, vocabulary: str = "distilbert-base-uncased", raw: str | None = None, **options: Any
    ) -> None:
        super().__init__(vocabulary=vocabulary, **options)
        self.data_dir, self.raw = Path(data_dir), None if raw is None else Path(raw)

    def prepare_data(self) -> None:
        self._prepared()

    def fingerprint(self) -> dict[str, Any]:
        folder = self._prepared()
        return verified_meta(folder)["sentences"] | {CONTENT: hash_of([sums_of(folder)])}

    def setup(self, stage: str) -> None:
        if self.splits:
            return
        folder = self._prepared()
        for split in verified_meta(folder)["sentences"]:
            self.splits[split] = self.resident(TokenData.load(folder / f"{split}.npz").truncated(self.max_length))

    def files(self) -> dict[str, Path]:
        """Returns the sentence files by split; downloads GLUE's if necessary. Raises UserError if one is missing."""
        return glue_files(self.data_dir) if self.raw is None else own_files(self.raw)

    def read(self, split: str) -> Sentences:
        files = self.files()
        if split not in files:
            raise UserError(f"datamodule.predict={split}: there is no such split; choose from {', '.join(files)}")
        text, labels = read_tsv(files[split], labelled=split in LABELLED)
        return Sentences(text, str(files[split]), range(FIRST_LINE, FIRST_LINE + len(text)), labels)

    def _prepared(self) -> Path:
        """Returns the folder of tokens, prepared if necessary; there is one for each vocabulary and set of files."""
        raw_files = {} if self.raw is None else self.files()
        digest = self.vocabulary.sha256  # a missing vocabulary is told before anything is downloaded
        files = raw_files or self.files()
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
