"""Writing a file so that it is there whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from src.errors import UserError


@contextmanager
def written_atomically(path: Path) -> Iterator[Path]:
    """Yields a temporary path in the same folder; moves it to `path` at the end, removes it on any failure.

    The folders of `path` are created. Raises UserError where the folder or the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror or error}): choose another output folder") from error
    finally:
        if temporary.parent.is_dir():
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes `text` in UTF-8, atomically. Raises UserError where it cannot be written."""
    with written_atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def claimed(folder: Path) -> Path:
    """The folder, made; with a number behind its name where somebody has that already."""
    path, number = folder, 1
    while True:
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            number += 1
            path = folder.with_name(f"{folder.name}_{number}")
