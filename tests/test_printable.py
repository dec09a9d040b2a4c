"""What a file brings to the terminal."""

import io
import sys

import pytest

from src.errors import LONGEST, UserError
from src.printable import printable, tell


def test_escape_sequences_and_surrogates_are_written_out() -> None:
    assert printable("a\x1b[31mb\x07\ud800\u202e c\n\td\xa0é分") == "a\\x1b[31mb\\x07\\ud800\\u202e c\n\td\xa0é分"


def test_a_message_is_one_line_of_bounded_length() -> None:
    assert str(UserError("a\nb\x1b[2J")) == "a b\\x1b[2J"
    assert len(str(UserError("word " * 10_000 + "x" * 10_000))) <= LONGEST
    assert str(UserError(f"{'x' * 1000}: give another")).endswith("xxx: give another")


def test_a_line_is_told_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[str] = []

    class Terminal(io.StringIO):
        def write(self, text: str) -> int:
            pieces.append(text)
            return len(text)

    monkeypatch.setattr(sys, "stderr", Terminal())
    tell("error: a line")
    assert pieces == ["error: a line\n"]
