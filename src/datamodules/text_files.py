"""Reading text that a person gives."""

from pathlib import Path

from src.errors import UserError
from src.system.reading import decoded as in_utf8
from src.system.reading import read_bytes


def decoded(path: Path) -> str:
    """Returns the text of a file. Raises UserError, with the line, where it is not UTF-8, and for a binary file."""
    text = in_utf8(read_bytes(path, "give a file of text"), str(path), "save the file as UTF-8")
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise UserError(f"{path} line {line} has a zero byte: save the file as text, in UTF-8")
    return text


def lines_of(path: Path) -> list[str]:
    """Returns the lines of a file of text as an editor numbers them, without their ends. Raises UserError likewise."""
    return decoded(path).replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n")
