"""Ends a rank whose main thread hangs in device code, for example in a collective: no signal reaches Python there."""

import contextlib
import faulthandler
import math
import os
import signal
import sys
import threading
import time

from src.launch.failures import another_failed
from src.printable import tell

PATIENCE_S = 15.0  # torchrun's agent kills after 30 s
PATIENCE_AFTER_FAILURE_S = 3.0  # another rank has said why all of them end, and a collective with it never will
LOOKS_EVERY_S = 0.5
MOST_SIGNALS = 4096  # that one read takes


class Watchdog:
    """A thread that watches the main thread once a signal has arrived or `alert` was called, until `rest` is.

    If the main thread stays at one instruction for `patience_s`, it prints all stacks and ends the process; sooner and
    without a word where another rank has failed, whose error is printed. To be created in the main thread.
    """

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self.patience_s = patience_s
        self._done = threading.Event()
        self._rests, self._same_until_s = True, -math.inf
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._main = threading.get_ident()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def alert(self) -> None:
        """Starts to watch the main thread."""
        if not self._done.is_set():
            self._rests, self._same_until_s = False, -math.inf
            self._wake()

    def rest(self, same_s: float) -> None:
        """Watches no more until another signal arrives; one within `same_s` seconds is the last one again."""
        self._same_until_s = time.monotonic() + same_s
        self._rests = True

    def close(self) -> None:
        """Ends the thread; further calls do nothing."""
        if self._done.is_set():
            return
        self._done.set()
        signal.set_wakeup_fd(self._before)
        self._wake()
        self._thread.join()
        os.close(self._reader)
        os.close(self._writer)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the pipe is full: the thread is awake
            os.write(self._writer, b"!")

    def _watch(self) -> None:
        while not self._done.is_set():
            os.read(self._reader, MOST_SIGNALS)
            if time.monotonic() >= self._same_until_s:
                self._rests = False
                self._look()

    def _look(self) -> None:
        place, since_s = None, time.monotonic()
        while not self._rests and not self._done.wait(LOOKS_EVERY_S):
            # Not the frame itself, which would keep its objects alive.
            frame = sys._current_frames()[self._main]
            here, frame = (id(frame), frame.f_lasti), None
            if here != place:
                place, since_s = here, time.monotonic()
            elif (waited_s := time.monotonic() - since_s) > min(self.patience_s, PATIENCE_AFTER_FAILURE_S):
                if another_failed():
                    os._exit(128 + signal.SIGTERM)
                if waited_s > self.patience_s:
                    self._end()

    def _end(self) -> None:
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and not distributed.is_initialized():
            tell("error: this rank was asked to end while it waited for the others to start")
        else:
            tell(f"error: this rank was asked to end and hung for {self.patience_s:g} s, perhaps in a collective:")
            faulthandler.dump_traceback()
        sys.stderr.flush()
        os._exit(128 + signal.SIGTERM)
