"""Finds raw Criteo click logs and reads their lines in blocks that fit in the cache."""

import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8

from src.datamodules.clicks.text import PAD, BadLog
from src.errors import UserError
from src.system.reading import open_file

NUM_DAYS = 24
KAGGLE_NAMES = ("train.txt", "train.txt.gz")
BLOCK = 96 << 10  # bytes; all columns of a block, as numbers, fit in a core's own cache


class Span(NamedTuple):
    """The lines of a file that begin at an offset of its text in `begin` <= offset < `end`."""

    path: Path
    begin: int
    end: int


class Block(NamedTuple):
    """Whole lines from `offset` in a file's text, after PAD other bytes; the next block overwrites `text`."""

    offset: int
    text: UInt8[np.ndarray, " bytes"]


def raw_files(raw: Path) -> list[Path]:
    """Returns the 24 day files of a folder in order, or the one file of the Kaggle set, which `raw` may also be.

    Raises UserError if there is none of them, or if days are missing.
    """
    if raw.is_file():
        return [raw]
    days = [_first(raw, (f"day_{day}", f"day_{day}.gz")) for day in range(NUM_DAYS)]
    missing = [f"day_{day}" for day, path in enumerate(days) if path is None]
    if len(missing) == NUM_DAYS:
        kaggle = _first(raw, KAGGLE_NAMES)
        if kaggle is None:
            raise UserError(
                f"{raw} has neither day_0 ... day_23 (plain or .gz) nor train.txt: give the raw Criteo files"
            )
        return [kaggle]
    if missing:
        raise UserError(f"{raw} has no {', '.join(missing)} (plain or .gz): give all of day_0 ... day_23")
    return [path for path in days if path is not None]


def _first(folder: Path, names: tuple[str, ...]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def spans(path: Path, span_bytes: int) -> list[Span]:
    """Divides a plain file into spans of about `span_bytes`; a compressed file is one span, since it has no offsets."""
    if _compressed(path):
        return [Span(path, 0, sys.maxsize)]
    size = path.stat().st_size
    return [Span(path, begin, min(begin + span_bytes, size)) for begin in range(0, max(size, 1), span_bytes)]


def blocks(span: Span) -> Iterator[Block]:
    """Blocks of a span's lines. Raises UserError for a truncated, damaged or unreadable file."""
    buffer = np.zeros(PAD + BLOCK, np.uint8)
    view = buffer.data
    with _opened(span.path) as file:
        # Both ends move to the start of the next line, so that adjacent spans neither share nor miss a line.
        end = span.end if _compressed(span.path) else _line_begin(file, span.end)
        offset = _line_begin(file, span.begin)
        filled = 0
        while offset + filled < end:
            if filled == BLOCK:
                raise BadLog(f"{_line(span.path, offset)} is longer than {BLOCK} bytes: give a Criteo click log")
            try:
                read = file.readinto(view[PAD + filled : PAD + min(BLOCK, end - offset)])
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise BadLog(
                    f"{_line(span.path, offset)} or a later one cannot be decompressed: the file is truncated or "
                    f"damaged ({error}); get it again"
                ) from error
            if not read:
                break
            filled += read
            newline = view[PAD : PAD + filled].tobytes().rfind(b"\n") + 1
            if newline:
                yield Block(offset, buffer[: PAD + newline])
                buffer[PAD : PAD + filled - newline] = buffer[PAD + newline : PAD + filled].copy()
                offset, filled = offset + newline, filled - newline
    if filled:
        raise BadLog(
            f"{_line(span.path, offset)} ends without a newline: the file is truncated; get it again, or add the "
            f"newline if the line is complete"
        )
    if offset == 0:
        raise BadLog(f"{span.path} is empty: get it again")


def lines_before(path: Path, offset: int) -> int:
    """Returns the number of lines before an offset of the text. Slow; used in error messages only."""
    count = 0
    with _opened(path) as file:
        while offset > 0 and (text := file.read(min(BLOCK, offset))):
            count += text.count(b"\n")
            offset -= len(text)
    return count


def count_lines(span: Span) -> int:
    return sum(int(np.count_nonzero(block.text[PAD:] == 10)) for block in blocks(span))


def estimated_rows(path: Path) -> int:
    """Estimates the number of rows of a file from its size and first lines; 1 if it cannot be read."""
    try:
        with open_file(path) as raw:
            text = (gzip.GzipFile(fileobj=raw) if _compressed(path) else raw).read(1 << 20)
            return max(1, round(path.stat().st_size * text.count(b"\n") / max(raw.tell(), 1)))
    except (UserError, OSError, EOFError, zlib.error):
        return 1  # the first pass reports what is wrong, and where


def _line_begin(file: io.BufferedReader, offset: int) -> int:
    """Seeks the first line that begins at or after an offset; returns the offset of that line."""
    if offset == 0:
        return file.seek(0)
    file.seek(offset - 1)
    file.readline(BLOCK)
    return file.tell()


def _line(path: Path, offset: int) -> str:
    return f"{path} line {1 + lines_before(path, offset)}"


def _compressed(path: Path) -> bool:
    return path.suffix == ".gz"


@contextmanager
def _opened(path: Path) -> Iterator[io.BufferedReader]:
    try:
        with open_file(path, "check that it exists and is readable") as raw:
            yield io.BufferedReader(gzip.GzipFile(fileobj=raw), BLOCK) if _compressed(path) else raw
    except gzip.BadGzipFile as error:
        raise UserError(f"{path} is not a gzip file ({error}): get it again") from error
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}): check that it exists and is readable") from error
