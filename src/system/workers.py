"""Worker processes that call functions of this package and end when their parent does.

multiprocessing is not used: fork is unsafe under CUDA and threads, and its other ways import the parent's main module,
so that every worker would load torch. Here a worker is a plain Python process that reads calls from its standard input:
it imports what the calls need and nothing else, and the end of that input, however the parent died, ends it.
"""

import math
import os
import pickle
import queue
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, ParamSpec, TypeVar

from src.system.interpreter import python, safe_path
from src.system.pipes import outlive_readers
from src.system.signals import ENDING, end_with_parent

P = ParamSpec("P")
R = TypeVar("R")

LENGTH = struct.Struct("<Q")  # of a message, before it
ENDING_S = 10.0  # for a worker that sends no more, to end by itself


def cpu_count() -> int:
    """Returns the number of cores this process may use: of its affinity, and of the limits of its cgroup, if less."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([allowed, *(max(1, math.ceil(quota)) for quota in cgroup_quotas())])


def cgroup_quotas(root: Path = Path("/")) -> Iterator[float]:
    """Yields the cores that this process's cgroups, and those above them, grant it, where they have a limit.

    Args:
        root: the folder with `proc` and `sys`.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # no Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        group = root / "sys/fs/cgroup" / controllers / path.lstrip("/")
        for folder in (group, *group.parents):
            try:
                if controllers:
                    quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
                else:
                    quota, period = (folder / "cpu.max").read_text().split()
            except (OSError, ValueError):
                continue
            if quota.strip() not in ("max", "-1"):
                yield int(quota) / int(period)


class WorkerPool:
    """Worker processes, one per core by default; a context manager whose exit kills them.

    Args:
        workers: number of processes.
        keep: file descriptors that the workers inherit: a lock then lasts until the last worker has ended.
        niceness: added to this process's; with 19 a worker runs on cores that nothing else wants.
    """

    def __init__(self, workers: int | None = None, keep: Sequence[int] = (), niceness: int = 0) -> None:
        self.workers = workers or cpu_count()
        # Numerical libraries would start their own threads in every process.
        environment = os.environ | safe_path(sys.path) | {"OMP_NUM_THREADS": "1"}
        # Linux counts the thread that starts a process as its parent: any but the main one may end before this process.
        parent = os.getpid() if threading.current_thread() is threading.main_thread() else None
        command = python("-c", f"from src.system.workers import serve; serve({parent}, {niceness})")
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, pass_fds=keep)
            for _ in range(self.workers)
        ]
        self._alive, self._lock = self.workers, threading.Lock()
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes] | None] = queue.SimpleQueue()  # None: all have ended
        for process in self._processes:
            self._idle.put(process)
        self._threads = ThreadPoolExecutor(self.workers, "worker")

    def submit(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Returns the future result of a module-level function of this package; the future raises its exception."""
        return self._threads.submit(self._call, function, args, kwargs)

    def _call(self, function: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        call = pickle.dumps((function, args, kwargs), pickle.HIGHEST_PROTOCOL)
        process = self._idle.get()
        if process is None:
            self._idle.put(None)  # for the next call
            raise RuntimeError("all worker processes have ended; why, the errors of the calls before say")
        assert process.stdin is not None and process.stdout is not None
        try:
            _send(process.stdin, call)
            answer = _received(process.stdout)
        except OSError:
            answer = None
        if answer is None:
            self._count_ended()
            raise RuntimeError(f"a worker process ended while it ran {name_of(function)}: {cause_of_end(process)}")
        self._idle.put(process)
        try:
            result, error = pickle.loads(answer)
        except Exception as problem:
            text = f"{type(problem).__name__}: {problem}"
            raise RuntimeError(f"what {name_of(function)} returned or raised cannot be unpickled ({text})") from problem
        if error is not None:
            raise error
        return result

    def _count_ended(self) -> None:
        """Counts a worker that has ended; calls that wait for one must not do so where none is left."""
        with self._lock:
            self._alive -= 1
            if not self._alive:
                self._idle.put(None)

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kills the processes; results that were not fetched are lost."""
        for process in self._processes:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.communicate()


def serve(parent: int | None = None, niceness: int = 0) -> None:
    """Runs in a worker: answers calls until its input ends; amid a call it is killed when its parent dies."""
    os.nice(niceness)
    if parent is not None:
        end_with_parent(parent, signal.SIGKILL)
    # Ctrl-C reaches every process of the terminal, and SLURM's signals all of a job; the parent decides.
    for asked in ENDING:
        signal.signal(asked, signal.SIG_IGN)
    calls, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # A library's output must not mix with the answers.
    os.dup2(2, 1)
    outlive_readers()
    while (call := _received(calls)) is not None:
        try:
            _send(answers, _answer(call))
        except BrokenPipeError:
            os._exit(1)  # the parent is gone: an orderly exit would only print about it


def _answer(call: bytes) -> bytes:
    """Returns the pickled pair of a call's result and error, one of which is None."""
    try:
        function, args, kwargs = pickle.loads(call)
        answer = (function(*args, **kwargs), None)
    except Exception as error:
        function, answer = type(error), (None, error)
    try:
        return pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
    except Exception as problem:
        what, text = "raised" if answer[1] is not None else "returned", f"{type(problem).__name__}: {problem}"
        error = RuntimeError(f"what {name_of(function)} {what} cannot be pickled ({text})")
        return pickle.dumps((None, error), pickle.HIGHEST_PROTOCOL)


def _send(pipe: IO[bytes], message: bytes) -> None:
    """Writes the message and its length, so that its reader knows where it ends whatever is in it."""
    pipe.write(LENGTH.pack(len(message)))
    pipe.write(message)
    pipe.flush()


def _received(pipe: IO[bytes]) -> bytes | None:
    """Returns the next message; None where the sender has ended, also amid a message."""
    length = pipe.read(LENGTH.size)
    if len(length) < LENGTH.size:
        return None
    message = pipe.read(LENGTH.unpack(length)[0])
    return message if len(message) == LENGTH.unpack(length)[0] else None


def name_of(function: Any) -> str:
    return getattr(function, "__qualname__", str(function))


def cause_of_end(process: subprocess.Popen[bytes]) -> str:
    """Returns how a worker ended that sends no more; kills it where it goes on without."""
    try:
        code = process.wait(ENDING_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return "it closed its output"
    if code >= 0:
        return f"exit code {code}"
    hint = " (lack of memory?)" if code == -signal.SIGKILL else ""
    return f"killed by {signal.Signals(-code).name}{hint}"
