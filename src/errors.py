"""The one exception that is shown to the person at the keyboard."""

import re

from src.printable import printable

LONGEST, LONGEST_WORD = 6000, 300  # characters of a message and of what has no space in it


class UserError(Exception):
    """A mistake of the user or a broken input: one line that says what was wrong, where, and what to do.

    The entry points (train.py, predict.py, prepare.py, export.py, report.py) print it without a traceback and exit with
    code 2.
    What a file brings into the message is made printable, and shortened in the middle where it is long.
    """

    def __init__(self, message: object) -> None:
        text = " ".join(printable(str(message)).splitlines())
        text = re.sub(rf"\S{{{LONGEST_WORD},}}", lambda word: shortened(word[0], LONGEST_WORD), text)
        super().__init__(shortened(text, LONGEST))


def shortened(text: str, longest: int) -> str:
    """Returns the beginning and the end of a text that is longer than `longest` characters."""
    half = (longest - 3) // 2
    return text if len(text) <= longest else f"{text[:half]}...{text[-half:]}"
