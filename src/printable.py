"""Text of files and records on a terminal."""

import sys
import unicodedata


def tell(line: str) -> None:
    """Prints a line on stderr, in one piece: `print` writes its end apart, and ranks share a terminal."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def printable(text: str) -> str:
    """Returns the text with control characters, escape sequences and lone surrogates written out, as \\x1b.

    Line breaks, tabs and spaces stay.
    """
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" or is_shown(c) else c.encode("unicode_escape").decode() for c in text)


def is_shown(character: str) -> bool:
    """Returns whether a character is a sign or a space."""
    return character.isprintable() or unicodedata.category(character) == "Zs"
