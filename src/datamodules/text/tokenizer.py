"""How a vocabulary's tokenizer treats text: what tokenizer_config.json and tokenizer.json beside it say."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer

from src.errors import UserError
from src.system.reading import read_json

CONFIG, FAST = "tokenizer_config.json", "tokenizer.json"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
KINDS = ("Bert", "DistilBert", "Electra", "MobileBert", "SqueezeBert", "ConvBert", "PreTrained")  # of the same pieces
# Options with one value that is supported.
ONLY: dict[str, Any] = {
    "do_basic_tokenize": True, "never_split": None, "clean_text": True, "wordpieces_prefix": "##",
    "truncation_side": "right", "padding_side": "right", "unk_token": "[UNK]", "sep_token": "[SEP]",
    "pad_token": "[PAD]", "cls_token": "[CLS]", "split_special_tokens": False,
}  # fmt: skip
ADVICE = "give the tokenizer of a BERT or DistilBERT"


@dataclass(frozen=True)
class Options:
    """The options of a BERT tokenizer, by Hugging Face's names. `strip_accents`: None is as `do_lower_case`."""

    do_lower_case: bool = True
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool = True

    def tokenizer(self, ids: Mapping[str, int]) -> BertWordPieceTokenizer:
        return BertWordPieceTokenizer(
            vocab=dict(ids),
            handle_chinese_chars=self.tokenize_chinese_chars,
            strip_accents=self.strip_accents,
            lowercase=self.do_lower_case,
        )

    @property
    def changed(self) -> dict[str, bool]:
        """The options that are not those of an uncased vocabulary."""
        return {name: value for name, value in asdict(self).items() if value != getattr(UNCASED, name)}

    def in_words(self) -> str:
        accents = self.do_lower_case if self.strip_accents is None else self.strip_accents
        words = [("cased", "lower-cased")[self.do_lower_case], f"accents {('kept', 'stripped')[accents]}"]
        return ", ".join(words + ["Chinese characters not split"] * (not self.tokenize_chinese_chars))


UNCASED = Options()


def is_cased(pieces: Sequence[str]) -> bool:
    """Returns whether a vocabulary has pieces that no lower-cased text has."""
    return any(re.search("[A-Z]", piece) for piece in pieces if not re.fullmatch(r"\[.*\]", piece))


def read_options(folder: Path, pieces: Sequence[str]) -> tuple[Options, int | None]:
    """Returns the options in a folder, and the most tokens of a sentence if it says so.

    Without either file a vocabulary with capital letters is cased. Raises UserError for an option that is not
    supported, and where the two files differ.
    """
    values: dict[str, Any] = {}
    longest = None
    if (folder / CONFIG).is_file():
        config = _object(folder / CONFIG)
        _check(config, folder / CONFIG)
        values = {name: config[name] for name in asdict(UNCASED) if name in config}
        longest = config.get("model_max_length")
    if (folder / FAST).is_file():
        for name, value in _of_fast(_object(folder / FAST), folder / FAST).items():
            if values.get(name, value) != value:
                raise UserError(
                    f"{folder / CONFIG}: {name} is {values[name]}, but {value} in {FAST}; correct the one that is wrong"
                )
            values[name] = value
    return options_of({"do_lower_case": not is_cased(pieces)} | values, str(folder)), _length(longest, folder / CONFIG)


def options_of(values: Any, where: str) -> Options:
    """Returns options of plain values. Raises UserError for other names and for what is no truth value."""
    if not isinstance(values, dict):
        raise UserError(f"{where}: the tokenizer's options are {values!r:.80}, no object")
    for name, value in values.items():
        if name not in asdict(UNCASED) or not (isinstance(value, bool) or (name == "strip_accents" and value is None)):
            raise UserError(f"{where}: {name} is {value!r:.80}; expected true or false")
    return Options(**values)


def pieces_of(path: Path) -> tuple[str, ...]:
    """Returns the word pieces of a tokenizer.json by id. Raises UserError for another model or ids with gaps."""
    model = _object(path).get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocab, dict) or sorted(map(str, vocab.values())) != sorted(map(str, range(len(vocab)))):
        raise UserError(f"{path} has no vocabulary of WordPiece with ids from 0: {ADVICE}")
    half = next((piece for piece in vocab if re.search("[\ud800-\udfff]", piece)), None)
    if half is not None:
        raise UserError(f"{path}: the word piece {half!r:.80} has half of a character: correct it")
    return tuple(sorted(vocab, key=lambda piece: vocab[piece]))


def _object(path: Path) -> dict[str, Any]:
    value = read_json(path, ADVICE)
    if not isinstance(value, dict):
        raise UserError(f"{path} is no JSON object: {ADVICE}")
    return value


def _check(config: Mapping[str, Any], path: Path) -> None:
    kind = str(config.get("tokenizer_class") or "BertTokenizer")
    if kind.removesuffix("Fast").removesuffix("Tokenizer") not in KINDS:
        raise UserError(f"{path}: tokenizer_class is {kind}, which is not supported: {ADVICE}")
    for name, only in ONLY.items():
        value = config.get(name, only)
        value = value.get("content") if isinstance(value, dict) else value
        if value != only and not (only is None and value == []):
            raise UserError(f"{path}: {name} is {value!r:.80}, but only {only!r} is supported: {ADVICE}")
    added = config.get("added_tokens_decoder")
    _check_added(list(added.values()) if isinstance(added, dict) else [], path)


def _check_added(tokens: Any, path: Path) -> None:
    for token in tokens if isinstance(tokens, list) else []:
        content = token.get("content") if isinstance(token, dict) else token
        if content not in SPECIAL:
            raise UserError(f"{path}: the added token {content!r:.80} is not supported: {ADVICE}")


def _of_fast(content: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Returns the options in a tokenizer.json. Raises UserError for one that is not BERT's."""
    parts = {name: content.get(name) or {} for name in ("normalizer", "pre_tokenizer", "model")}
    for name, kind in (("normalizer", "BertNormalizer"), ("pre_tokenizer", "BertPreTokenizer"), ("model", "WordPiece")):
        part = parts[name]
        actual = part.get("type", kind if name == "model" else None) if isinstance(part, dict) else part
        if actual != kind:
            raise UserError(f"{path}: its {name} is {actual!r:.80}, not {kind}: {ADVICE}")
    model = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "unk_token": "[UNK]"}
    for name, only in model.items():
        if parts["model"].get(name, only) != only:
            raise UserError(f"{path}: {name} is {parts['model'][name]!r:.80}, but only {only!r} is supported: {ADVICE}")
    _check_added(content.get("added_tokens"), path)
    normalizer = parts["normalizer"]
    if normalizer.get("clean_text", True) is not True:
        raise UserError(f"{path}: clean_text is {normalizer['clean_text']!r:.80}, but only true is supported: {ADVICE}")
    names = {
        "lowercase": "do_lower_case",
        "strip_accents": "strip_accents",
        "handle_chinese_chars": "tokenize_chinese_chars",
    }
    return {ours: normalizer[theirs] for theirs, ours in names.items() if theirs in normalizer}


def _length(value: Any, path: Path) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 1:
        raise UserError(f"{path}: model_max_length is {value!r:.80}; expected a number of 1 or more")
    return int(value)
