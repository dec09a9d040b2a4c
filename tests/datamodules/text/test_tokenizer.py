"""The options of a tokenizer's files: the tokens are those of Hugging Face's, or the option is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers.models.bert.tokenization_bert import BertTokenizer

from src.datamodules.text.vocabulary import Vocabulary
from src.errors import UserError
from tests.support.sst2_rows import write_vocabulary

LETTERS = "abcdefghijklmnopqrstuvwxyzABCéèñßİŻż電影0,.!'"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
PIECES += ["Good", "good", "café", "cafe", "Café", "電影", "##bc"]
TEXTS = [
    "Good good GOOD", "Café café cafe\u0301 CAFE", "電影 a電影b", "İ Żż ß", "it's 0.0, no!", "a\u200bb\tc",
    "[MASK] [SEP] a", "ABC abc aBc", "e\u0301\u0300", "a" * 120,
]  # fmt: skip


def tokens(folder: Path) -> list[list[int]]:
    data = Vocabulary(str(folder)).encode(TEXTS, "here")
    return [data.ids[begin:end].tolist() for begin, end in zip(data.starts, data.starts[1:], strict=False)]


@pytest.mark.parametrize("chinese", [True, False])
@pytest.mark.parametrize("strip", [True, False, None])
@pytest.mark.parametrize("lower", [True, False])
def test_the_tokens_are_hugging_faces(lower: bool, strip: bool | None, chinese: bool, tmp_path: Path) -> None:
    file = write_vocabulary(tmp_path, tuple(PIECES)) / "vocab.txt"
    options = {"do_lower_case": lower, "strip_accents": strip, "tokenize_chinese_chars": chinese}
    theirs: Any = BertTokenizer(str(file), **options)
    expected = theirs(TEXTS)["input_ids"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(options))
    assert tokens(tmp_path) == expected
    theirs.save_pretrained(tmp_path / "saved")  # tokenizer.json, without a vocab.txt
    assert tokens(tmp_path / "saved") == expected
    (tmp_path / "saved" / "tokenizer_config.json").unlink()
    assert tokens(tmp_path / "saved") == expected


def test_options_are_part_of_the_content(tmp_path: Path) -> None:
    lower = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good"]
    plain = Vocabulary(str(write_vocabulary(tmp_path / "a", tuple(lower))))
    assert plain.options.changed == {} and plain.sha256 == Vocabulary(str(plain.path)).sha256
    cased = Vocabulary(str(write_vocabulary(tmp_path / "b", (*lower, "Good"))))
    assert cased.options.changed == {"do_lower_case": False} and cased.options.in_words() == "cased, accents kept"
    write_vocabulary(tmp_path / "c", tuple(lower))
    (tmp_path / "c" / "tokenizer_config.json").write_text('{"strip_accents": false, "model_max_length": 512}')
    other = Vocabulary(str(tmp_path / "c"))
    assert other.sha256 != plain.sha256 and other.max_length == 512


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"do_lower_case": "no"}, "do_lower_case is 'no'; expected true or false"),
        ({"tokenizer_class": "RobertaTokenizer"}, "tokenizer_class is RobertaTokenizer, which is not supported"),
        ({"do_basic_tokenize": False}, "do_basic_tokenize is False, but only True is supported"),
        ({"never_split": ["x"]}, r"never_split is \['x'\], but only None is supported"),
        ({"truncation_side": "left"}, "truncation_side is 'left', but only 'right' is supported"),
        ({"unk_token": {"content": "<unk>"}}, "unk_token is '<unk>'"),
        ({"model_max_length": "long"}, "model_max_length is 'long'"),
        ({"added_tokens_decoder": {"9": {"content": "[USER]"}}}, r"the added token '\[USER\]' is not supported"),
    ],
)
def test_what_is_not_supported_is_refused(config: dict[str, Any], words: str, tmp_path: Path) -> None:
    write_vocabulary(tmp_path, tuple(PIECES))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=words):
        Vocabulary(str(tmp_path))


def test_two_files_that_differ_are_refused(tmp_path: Path) -> None:
    file = write_vocabulary(tmp_path, tuple(PIECES)) / "vocab.txt"
    BertTokenizer(str(file), do_lower_case=False).save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    with pytest.raises(UserError, match=r"do_lower_case is True, but False in tokenizer.json; correct the one"):
        Vocabulary(str(tmp_path))
