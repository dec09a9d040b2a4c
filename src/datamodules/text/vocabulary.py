"""BERT vocabularies and their tokenizer, from the Hugging Face hub or a local folder."""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np
from jaxtyping import Int64
from tokenizers import Encoding
from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from src.batches.tokens import PAD, UNLABELLED
from src.datamodules.download import from_hub, sha256_of
from src.datamodules.text.data import TokenData
from src.datamodules.text.tokenizer import CONFIG, FAST, Options, is_cased, pieces_of, read_options
from src.errors import UserError
from src.system.progress import item_progress
from src.system.reading import read_text

FILE = "vocab.txt"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
CHUNK = 8192  # sentences between two steps of the progress bar
FRAME = 2  # [CLS] and [SEP], which every sentence has


class Vocabulary:
    """The word pieces of a vocab.txt, one a line; the id is the line number, from 0.

    Args:
        source: a folder with a vocab.txt (a converted model's too) or a tokenizer.json, such a file, or a name on the
            hub. Files of the tokenizer beside it say how text is treated; see `read_options`.
        pieces: the word pieces if they are known already; `source` then says where from.
        options: of the tokenizer, with `pieces`; lower-cased unless they have capital letters.
    """

    def __init__(self, source: str, pieces: Sequence[str] = (), options: Options | None = None) -> None:
        """Raises UserError for a missing or invalid vocabulary."""
        self.path = Path(source) if pieces else _found(source)
        self.max_length: int | None = None  # of a sentence, where the tokenizer says so
        if pieces:
            self.pieces = tuple(pieces)
            self.options = options or Options(do_lower_case=not is_cased(pieces))
            self.sha256 = hashlib.sha256("\n".join((*pieces, "")).encode()).hexdigest()
        else:
            self.pieces = pieces_of(self.path) if self.path.name == FAST else _read(self.path)
            self.options, self.max_length = read_options(self.path.parent, self.pieces)
            self.sha256 = sha256_of(self.path)
        if self.options.changed:  # uncased vocabularies keep the digest that prepared folders have
            self.sha256 = hashlib.sha256(f"{self.sha256} {sorted(self.options.changed.items())}".encode()).hexdigest()
        self.ids = {piece: row for row, piece in enumerate(self.pieces)}
        self.size = len(self.pieces)
        missing = [piece for piece in SPECIAL if piece not in self.ids]
        if missing:
            raise UserError(f"{self.path} has no line {missing[0]}: give BERT's vocab.txt")
        if self.ids["[PAD]"] != PAD:
            raise UserError(f"{self.path} line {self.ids['[PAD]'] + 1}: [PAD] must be the first line, as in BERT's")

    @cached_property
    def tokenizer(self) -> BertWordPieceTokenizer:
        return self.options.tokenizer(self.ids)

    def encode(
        self,
        sentences: Sequence[str],
        where: str,
        lines: Sequence[int] | int = 1,
        labels: Int64[np.ndarray, " sentences"] | None = None,
    ) -> TokenData:
        """Tokenises sentences of any length, on all cores.

        Error messages name the file `where` and each sentence's line (`lines`, or counted from this one). Raises
        UserError for a sentence without a word piece, and if there is no sentence.
        """
        if not sentences:
            raise UserError(f"{where} has no sentences; give one a line")
        parts: list[Encoding] = []
        with item_progress(disable=len(sentences) <= CHUNK, transient=True) as bar:
            for begin in bar.track(range(0, len(sentences), CHUNK), description=f"tokenising {where}"):
                parts += self.tokenizer.encode_batch(list(sentences[begin : begin + CHUNK]))
        lengths = np.fromiter(map(len, parts), np.int64, len(parts))
        empty = (lengths <= FRAME).nonzero()[0]
        if len(empty):
            line = lines + empty[0] if isinstance(lines, int) else lines[empty[0]]
            raise UserError(f"{where} line {line}: the sentence is empty; fill it in, or remove it")
        starts = np.concatenate([[0], lengths.cumsum()])
        ids = np.fromiter(chain.from_iterable(part.ids for part in parts), np.int32, starts[-1])
        return TokenData(ids, starts, np.full(len(parts), UNLABELLED) if labels is None else labels)


def _read(path: Path) -> tuple[str, ...]:
    """Returns the lines of a file, without empty ones at its end. Raises UserError if it is not UTF-8."""
    text = read_text(path, "give BERT's vocab.txt")
    pieces = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    while pieces and not pieces[-1]:
        pieces.pop()
    return tuple(pieces)


def learned_pieces(sentences: Sequence[str], size: int) -> list[str]:
    """Returns a vocabulary of at most `size` word pieces: the characters, and the most frequent words.

    The same sentences give the same vocabulary in every process. Characters have the place of words that are not in it.
    Raises UserError where `size` has no room for the characters.
    """
    normalise, split = BertNormalizer(lowercase=True), BertPreTokenizer()
    counts = Counter(word for text in sentences for word, _ in split.pre_tokenize_str(normalise.normalize_str(text)))
    characters = sorted(set("".join(counts)))
    pieces = [*SPECIAL, *characters, *(f"##{character}" for character in characters)]
    if len(pieces) > size:
        raise UserError(f"datamodule.vocabulary_size={size}: the characters alone are {len(pieces)}; give more")
    words = sorted((word for word in counts if len(word) > 1), key=lambda word: (-counts[word], word))
    return [*pieces, *words[: size - len(pieces)]]


def _found(source: str) -> Path:
    """Returns the vocab.txt (or tokenizer.json) of a folder, the file itself, or the hub's.

    Raises UserError if there is none.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        file = next((path / name for name in (FILE, FAST) if (path / name).is_file()), None)
        if file is None:
            raise UserError(f"datamodule.vocabulary={source} has no {FILE}: give a folder with one")
        return file
    if path.is_file():
        return path
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", source):
        raise UserError(f"datamodule.vocabulary={source}: there is no such file or folder; give one with {FILE}")
    try:
        file = from_hub(source, FILE)
        with suppress(FileNotFoundError):  # few have none; it is in the folder of the vocabulary
            from_hub(source, CONFIG)
        return file
    except FileNotFoundError as error:
        raise UserError(
            f"datamodule.vocabulary={source} is not a local folder, and the Hugging Face hub does not provide it "
            f"({error}): give datamodule.vocabulary=FOLDER with its {FILE} (docs/guides/sst2.md)"
        ) from None
