"""Processes that call functions of this package on RDKit's behalf, and end when their parent does.

multiprocessing is not used: fork is unsafe under CUDA and threads, and its other ways import the parent's main module,
so that every worker would load torch. Here a worker is a plain Python process that reads calls from its standard input:
it imports what the calls need and nothing else, and the end of that input, however the parent died, ends it.
"""

import os
import pickle
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

ROOT = Path(__file__).resolve().parents[2]


def cpu_count() -> int:
    """The number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class WorkerPool:
    """`workers` processes (all cores by default); a context manager whose exit ends them at once, with what they do.

    They keep the open files `keep`: a lock, so that it is not let go while one of them still does what it was given.
    """

    def __init__(self, workers: int | None = None, keep: Sequence[int] = ()) -> None:
        self.workers = workers or cpu_count()
        # Numerical libraries would start their own threads in every process.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", "from src.system.workers import serve; serve()"]
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, pass_fds=keep)
            for _ in range(self.workers)
        ]
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        for process in self._processes:
            self._idle.put(process)
        self._threads = ThreadPoolExecutor(self.workers, "molecule-worker")

    def submit(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """The future result of `function`, a module-level function of this package; its exception is raised there."""
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
            raise RuntimeError(f"a worker process ended with exit code {process.wait()} (want of memory?)") from problem
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
        """Ends the processes; results that nobody has fetched are lost."""
        for process in self._processes:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.communicate()


def serve() -> None:
    """What a worker runs: answers calls until its input ends."""
    # Ctrl-C goes to every process of the terminal, torchrun's SIGTERM to all of a rank; the parent decides.
    for asked in (signal.SIGINT, signal.SIGTERM):
        signal.signal(asked, signal.SIG_IGN)
    calls, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # What a library prints must not get between the answers.
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
            os._exit(1)  # the parent is gone, and nobody would read what an orderly exit says about that


def _next_call(calls: BinaryIO) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] | None:
    try:
        return pickle.load(calls)
    except EOFError:
        return None
