"""Output that nobody can read any more, as in `train.py | head`: the command goes on and ends as it would with it."""

import ctypes
import errno
import gc
import io
import os
import sys
from typing import Any

HOLDING = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)  # kinds of files; the first writes to the others
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

lost: list[str] = []  # why lines of output were lost for which there was no room


class Unread(io.FileIO):
    """A stream's file, which is the null device once the reader of its pipe or its terminal has gone.

    What a full disk has no room for is left out, and `lost` names why.
    """

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno in NO_ROOM:
                lost.append(os.strerror(error.errno))
                return len(data)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())  # for what writes to the descriptor itself too
            os.close(null)
            return super().write(data)


def outlive_readers() -> None:
    """Replaces stdout and stderr by streams that fail neither without a reader nor for a sign they cannot encode.

    Such a sign is written as \\x and its number. Streams that were closed before the start become the null device.
    """
    while (null := os.open(os.devnull, os.O_RDWR)) <= 2:  # else the first file that is opened would be a stream
        os.set_inheritable(null, True)
    os.close(null)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif stream is getattr(sys, f"__{name}__") and isinstance(stream, io.TextIOWrapper):
            stream.flush()
            file = Unread(stream.fileno(), "w", closefd=False)
            buffer: Any = file if stream.write_through else io.BufferedWriter(file)  # as PYTHONUNBUFFERED asks for
            errors = "backslashreplace" if stream.errors == "strict" else stream.errors
            setattr(sys, name, io.TextIOWrapper(buffer, stream.encoding, errors, line_buffering=stream.line_buffering,
                                                write_through=stream.write_through))  # fmt: skip
        # else it is another program's, such as a notebook's or pytest's


def flush_all() -> bool:
    """Writes what files that were opened since the imports still hold, and those of C; returns whether all could be."""
    files = [file for file in gc.get_objects() if type(file) in HOLDING]
    try:
        for file in sorted(files, key=lambda file: HOLDING.index(type(file))):
            if not file.closed:
                file.flush()
        return ctypes.CDLL(None).fflush(None) == 0
    except (OSError, ValueError):
        return False
