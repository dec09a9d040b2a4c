"""Worker processes that call functions of this package and end when their parent does.

multiprocessing is not used: fork is unsafe under CUDA and threads, and its other ways import the parent's main module,
so that every worker would load torch. Here a worker is a plain Python process that reads calls from its standard input:
it imports what the calls need and nothing else, and the end of that input, however the parent died, ends it.
"""

import ctypes
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

ROOT = Path(__file__).resolve().parents[2]
PR_SET_PDEATHSIG = 1


def cpu_count() -> int:
    """Returns the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class WorkerPool:
    """Worker processes, one per core by default; a context manager whose exit kills them.

    Args:
        workers: number of processes.
        keep: file descriptors that the workers inherit: a lock then lasts until the last worker has ended.
    """

    def __init__(self, workers: int | None = None, keep: Sequence[int] = ()) -> None:
        self.workers = workers or cpu_count()
        # Numerical libraries would start their own threads in every process.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "OMP_NUM_THREADS": "1"}
        # Linux counts the thread that starts a process as its parent: any but the main one may end before this process.
        parent = os.getpid() if threading.current_thread() is threading.main_thread() else None
        command = [sys.executable, "-c", f"from src.system.workers import serve; serve({parent})"]
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, pass_fds=keep)
            for _ in range(self.workers)
        ]
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        for process in self._processes:
            self._idle.put(process)
        self._threads = ThreadPoolExecutor(self.workers, "molecule-worker")

    def submit(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Returns the future result of a module-level function of this package; the future raises its exception."""
        return self._threads.submit(self._call, function, args, kwargs)

    def _call(self, function: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        process = self._idle.get()
        assert process.stdin is not None and process.stdout is not None
        try:
            pickle.dump((function, args, kwargs), process.stdin, pickle.HIGHEST_PROTOCOL)
            process.stdin.flush()
            result, error = pickle.load(process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError) as problem:
            process.kill()
            raise RuntimeError(f"a worker process ended with exit code {process.wait()} (lack of memory?)") from problem
        finally:
            self._idle.put(process)
        if error is not None:
            raise error
        return result

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


def end_with_parent(parent: int, signum: signal.Signals) -> None:
    """Lets Linux send this process a signal when its parent dies, however it does and whatever this one is doing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signum)
        if os.getppid() != parent:
            os.kill(os.getpid(), signum)


def serve(parent: int | None = None) -> None:
    """Runs in a worker: answers calls until its input ends; amid a call it is killed when its parent dies."""
    if parent is not None:
        end_with_parent(parent, signal.SIGKILL)
    # Ctrl-C reaches every process of the terminal, and torchrun's SIGTERM a rank's children; the parent decides.
    for asked in (signal.SIGINT, signal.SIGTERM):
        signal.signal(asked, signal.SIG_IGN)
    calls, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # A library's output must not mix with the answers.
    os.dup2(2, 1)
    while (call := _next_call(calls)) is not None:
        function, args, kwargs = call
        try:
            answer = (function(*args, **kwargs), None)
        except Exception as error:
            answer = (None, error)
        try:
            pickle.dump(answer, answers, pickle.HIGHEST_PROTOCOL)
            answers.flush()
        except BrokenPipeError:
            os._exit(1)  # the parent is gone: an orderly exit would only print about it


def _next_call(calls: BinaryIO) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] | None:
    try:
        return pickle.load(calls)
    except EOFError:
        return None
