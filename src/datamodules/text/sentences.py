"""Your own sentences with any number of labels, from .csv, .tsv and .jsonl files."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from src.config.ranges import Count, OpenShare, Seed
from src.datamodules.fingerprint import CONTENT, hash_of
from src.datamodules.splits import seeded_split
from src.datamodules.text.tables import SHOWN, LabelledSentences, read_table
from src.datamodules.text.texts import Sentences, TextDataModule
from src.datamodules.text.vocabulary import Vocabulary, learned_pieces
from src.errors import UserError
from src.printable import printable


@dataclass(frozen=True)
class Source:
    """Where the sentences are: `file` is for training, `dev` for evaluation.

    Without `dev`, `held_out_share` of the rows of `file` is held out for evaluation, drawn with `seed`. `text` and
    `label` name the columns.
    """

    file: str
    dev: str | None = None
    held_out_share: OpenShare = 0.1
    text: str = "text"
    label: str = "label"
    seed: Seed = 0


class SentencesDataModule(TextDataModule):
    """Sentences with the splits `train` and `dev`; the labels are those of the training rows, sorted.

    Args:
        source: the files and their columns; see Source.
        vocabulary: as for TextDataModule; learned from the training sentences if not given.
        vocabulary_size: most word pieces of a learned vocabulary.
        options: as for TokenDataModule.
    """

    def __init__(
        self, *, source: Source, vocabulary: str | None = None, vocabulary_size: Count = 8000, **options: Any
    ) -> None:
        super().__init__(vocabulary=vocabulary, **options)
        self.source, self.vocabulary_size = source, vocabulary_size
        self.text_column, self.label_column = self.source.text, self.source.label

    @cached_property
    def tables(self) -> dict[str, LabelledSentences]:
        """The rows by split, the files being read once. Raises UserError for a bad row, and if a split is empty."""
        source = self.source
        names = [source.file] if source.dev is None else [source.file, source.dev]
        tables = [read_table(Path(name), source.text, source.label, labelled=True) for name in names]
        if source.dev is None:
            total = len(tables[0].texts)
            is_dev = np.isin(np.arange(total), seeded_split(total, source.held_out_share, source.seed))
            tables = [tables[0].part(rows.tolist()) for rows in ((~is_dev).nonzero()[0], is_dev.nonzero()[0])]
        for name, table in zip(("train", "dev"), tables, strict=True):
            if not table.texts:
                raise UserError(f"{table.where} has no sentence with a label for the split {name}; add rows")
        return dict(zip(("train", "dev"), tables, strict=True))

    @property
    def label_names(self) -> Sequence[str]:
        if self.expected_names is None:
            names = {str(label) for label in self.tables["train"].labels}
            is_number = all(name.lstrip("-").isdecimal() for name in names)
            self.expected_names = sorted(names, key=int if is_number else str)
            if len(names) < 2:
                raise UserError(f"{self.source.file} has one label, {self.expected_names[0]}: give two or more")
        return self.expected_names

    @cached_property
    def vocabulary(self) -> Vocabulary:
        if self.source_of_words is not None:
            return Vocabulary(self.source_of_words)
        pieces = learned_pieces(self.tables["train"].texts, self.vocabulary_size)
        return Vocabulary("the vocabulary learned from the training sentences", pieces)

    def prepare_data(self) -> None:
        self.setup("prepare")

    def fingerprint(self) -> dict[str, Any]:
        parts = [[table.texts, table.numbers(self.label_names).tolist()] for table in self.tables.values()]
        counts = {split: len(table.texts) for split, table in self.tables.items()}
        return counts | {CONTENT: hash_of([self.vocabulary.sha256, *parts])}

    def setup(self, stage: str) -> None:
        """Reads the files and says what was read and dropped. Raises UserError for a bad row."""
        if self.splits:
            return
        longer = 0
        for split in self.tables:
            sentences = self.read(split)
            data = self.vocabulary.encode(sentences.text, sentences.where, sentences.lines, sentences.labels)
            longer += int((data.lengths > self.max_length).sum())
            self.splits[split] = self.resident(data.truncated(self.max_length))
        if self.rank_and_world[0] == 0:
            print(printable(self.report(longer)))

    def read(self, split: str) -> Sentences:
        if split not in self.tables:
            raise UserError(f"datamodule.predict={split}: there is no such split; choose from {', '.join(self.tables)}")
        table = self.tables[split]
        return Sentences(table.texts, table.where, table.lines, table.numbers(self.label_names))

    def report(self, longer: int) -> str:
        """Returns what was read, dropped and truncated, in two lines."""
        tables = list(self.tables.values())[: 1 if self.source.dev is None else 2]  # of one file both have its counts
        empty, unlabelled = sum(table.empty for table in tables), sum(table.unlabelled for table in tables)
        train, dev = (len(self.tables[split].texts) for split in ("train", "dev"))
        files = " and ".join(filter(None, (self.source.file, self.source.dev)))
        counts = Counter(label for table in self.tables.values() for label in table.labels)
        named = [f"{name} {counts[name]:,}" for name in self.label_names[:SHOWN]]
        more = len(self.label_names) - len(named)
        return (
            f"{files}: {train + dev + empty + unlabelled:,} rows read; dropped {empty:,} without text in column "
            f"{self.source.text}, {unlabelled:,} without a label in column {self.source.label}\n"
            f"{train:,} sentences to train, {dev:,} to evaluate, {longer:,} truncated to {self.max_length} tokens; "
            f"{len(self.label_names)} labels: {', '.join(named)}{f' and {more} more' * bool(more)}"
        )
