"""Reading text that a person gives."""

from pathlib import Path

from src.errors import UserError


def decoded(path: Path) -> str:
    """Returns the text of a file. Raises UserError, with the line, where it is not UTF-8, and for a binary file."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, byte = error.object[: error.start].count(b"\n") + 1, error.object[error.start]
        raise UserError(f"{path} line {line} is not UTF-8 (byte 0x{byte:02x}): save the file as UTF-8") from error
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}): give a file of text") from error
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise UserError(f"{path} line {line} has a zero byte: save the file as text, in UTF-8")
    return text


def lines_of(path: Path) -> list[str]:
    """Returns the lines of a file of text as an editor numbers them, without their ends. Raises UserError likewise."""
    return decoded(path).replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n")
