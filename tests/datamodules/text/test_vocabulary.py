"""Vocabularies: sources, tokenisation and errors."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pytest

from src.batches.tokens import UNLABELLED
from src.datamodules import download
from src.datamodules.text.data import TokenData
from src.datamodules.text.vocabulary import CHUNK, Vocabulary
from src.errors import UserError
from tests.support import ROOT
from tests.support.sst2_rows import CLS, PIECES, SEP, UNK, sentences, write_vocabulary


@pytest.fixture
def vocabulary(tmp_path: Path) -> Vocabulary:
    return Vocabulary(str(write_vocabulary(tmp_path)))


def pieces_of(data: TokenData) -> list[list[str]]:
    """Returns the word pieces of each sentence, without [CLS] and [SEP]."""
    parts = np.split(data.ids, data.starts[1:-1])
    assert all(part[0] == CLS and part[-1] == SEP for part in parts)
    return [[PIECES[piece] for piece in part[1:-1]] for part in parts]


def test_words_become_pieces_in_lower_case_without_accents(vocabulary: Vocabulary) -> None:
    data = vocabulary.encode(["A good FILM.", "fílms , witsful", "unheard film"], "here")
    assert pieces_of(data) == [
        ["a", "good", "film", "."],
        ["film", "##s", "[UNK]", "wit", "##s", "##ful"],
        ["[UNK]", "film"],
    ]
    assert data.ids.dtype == np.int32
    assert data.labels.tolist() == [UNLABELLED] * 3
    assert UNK in data.ids


def test_sentences_of_several_chunks_keep_their_order(vocabulary: Vocabulary) -> None:
    many = sentences(CHUNK + 3)
    assert pieces_of(vocabulary.encode(many, "here")) == [sentence.split() for sentence in many]


def test_a_folder_and_its_file_give_the_same_vocabulary(tmp_path: Path, vocabulary: Vocabulary) -> None:
    file = Vocabulary(str(tmp_path / "vocab.txt"))
    assert (file.path, file.sha256) == (vocabulary.path, vocabulary.sha256)
    assert file.size == len(PIECES)


def test_windows_line_ends_are_accepted(tmp_path: Path, vocabulary: Vocabulary) -> None:
    path = tmp_path / "windows.txt"
    path.write_bytes(vocabulary.path.read_bytes().replace(b"\n", b"\r\n"))
    assert Vocabulary(str(path)).ids == vocabulary.ids


@pytest.mark.parametrize("sentence", ["", "  ", "\u200b"])
def test_a_sentence_without_a_piece_is_named_by_its_line(sentence: str, vocabulary: Vocabulary) -> None:
    with pytest.raises(UserError, match=r"^some file line 12: the sentence is empty"):
        vocabulary.encode(["good", "bad", sentence], "some file", lines=10)


def test_a_file_without_sentences_is_refused(vocabulary: Vocabulary) -> None:
    with pytest.raises(UserError, match=r"^some file has no sentences"):
        vocabulary.encode([], "some file")


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        (PIECES[:2] + PIECES[3:], r"vocab.txt has no line \[CLS\]"),
        ((PIECES[1], PIECES[0], *PIECES[2:]), r"vocab.txt line 2: \[PAD\] must be the first line"),
    ],
)
def test_an_invalid_vocabulary_is_refused(pieces: tuple[str, ...], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        Vocabulary(str(write_vocabulary(tmp_path, pieces)))


def test_a_vocabulary_in_another_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes("é\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"vocab.txt line 1 is not UTF-8"):
        Vocabulary(str(tmp_path))


def test_a_missing_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no vocab\.txt: give a folder with one"):
        Vocabulary(str(tmp_path))
    with pytest.raises(UserError, match="there is no such file or folder"):
        Vocabulary(str(tmp_path / "none"))


@pytest.mark.parametrize("listens", [False, True])
def test_a_hub_that_does_not_answer_is_asked_once(
    listens: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port refuses connections, or accepts them and says nothing."""
    monkeypatch.setattr(download, "HUB_S", 0.5)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listens:
            server.listen()
        for name, value in (
            ("HF_HUB_OFFLINE", False),
            ("HF_HUB_CACHE", str(tmp_path)),
            ("ENDPOINT", "http://{}:{}".format(*server.getsockname())),
        ):
            monkeypatch.setattr(huggingface_hub.constants, name, value)
        with pytest.raises(UserError, match=r"nobody/nothing is not a local folder.*\(it cannot be reached\)"):
            Vocabulary("nobody/nothing")
        server.setblocking(False)
        if listens:
            server.accept()[0].close()  # the one that asked has left it in the queue
        with pytest.raises(OSError, match=r"temporarily unavailable|Invalid argument"):
            server.accept()


@pytest.mark.slow
def test_the_error_of_an_unreachable_hub_asks_for_a_folder(tmp_path: Path) -> None:
    script = """
from src.datamodules.text.vocabulary import Vocabulary
from src.errors import UserError
try:
    Vocabulary("distilbert-base-uncased")
except UserError as error:
    print(error)
"""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ended.stdout.startswith("datamodule.vocabulary=distilbert-base-uncased is not a local folder, and the Hugg")
    remedy = "give datamodule.vocabulary=FOLDER with its vocab.txt (docs/guides/sst2.md)"
    assert ended.stdout.endswith(f" (it cannot be reached): {remedy}\n")
    assert ended.stdout.count("\n") == 1
