"""Data that are read in a thread, beside the making of the network."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")
_only_reads: ContextVar[bool] = ContextVar("only_reads", default=False)


class NotPrepared(Exception):
    """Raised in the thread: the main thread downloads and prepares files, and tells what goes wrong."""


class ReadAhead(Generic[T]):
    """Begins to call a function in a thread, where it may read files but make none.

    Args:
        read: draws no random numbers of torch's global generator, which the network is drawn with, and uses no device.
    """

    def __init__(self, read: Callable[[], T]) -> None:
        self._values: list[T] = []
        self._thread = threading.Thread(target=self._work, args=(read,), name="data", daemon=True)
        self._thread.start()

    def _work(self, read: Callable[[], T]) -> None:
        with suppress(Exception), only_reading():  # the main thread reads again, and raises the error
            self._values.append(read())

    def value(self) -> T | None:
        """Returns what was read, once; waits for it. None later, and where the thread failed."""
        self._thread.join()
        return self._values.pop() if self._values else None


@contextmanager
def only_reading() -> Iterator[None]:
    """Has `check_may_make` raise NotPrepared in this thread."""
    token = _only_reads.set(True)
    try:
        yield
    finally:
        _only_reads.reset(token)


def check_may_make() -> None:
    """Raises NotPrepared in a thread that only reads."""
    if _only_reads.get():
        raise NotPrepared
