"""Runs commands of this project as forks of a process that has imported what they need: 3 s less for each.

As ranks are forks of `train.py`'s launcher, a command is a fork of a server, which has one thread and has computed
nothing. Modules may read variables when they are imported, so each environment has a server of its own. A fork is no
new interpreter in this: its hashes have the seed of the others, and /proc/PID/cmdline is the server's. So tests of how
an interpreter starts, of what is imported, or of bits that two processes compute start real processes.
"""

import atexit
import gc
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from select import select
from signal import SIGKILL
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
IMPORTED = (
    "src.train", "src.run", "src.predict", "src.models.distilbert.task", "src.models.dlrm.task",
    "src.models.dlrm.torchrec_tables", "src.models.mobilenet_v1.task", "src.models.moflow.task",
    "src.models.se3_transformer.task",
)  # fmt: skip
VOLATILE = "PYTEST_CURRENT_TEST"  # names a test, for people
SERVERS = 2  # that wait at once
NUMBER = struct.Struct("<i")


class Server:
    """The process that forks commands, with `environment`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._owner = os.getpid()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                cwd=ROOT, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def close(self) -> None:
        """Ends the server, whose commands go on; a fork of this process leaves it to this one."""
        if os.getpid() == self._owner:
            self.socket.shutdown(socket.SHUT_RDWR)
            self.socket.close()
            self._process.wait()


_servers: dict[frozenset[tuple[str, str]], Server] = {}  # the one that was asked last is the last


def usual() -> dict[str, str]:
    """Returns the variables of this process with which a command finds the project, and no SLURM."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "HYDRA"))}
    return others | {"PYTHONPATH": str(ROOT)}


def server_of(environment: Mapping[str, str]) -> Server:
    """Returns the server of an environment, which is started if need be."""
    key = frozenset(environment.items())
    _servers[key] = _servers.pop(key, None) or Server(environment)
    while len(_servers) > SERVERS:
        _servers.pop(next(iter(_servers))).close()
    return _servers[key]


@atexit.register
def close() -> None:
    """Ends all servers."""
    while _servers:
        _servers.popitem()[1].close()


class Command:
    """`python SCRIPT ARGUMENTS` with a pipe for its stdout and its stderr, used as a subprocess.Popen.

    Args:
        env: its variables, those of `usual` if not given.
        group: in a session of its own.
    """

    def __init__(
        self, *words: str, cwd: Path = ROOT, env: Mapping[str, str] | None = None, group: bool = False
    ) -> None:
        environment = {name: value for name, value in (env or usual()).items() if name != VOLATILE}
        self.args, self.returncode = words, None
        self._status, status = socket.socketpair()
        (out, to_out), (err, to_err) = os.pipe(), os.pipe()
        self.stdout, self.stderr = (open(end, encoding="utf-8", errors="replace") for end in (out, err))  # noqa: SIM115
        request = json.dumps({"words": words, "cwd": str(cwd), "group": group})
        with status, open(os.devnull) as nothing:
            streams = [nothing.fileno(), to_out, to_err, status.fileno()]
            try:
                socket.send_fds(server_of(environment).socket, [request.encode()], streams)
            finally:
                os.close(to_out)
                os.close(to_err)
        self.pid = self._number()

    def _number(self) -> int:
        """Returns the next number of the process that waits for the command: its id, then its exit code."""
        data = self._status.recv(NUMBER.size, socket.MSG_WAITALL)
        if len(data) < NUMBER.size:
            raise ChildProcessError(f"no command was started, or nothing waits for it: {' '.join(self.args)}")
        return NUMBER.unpack(data)[0]

    def poll(self) -> int | None:
        """Returns the exit code; None while the command runs."""
        return self._wait(0)

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None and select([self._status], [], [], timeout)[0]:
            self.returncode = self._number()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal to the command, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Returns what the command printed, once nothing can print any more. Raises subprocess.TimeoutExpired."""
        with ThreadPoolExecutor(2) as pool:
            reading = [pool.submit(stream.read) for stream in (self.stdout, self.stderr)]
            is_late = bool(wait(reading, timeout).not_done)
            if is_late:
                self.kill()  # else the threads would wait on
        self._wait(None)
        self.close()
        if is_late:
            raise subprocess.TimeoutExpired(list(self.args), timeout or 0)
        return reading[0].result(), reading[1].result()

    def close(self) -> None:
        for file in (self.stdout, self.stderr, self._status):
            file.close()


def run(
    *words: str, cwd: Path = ROOT, env: Mapping[str, str] | None = None, timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs `python SCRIPT ARGUMENTS`, as subprocess.run with captured texts."""
    command = Command(*words, cwd=cwd, env=env)
    out, err = command.communicate(timeout)
    assert command.returncode is not None
    return subprocess.CompletedProcess(words, command.returncode, out, err)


def serve(asked: socket.socket) -> dict[str, Any] | None:
    """Forks commands until nobody can ask any more. Returns None then, and in each fork what it is to run."""
    while True:
        try:
            request, streams, _, _ = socket.recv_fds(asked, 1 << 20, 4)
        except KeyboardInterrupt:
            return None
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # those that have told how their commands ended
                pass
        if not request:
            return None
        if os.fork() == 0:
            asked.close()
            return fork_command(json.loads(request), streams)
        for stream in streams:
            os.close(stream)


def fork_command(request: dict[str, Any], streams: list[int]) -> dict[str, Any]:
    """Returns in the fork that becomes the command; this process tells how that ends."""
    status = streams.pop()
    if (command := os.fork()) == 0:
        os.close(status)
        if request["group"]:
            os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        return request
    for stream in streams:
        os.close(stream)
    os.write(status, NUMBER.pack(command))
    code = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
    with suppress(OSError):  # nobody waits
        os.write(status, NUMBER.pack(code))
    os._exit(0)


def become(words: list[str], cwd: str) -> None:
    """Runs a script as Python runs the one that it was started with."""
    os.chdir(cwd)
    script = Path(words[0]).resolve()
    sys.argv, sys.orig_argv = words, [sys.executable, *words]
    if not sys.flags.safe_path:
        sys.path[0] = str(script.parent)
    module = ModuleType("__main__")
    module.__file__ = str(script)
    sys.modules["__main__"] = module
    exec(compile(script.read_bytes(), script, "exec"), module.__dict__)


if __name__ == "__main__":
    if not sys.flags.safe_path:
        sys.path[0] = str(ROOT)
    import_module("src.patches").install()
    for name in IMPORTED:
        import_module(name)
    gc.collect()
    gc.freeze()
    assert len(os.listdir("/proc/self/task")) == 1, "a fork would lack the threads that an import began"
    if (request := serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        become(request["words"], request["cwd"])
