"""Reading text that a person gives."""

import codecs
from pathlib import Path

from src.errors import UserError
from src.system.reading import decoded as in_utf8
from src.system.reading import read_bytes

BOMS = (  # UTF-32's begins as UTF-16's
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
    (codecs.BOM_UTF8, "UTF-8"),
)
SAVE = "save the file as UTF-8"


def decoded(path: Path) -> str:
    """Returns the text of a file. Raises UserError, with the line, where it is not UTF-8, and for a binary file.

    UTF-16 and UTF-32 are read where the file begins with a byte order mark.
    """
    return text_of(read_bytes(path, "give a file of text"), str(path))[0]


def text_of(data: bytes, where: str, encoding: str | None = None, advice: str = SAVE) -> tuple[str, str]:
    """Returns a text and the name of its encoding: that of its byte order mark, else `encoding`, else UTF-8.

    Raises UserError, with the line and `advice`, for bytes that the encoding does not have, and for a zero byte.
    """
    name = next((name for mark, name in BOMS if data.startswith(mark)), encoding or "UTF-8")
    if codecs.lookup(name).name == "utf-8":
        text = in_utf8(data, where, advice)
    else:
        try:
            text = data.decode(name)
        except UnicodeError as error:  # some codecs raise it without a place
            start = error.start if isinstance(error, UnicodeDecodeError) else 0
            line = data[:start].count(b"\n") + 1
            raise UserError(f"{where} line {line} is not {name} (byte 0x{data[start]:02x}): {advice}") from None
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise UserError(f"{where} line {line} has a zero byte: save the file as text, in UTF-8")
    return text, name


def check_encoding(name: str | None, key: str) -> None:
    """Raises UserError, with the key, if Python has no text encoding of this name."""
    try:
        if name is not None and not getattr(codecs.lookup(name), "_is_text_encoding", True):
            raise LookupError
    except (LookupError, ValueError):
        raise UserError(f"{key}={name}: there is no such encoding; give utf-8, cp1252, latin-1, gb18030...") from None


def lines_of(path: Path) -> list[str]:
    """Returns the lines of a file of text as an editor numbers them, without their ends. Raises UserError likewise."""
    return decoded(path).replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n")
