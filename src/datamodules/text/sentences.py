"""Your own sentences with any number of labels, from tables of any format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from src.config.ranges import Count, OpenShare, Seed
from src.datamodules.fingerprint import CONTENT, hash_of
from src.datamodules.text.held_out import Way, check_way, held_out, tell_splits
from src.datamodules.text.tables import LabelledSentences, as_numbers, label_notes, read_table, sorted_labels
from src.datamodules.text.texts import Sentences, TextDataModule
from src.datamodules.text.tokenizer import UNCASED
from src.datamodules.text.vocabulary import FRAME, Vocabulary, learned_pieces
from src.errors import UserError
from src.measure.reading import Reading


@dataclass(frozen=True)
class Source:
    """Where the sentences are: `file` is for training, `dev` for evaluation.

    Without `dev`, `held_out_share` of the rows of `file` is held out for evaluation, drawn with `seed`: `split` says
    how, and `split_column` by which groups, times, or values train and dev. `text` and `label` name the columns;
    `delimiter` and `encoding` are as for `open_table`. Checkpoints without `split` were trained with random rows.
    """

    file: str
    dev: str | None = None
    held_out_share: OpenShare = 0.1
    text: str = "text"
    label: str = "label"
    seed: Seed = 0
    split: Way = "random"
    split_column: str | None = None
    delimiter: str | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        check_way(self.split, self.split_column)


UNKNOWN = "[UNK]"


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
        self.text_column, self.label_column = source.text, source.label
        self.delimiter, self.encoding = source.delimiter, source.encoding

    @cached_property
    def tables(self) -> dict[str, LabelledSentences]:
        """The rows by split, the files being read once. Raises UserError for a bad row, and if a split is empty."""
        source, reading = self.source, self.report
        column = source.split_column if source.dev is None else None
        names = [source.file] if source.dev is None else [source.file, source.dev]
        options = {"reading": reading, "delimiter": source.delimiter, "encoding": source.encoding, "column": column}
        files = [read_table(Path(name), source.text, source.label, labelled=True, **options) for name in names]
        as_numbers(files)
        if source.dev is None:
            tables = held_out(files[0], source.split, source.held_out_share, source.seed, column, reading)
        else:
            tables = {"train": files[0], "dev": files[1]}
            reading.split = "files of their own"
        for name, table in tables.items():
            if not table.texts:
                raise UserError(f"{table.where} has no sentence with a label for the split {name}; add rows")
        return tables

    @cached_property
    def report(self) -> Reading:
        """What became of the files, filled as they are read."""
        return Reading(" and ".join(filter(None, (self.source.file, self.source.dev))), "rows")

    @property
    def label_names(self) -> Sequence[str]:
        if self.expected_names is None:
            self.expected_names = sorted_labels({str(label) for label in self.tables["train"].labels})
            if len(self.expected_names) < 2:
                raise UserError(f"{self.source.file} has one label, {self.expected_names[0]}: give two or more")
        return self.expected_names

    @cached_property
    def vocabulary(self) -> Vocabulary:
        if self.source_of_words is not None:
            return Vocabulary(self.source_of_words)
        pieces = learned_pieces(self.tables["train"].texts, self.vocabulary_size)
        return Vocabulary("the vocabulary learned from the training sentences", pieces, UNCASED)

    def prepare_data(self) -> None:
        self.setup("prepare")

    def fingerprint(self) -> dict[str, Any]:
        parts = [[table.texts, table.numbers(self.label_names).tolist()] for table in self.tables.values()]
        counts = {split: len(table.texts) for split, table in self.tables.items()}
        return counts | {CONTENT: hash_of([self.vocabulary.sha256, *parts])}

    def setup(self, stage: str) -> None:
        """Reads the files and tells what was read, changed, dropped and held out. Raises UserError for a bad row."""
        if self.splits:
            return
        unknown = total = 0
        longer = {}
        for split, table in self.tables.items():
            labels = table.numbers(self.label_names)
            data = self.vocabulary.encode(table.texts, table.where, table.lines, labels)
            longer[split] = (data.lengths > self.max_length).tolist()
            unknown += int((data.ids == self.vocabulary.ids[UNKNOWN]).sum())
            total += len(data.ids) - FRAME * len(table.texts)
            self.splits[split] = self.resident(data.truncated(self.max_length))
        origin = "learned from train" if self.source_of_words is None else str(self.vocabulary.path)
        pieces = f"vocabulary {origin}: {self.vocabulary.size:,} word pieces, {self.vocabulary.options.in_words()}"
        self.report.notes.append(f"{pieces}; {unknown / max(1, total):.1%} of the tokens are {UNKNOWN}")
        self.tell(self.finished(longer))

    def finished(self, longer: Mapping[str, list[bool]]) -> Reading:
        """Returns the report of all rows; `longer` says of each, by split, whether it was truncated, where known."""
        for split, table in self.tables.items():
            file = Path(table.where).name
            for row, (line, changes) in enumerate(zip(table.lines, table.changes, strict=True)):
                is_longer = split in longer and longer[split][row]
                ways = [*changes, *[f"truncated to {self.max_length} tokens"] * is_longer]
                self.report.change(ways, f"{file} line {line}: {table.texts[row]!r}")
        tell_splits(self.tables, self.label_names, self.report)
        self.report.notes += label_notes(self.label_names)
        return self.report.finish()

    def read(self, split: str) -> Sentences:
        if split not in self.tables:
            raise UserError(f"datamodule.predict={split}: there is no such split; choose from {', '.join(self.tables)}")
        table = self.tables[split]
        reading = self.reading or self.finished({})
        return Sentences(table.texts, table.where, table.lines, table.numbers(self.label_names), reading)
