"""Runs commands in forked processes that have torch and this project imported already, several at a time."""

import atexit
import gc
import multiprocessing.util
import os
import runpy
import signal
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch

from tests.support import ROOT

NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"  # torch.cuda.is_available() does not touch the driver, so that forks may
TIMED_OUT = 124
LAST_S = 20.0  # that a case takes at least
NOTICE_S = 0.02  # between looks at the processes


@dataclass(frozen=True)
class Command:
    """A command of an entry point, the file for what it prints, and its limits."""

    script: str
    overrides: tuple[str, ...]
    log: Path
    timeout_s: float
    gpus: int = 1


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    seconds: float
    log: Path

    @property
    def printed(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    @property
    def error_line(self) -> str:
        """The line of a user's mistake, without its mark; "" without one."""
        lines = [line for line in self.printed.splitlines() if line.startswith("error: ")]
        return lines[-1].removeprefix("error: ") if lines else ""


Work = Generator[Command, Ended, None]  # the commands of one case, in order; it is sent how each ended


@dataclass
class Running:
    work: Work
    command: Command
    begin_s: float
    cores: frozenset[int]


def import_all() -> None:
    """Imports what every command needs, before the first fork."""
    os.environ[NVML_CHECK] = "1"
    from src import patches
    from src.system.loading import loading

    patches.install()
    with loading():
        import src.predict
        import src.prepare
        import src.run
        import src.train
        import src.models.distilbert.task  # isort: skip
        import src.models.dlrm.task
        import src.models.mobilenet_v1.task
        import src.models.moflow.task
        import src.models.se3_transformer.task  # noqa: F401


def run_all(works: Iterable[Work], at_once: int, end_s: float, fork: bool = True, last_s: float = LAST_S) -> None:
    """Runs the commands of each work in order, those of `at_once` works at a time.

    At `end_s` of time.monotonic it kills those that run; no work begins in the last `last_s` before.
    """
    waiting, running, free = deque(works), dict[int, Running](), shares_of_cores(at_once)
    while waiting or running:
        while waiting and free and time.monotonic() < end_s - last_s:
            work = waiting.popleft()
            _go_on(running, free, free.pop(), work, lambda work=work: next(work), fork)
        if not running:
            break
        for pid in list(running):
            ended = _ended(pid, running[pid])
            if ended is not None:
                run = running.pop(pid)
                _go_on(running, free, run.cores, run.work, lambda run=run, ended=ended: run.work.send(ended), fork)
        if time.monotonic() > end_s:
            for pid in running:
                kill(pid)
            break
        time.sleep(NOTICE_S)


def shares_of_cores(at_once: int) -> list[frozenset[int]]:
    """Returns the cores of each process: a run has worker processes and threads for all that it may use."""
    cores = sorted(os.sched_getaffinity(0))
    return [frozenset(cores[number % len(cores) :: at_once]) for number in range(at_once)]


def _go_on(
    running: dict[int, Running],
    free: list[frozenset[int]],
    cores: frozenset[int],
    work: Work,
    advance: Callable[[], Command],
    fork: bool,
) -> None:
    """Starts the next command of a work on its cores; gives them back if there is none."""
    try:
        command = advance()
    except StopIteration:
        free.append(cores)
        return
    running[start(command, fork, cores)] = Running(work, command, time.monotonic(), cores)


def _ended(pid: int, run: Running) -> Ended | None:
    """Returns how a process ended, which is killed with its own processes when its time is over; None if it runs."""
    seconds = time.monotonic() - run.begin_s
    ended_pid, status = os.waitpid(pid, os.WNOHANG)
    if ended_pid:
        code = os.waitstatus_to_exitcode(status)
    elif seconds > run.command.timeout_s:
        kill(pid)
        code = TIMED_OUT
    else:
        return None
    return Ended(code, time.monotonic() - run.begin_s, run.command.log)


def kill(pid: int) -> None:
    """Kills a process with its own processes, and waits for it."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:  # it was just started: it has no group yet, nor processes
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def start(command: Command, fork: bool = True, cores: frozenset[int] = frozenset()) -> int:
    """Starts a command in a process group of its own, on some cores or all; returns its process id."""
    command.log.parent.mkdir(parents=True, exist_ok=True)
    command.log.write_bytes(b"")  # a process that is killed at once leaves a log too
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        try:
            os.sched_setaffinity(0, cores or os.sched_getaffinity(0))
            _become(command, fork)
        finally:
            os._exit(70)
    return pid


def _become(command: Command, fork: bool) -> NoReturn:
    """Runs a command in this process, which is a copy of the one that started it, and ends it."""
    os.setsid()
    # torch took a thread for each core of its parent; on fewer cores they wait for each other.
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    forget_exit_functions()
    os.environ.pop(NVML_CHECK, None)
    out = os.open(command.log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(out, stream)
    sys.stdout, sys.stderr = (os.fdopen(stream, "w", buffering=1, closefd=False) for stream in (1, 2))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(ROOT)
    arguments = [str(ROOT / command.script), *command.overrides]
    if not fork:
        os.execv(sys.executable, [sys.executable, *arguments])
    gc.enable()
    sys.argv[:] = [command.script, *command.overrides]
    code = 0
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def forget_exit_functions() -> None:
    """Drops what the process that forked this one does at its exit, such as removing its temporary folders."""
    atexit._clear()
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    atexit.register(weakref.finalize._exitfunc)  # type: ignore[attr-defined]
    atexit.register(multiprocessing.util._exit_function)  # type: ignore[attr-defined]


def can_fork(folder: Path) -> bool:
    """Returns whether a forked process can use the GPU; imports may have touched its driver."""
    probe = Command("tests/options/probe.py", (), folder / "probe.txt", 60.0)
    pid, begin_s = start(probe), time.monotonic()
    run = Running((_ for _ in ()), probe, begin_s, frozenset())  # type: ignore[arg-type]
    while (ended := _ended(pid, run)) is None:
        time.sleep(NOTICE_S)
    return ended.code == 0
