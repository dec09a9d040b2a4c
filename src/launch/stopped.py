"""Ends ranks that somebody or something has stopped (SIGSTOP, a debugger) while the others wait for them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

LOOKS_EVERY_S = 2.0


@contextmanager
def stopped_ranks_ended(patience_s: float) -> Iterator[dict[int, float]]:
    """Kills a rank, a child of this process, that is found stopped for `patience_s` seconds.

    Yields what is filled on the way: the killed ranks with their patience. Where this process is stopped too, as by
    Ctrl-Z, that time does not count.
    """
    ended: dict[int, float] = {}
    done = threading.Event()

    def watch() -> None:
        looks: dict[psutil.Process, int] = {}
        while not done.wait(min(LOOKS_EVERY_S, patience_s)):
            for process in psutil.Process().children():
                try:
                    is_stopped = process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
                    looks[process] = looks.get(process, 0) + 1 if is_stopped else 0
                    if looks[process] * LOOKS_EVERY_S >= patience_s:
                        ended[int(process.environ()["RANK"])] = patience_s
                        process.kill()
                except (psutil.Error, KeyError):  # it has ended, or is no rank
                    continue

    thread = threading.Thread(target=watch, name="stopped ranks", daemon=True)
    thread.start()
    try:
        yield ended
    finally:
        done.set()
        thread.join()
