"""The ranks of a run on this machine: started by a process that has its imports done, watched, and ended together.

A rank is a fork of the launcher, which has imported what a run needs and computed nothing, or the same command again.
Either has the variables that torchrun gives its ranks, and meets the others at a store that the launcher serves.
"""

import ctypes
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from src.launch.failures import Exit, Failure, first_failure
from src.system.group import ANSWERED_FOR
from src.system.interpreter import is_command
from src.system.signals import end_with_parent, ending_signals

LOOKS_EVERY_S = 0.05
STOPPED_EVERY_S = 2.0  # looks whether a rank is stopped
NOTICING_S = 1.0  # in which ranks may notice by themselves that another has failed: they know better how they end
ENDING_S = 30.0  # that they get then
SAVING_S = 600.0  # that they get for a checkpoint and the record when they are asked to end
STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
HOST = "127.0.0.1"
NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED
_has_computed = False


class Asked(Exception):
    """A signal asked the launcher to end, and its ranks have ended."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


class RanksFailed(Exception):
    """Ranks have failed, and all have ended; `failure` caused the others."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"rank {failure.rank} failed")
        self.failure = failure


def has_computed() -> None:
    """Notes that this process trains itself: a fork would lack the threads and devices that it has from now on."""
    global _has_computed
    _has_computed = True


def may_fork() -> bool:
    """Returns whether ranks can be forks of this process: a command of ours on Linux that has computed nothing so far.

    Not so with REPRISE_PLAIN_START set.
    """
    is_plain = sys.platform != "linux" or bool(os.environ.get("REPRISE_PLAIN_START"))
    return is_command(["train.py"]) and not (is_plain or _has_computed or uses_cuda())


def is_fork() -> bool:
    """Returns whether this process is a rank that its launcher forked."""
    return multiprocessing.parent_process() is not None


def uses_cuda() -> bool:
    """Returns whether CUDA was begun here, which then works in no fork: its driver answers no question before."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:  # nothing has loaded it
        return False
    return driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != NOT_INITIALIZED


def begin_cuda(number: int = 0) -> None:
    """Begins CUDA on a visible GPU in a thread, beside the check of the config and the making of the network.

    Not so with REPRISE_PLAIN_START set.
    """
    if not os.environ.get("REPRISE_PLAIN_START"):
        threading.Thread(target=make_context, args=(number,), name="cuda", daemon=True).start()


def make_context(number: int) -> None:
    """Makes the context that torch uses later, where there is a GPU; whoever needs it meanwhile waits in the driver."""
    with suppress(OSError):  # no driver
        driver = ctypes.CDLL("libcuda.so.1")  # whose calls let other threads of Python run
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), number) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


class Origin(NamedTuple):
    """What a rank gets from the process that forks it, and puts back as it was."""

    process: int
    handlers: Mapping[int, Any]
    blocked: Collection[int]
    server: socket.socket


class Ranks:
    """The processes of one run's ranks, and the signals that ask this process to end meanwhile; a context manager.

    Args:
        work: what a rank does: it returns, or ends the process with its exit code.
    """

    def __init__(self, count: int, work: Callable[[], object]) -> None:
        self._count, self._work = count, work
        self._asked: int | None = None
        self._processes: list[BaseProcess] = []
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> "Ranks":
        self._folder = Path(tempfile.mkdtemp(prefix="ranks_"))
        if threading.current_thread() is threading.main_thread():  # others may not
            self._handlers = {number: signal.signal(number, self._signalled) for number in ending_signals()}
        try:
            with socket.create_server((HOST, 0), backlog=self._count) as server:
                self._start(server)
        except BaseException:  # a process that cannot be started, say
            self.__exit__()
            raise
        return self

    def _start(self, server: socket.socket) -> None:
        from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

        port = server.getsockname()[1]
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ending_signals())  # until a rank has its own handlers
        try:
            origin, run = Origin(os.getpid(), self._handlers, blocked, server), str(uuid.uuid4())
            for rank in range(self._count):
                arguments = origin, self._environment(rank, port, run), self._work
                process = multiprocessing.get_context("fork").Process(target=begin, args=arguments, name=f"rank {rank}")
                process.start()
                self._processes.append(process)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        # It has a thread, so not before the forks; who connects earlier waits in the socket's queue.
        self._store = TCPStore(HOST, port, is_master=True, wait_for_workers=False, master_listen_fd=server.detach())

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        shutil.rmtree(self._folder, ignore_errors=True)

    def wait(self, patience_s: float) -> None:
        """Waits until all ranks have ended; ends the others once one fails, and all when a signal asks for it.

        Args:
            patience_s: for which a rank may be stopped (SIGSTOP, a debugger) before it is killed.

        Raises RanksFailed, or Asked.
        """
        exits: dict[int, Exit] = {}
        asked, last_s = None, float("inf")
        stopped = StoppedRanks(patience_s)
        while alive := self._alive(exits):
            if self._asked is not None and asked is None:
                asked, last_s = self._asked, time.monotonic() + SAVING_S
                send(alive, asked)
            elif last_s == float("inf") and time.time() > noticed_s(exits) + NOTICING_S:
                last_s = time.monotonic() + ENDING_S
                send(alive, signal.SIGTERM)
            if time.monotonic() > last_s:
                send(alive, signal.SIGKILL)
            stopped.look(alive)
            connection.wait([process.sentinel for process in alive.values()], LOOKS_EVERY_S)
        if self._asked is not None:
            raise Asked(self._asked)
        if exits:
            raise RanksFailed(first_failure([*exits.values()], stopped.killed))

    def _alive(self, exits: dict[int, Exit]) -> dict[int, BaseProcess]:
        """Returns the ranks that go on; `exits` gets those that have ended with an error."""
        codes = [process.exitcode for process in self._processes]
        for rank, code in enumerate(codes):
            if code and rank not in exits:
                exits[rank] = Exit(rank, code, time.time(), self._error_file(rank))
        return {rank: self._processes[rank] for rank, code in enumerate(codes) if code is None}

    def _error_file(self, rank: int) -> Path:
        return self._folder / str(rank) / "error.json"

    def _environment(self, rank: int, port: int, run: str) -> dict[str, str]:
        """Returns torchrun's variables for a rank."""
        file, count = self._error_file(rank), str(self._count)
        file.parent.mkdir()
        return {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count,
            "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "MASTER_ADDR": HOST, "MASTER_PORT": str(port),
            "TORCHELASTIC_RUN_ID": run, "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_ERROR_FILE": str(file),
            ANSWERED_FOR: str(os.getpid()),
        }  # fmt: skip

    def _signalled(self, number: int, *_: object) -> None:
        self._asked = self._asked or number


class StoppedRanks:
    """Kills ranks that are found stopped for `patience_s`; time in which this process is stopped does not count.

    Attributes:
        killed: those ranks, with their patience in seconds.
    """

    def __init__(self, patience_s: float) -> None:
        self.killed: dict[int, float] = {}
        self._patience_s, self._every_s = patience_s, min(STOPPED_EVERY_S, patience_s)
        self._looks: dict[int, int] = {}
        self._next_s = time.monotonic() + self._every_s

    def look(self, ranks: Mapping[int, BaseProcess]) -> None:
        """Looks at ranks, if it is time."""
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + self._every_s
        for rank, process in ranks.items():
            with suppress(psutil.Error):  # it has ended meanwhile
                is_stopped = psutil.Process(process.pid).status() in STOPPED
                self._looks[rank] = self._looks.get(rank, 0) + 1 if is_stopped else 0
                if self._looks[rank] * self._every_s >= self._patience_s:
                    self.killed[rank] = self._patience_s
                    process.kill()


def noticed_s(exits: Mapping[int, Exit]) -> float:
    """Returns when the first of these ranks was found to have ended, in seconds since 1970; infinity for none."""
    return min((ended.noticed_s for ended in exits.values()), default=float("inf"))


def send(ranks: Mapping[int, BaseProcess], signum: int) -> None:
    """Sends a signal to ranks."""
    for process in ranks.values():
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(process.pid or 0, signum)


def begin(origin: Origin, environment: Mapping[str, str], work: Callable[[], object]) -> None:
    """Makes a fork a rank, and works."""
    os.environ |= environment
    origin.server.close()
    end_with_parent(origin.process, signal.SIGTERM)
    for number, handler in origin.handlers.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, origin.blocked)
    work()
