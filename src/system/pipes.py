"""Output that nobody reads any more, as in `python report.py published dlrm | head`: the command goes on without it."""

import io
import os
import sys
from typing import Any


class Unread(io.FileIO):
    """A stream's file, which from the first broken pipe on is the null device."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())  # for what writes to the descriptor itself too
            os.close(null)
            return super().write(data)


def outlive_readers() -> None:
    """Replaces stdout and stderr by streams that do not fail when the reader of their pipe has gone."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__") or not isinstance(stream, io.TextIOWrapper):
            continue  # another program's, such as a notebook's or pytest's
        stream.flush()
        file = io.BufferedWriter(Unread(stream.fileno(), "w", closefd=False))
        setattr(sys, name, io.TextIOWrapper(file, stream.encoding, stream.errors, line_buffering=stream.line_buffering,
                                            write_through=stream.write_through))  # fmt: skip
