"""Writing a file so that it is there whole or not at all, and locks, so that one process makes what several want.

The locks are the kernel's (flock): whatever is killed, and however, a lock is let go with the last process that holds
its open file. A file that is left over locks nothing.
"""

import errno
import fcntl
import glob
import os
import shutil
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

from src.errors import UserError
from src.printable import tell
from src.system.read_ahead import check_may_make

HOST = socket.gethostname()
WRITTEN_BY_LIGHTNING = ("hparams.yaml", "metrics.csv")  # into whatever has that name

# What a file system without locks answers, and one over the network about a file that was removed.
NOT_LOCKED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ESTALE)


@contextmanager
def written_atomically(path: Path) -> Iterator[Path]:
    """Yields a temporary path in the same folder; moves it to `path` at the end, removes it on any failure.

    The folders of `path` are created, and what killed processes left of it is removed. The file is on the disk before
    it has its name. Raises UserError where the folder or the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{HOST}-{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_left_over(path.parent, path.name)
        with locked(temporary):
            yield temporary
            _flush(temporary)
            os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror or error}): choose another output folder") from error


def link_atomically(source: Path, target: Path) -> None:
    """Gives a file a second name; a copy, where the file system has one name a file. Raises UserError as above."""
    with written_atomically(target) as temporary:
        temporary.unlink()
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copyfile(source, temporary)


def remove_left_over(folder: Path, name: str | None = None) -> None:
    """Removes temporary files in a folder, of the file `name` alone if given, whose processes were killed here."""
    for path in folder.glob(f".{'*' if name is None else glob.escape(name)}.{glob.escape(HOST)}-*.tmp"):
        number = path.name.removesuffix(".tmp").rpartition("-")[2]
        ended = number.isdecimal() and not psutil.pid_exists(int(number))
        with suppress(OSError):
            file = os.open(path, os.O_RDWR)
            try:
                if not ended:  # or nearly so, or its number is another process's now
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(file)


@contextmanager
def sole_run(folder: Path) -> Iterator[None]:
    """Keeps other runs out of a folder while this one writes there. The lock ends with the process, however it dies.

    Raises UserError where another run is in there, or where the folder or a file in it cannot be written.
    """
    check_writable(folder)
    for name in WRITTEN_BY_LIGHTNING:
        check_regular(folder / name)
    lock = check_free(folder)
    try:
        remove_left_over(folder)
        yield
    finally:
        os.close(lock)


def check_free(folder: Path) -> int:
    """Locks an existing folder until the returned file is closed. Raises UserError where another run has done so."""
    try:
        lock = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"cannot read {folder} ({error.strerror}): choose another output folder") from error
    if _must_wait(lock):
        os.close(lock)
        raise UserError(f"{folder}: another run is writing there; give another folder, or wait for its end")
    return lock


def check_writable(folder: Path) -> None:
    """Makes a folder where there is none. Raises UserError where no file can be written in it."""
    probe = folder / f".probe.{HOST}-{os.getpid()}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            probe.unlink(missing_ok=True)
            with probe.open("xb") as file:  # a new one, not that of a link
                file.write(b"0")
            _flush(probe)
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {folder} ({error.strerror}): choose another output folder") from error


def _flush(path: Path) -> None:
    """Waits until a file is on the disk; a write that the disk has no room for fails here at the latest."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def check_regular(path: Path) -> None:
    """Raises UserError for a link, a FIFO or a folder where a run writes a file: it would change what is elsewhere."""
    with suppress(OSError):  # there is none, or it cannot be looked at
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise UserError(
                f"{path} is a link, a pipe or a folder, where a run writes a file: remove it, or choose another output "
                "folder"
            )


def open_to_append(path: Path) -> int:
    """Opens a regular file, made if there is none, and returns its descriptor. Raises UserError where it cannot."""
    check_regular(path)
    try:
        # Neither to follow a link nor to wait for the reader of a FIFO that came meanwhile.
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}): choose another output folder") from error


def write_text(path: Path, text: str) -> None:
    """Writes `text` in UTF-8, atomically. Raises UserError where it cannot be written."""
    with written_atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def claimed(folder: Path) -> Path:
    """Creates and returns the folder, with a number behind its name where another process has that name."""
    path, number = folder, 1
    while True:
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            number += 1
            path = folder.with_name(f"{folder.name}_{number}")


def try_lock(path: Path) -> int | None:
    """Returns the open file that holds the lock; None where a living process has it. The file stays."""
    file = _opened(path)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    return file


@contextmanager
def locked(path: Path, notice: str | None = None) -> Iterator[int]:
    """Waits until no other process is inside, and prints `notice` to stderr if it has to. Yields the lock's open file.

    The file is removed at the end. On a file system without locks nobody waits.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = _opened(path)
        try:
            if _must_wait(file):
                if notice is not None:
                    tell(notice)
                notice = None
                _must_wait(file, fcntl.LOCK_EX)
            if not _is_at(path, file):
                continue  # the one before has removed it, and the next may have locked another
            try:
                yield file
            finally:
                with suppress(OSError):
                    path.unlink()
            return
        finally:
            os.close(file)


@contextmanager
def folder_in_use(folder: Path) -> Iterator[None]:
    """Lets other processes see (`is_in_use`) that this one is at work on an existing folder."""
    file = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks: everybody takes all folders for used
            fcntl.flock(file, fcntl.LOCK_SH)
        yield
    finally:
        os.close(file)


def is_in_use(folder: Path) -> bool:
    """Returns whether a living process is at work on the folder, or may be: not everywhere it can be told."""
    try:
        file = os.open(folder, os.O_RDONLY)
    except OSError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


@contextmanager
def sole_maker(*paths: Path) -> Iterator[list[int]]:
    """Waits until no other process makes these files or folders; who is inside looks again whether they are there.

    Where all are there already nobody waits and no file of a lock is made: the folder they are in may be read-only.
    Yields the lock's open file if there is one, for processes that must keep the lock when this one is killed. Raises
    UserError where that file cannot be made.
    """
    if all(map(is_made, paths)):
        yield []
        return
    check_may_make()
    path = paths[0].absolute()
    with ExitStack() as stack:
        lock = locked(path.with_name(f".{path.name}.lock"), f"another process prepares {path}: this one waits for it")
        try:
            held = stack.enter_context(lock)
        except OSError as error:
            raise UserError(f"cannot write {paths[0]} ({error.strerror}): give another folder, or make room") from error
        yield [held]


def is_made(path: Path) -> bool:
    """Returns whether there is such a file, or such a folder with something in it."""
    return any(path.iterdir()) if path.is_dir() else path.exists()


def _opened(lock: Path) -> int:
    return os.open(
        lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666
    )  # less the umask: who may write the folder may lock


def _must_wait(lock: int, how: int = fcntl.LOCK_EX | fcntl.LOCK_NB) -> bool:
    """Locks the open file, unless another process has it and `how` does not wait for that one."""
    try:
        fcntl.flock(lock, how)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in NOT_LOCKED:
            raise
    return False


def _is_at(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except OSError:
        return False
