"""Ends a rank that waits for another one that will not come, as device code does: no signal reaches Python there."""

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time

PATIENCE_S = 15.0  # torchrun's agent kills after 30
LOOKS_EVERY_S = 0.5


class Watchdog:
    """A thread that sleeps until a signal arrives or `alert` is called; then the main thread has to move.

    If that stands at one place for `patience_s`, all stacks are printed and the process ends. Main thread only.
    """

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self.patience_s = patience_s
        self._done = threading.Event()
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._main = threading.get_ident()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def alert(self) -> None:
        """Begins to watch the main thread."""
        if not self._done.is_set():
            self._wake()

    def close(self) -> None:
        """Ends the thread; may be called again."""
        if self._done.is_set():
            return
        self._done.set()
        signal.set_wakeup_fd(self._before)
        self._wake()
        self._thread.join()
        os.close(self._reader)
        os.close(self._writer)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full, so it is awake
            os.write(self._writer, b"!")

    def _watch(self) -> None:
        os.read(self._reader, 1)
        place, since_s = None, time.monotonic()
        while not self._done.wait(LOOKS_EVERY_S):
            # Not the frame itself: it would keep all that the main thread holds alive.
            frame = sys._current_frames()[self._main]
            here, frame = (id(frame), frame.f_lasti), None
            if here != place:
                place, since_s = here, time.monotonic()
            elif time.monotonic() - since_s > self.patience_s:
                self._end()

    def _end(self) -> None:
        print(f"error: asked to end, this rank hung for {self.patience_s:g} s, in wait of another? It was here:",
              file=sys.stderr)  # fmt: skip
        faulthandler.dump_traceback()
        sys.stderr.flush()
        os._exit(128 + signal.SIGTERM)
