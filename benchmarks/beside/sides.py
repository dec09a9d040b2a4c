"""The parent's end: starts a side's process, gives it turns, and keeps what it answers."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.beside.cases import Case, Peer, is_of_data
from benchmarks.beside.link import HANDLE
from benchmarks.beside.ours import CALLBACK
from src.measure.sources import ROOT

OURS = "Reprise"
POLL_S, ENDING_S = 0.05, 60.0


class SideFailedError(Exception):
    """A side ended or did not answer; the message is one line."""


@dataclass
class Side:
    """One side of a case, with its process.

    `rounds` has, for each turn that counted, steps, samples, seconds, step_s and the state of the GPU.
    """

    name: str
    command: list[str]
    log: Path
    process: subprocess.Popen[bytes]
    connection: Connection
    about: dict[str, Any] = field(default_factory=dict)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None
    ended: dict[str, Any] = field(default_factory=dict)

    def ask(self, message: dict[str, Any] | None, key: str | None, limit_s: float) -> dict[str, Any]:
        """Sends a message, if one is given, and returns the answer, or what it has at `key`."""
        try:
            if message is not None:
                self.connection.send(message)
            until = time.monotonic() + limit_s
            while not self.connection.poll(POLL_S):
                if time.monotonic() > until:
                    raise SideFailedError(f"no answer within {limit_s:.0f} s")
                if self.process.poll() is not None and not self.connection.poll(0):
                    raise EOFError
            answer = self.connection.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise SideFailedError(f"ended with exit code {self._exit_code()}: {self._last_line()}") from None
        if "error" in answer:
            raise SideFailedError(answer["error"])
        return answer if key is None else answer[key]

    def _exit_code(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(ENDING_S)
        return None

    def _last_line(self) -> str:
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip()[:400] if lines else "it printed nothing"

    def end(self, limit_s: float = ENDING_S) -> None:
        """Ends the process, which writes its record first where all went well; does nothing a second time."""
        if self.connection.closed:
            return
        with suppress(SideFailedError, KeyError):
            if self.error is None:
                self.ended = self.ask({}, "ended", limit_s)
        self.connection.close()
        if self.error is None:
            self._exit_code()
        with suppress(ProcessLookupError):  # with its compilers' and loaders' processes
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@dataclass(frozen=True)
class Wanted:
    """What the command line asks for: see `python -m benchmarks.beside --help`."""

    out: Path
    rounds: int
    seconds: float
    steps: int | None
    tiny: bool
    reference: Path | None
    options: list[str]
    limit_s: float


def our_command(case: Case, wanted: Wanted, folder: Path) -> list[str]:
    """Returns the command of our side: train.py with a callback, or predict.py in turns."""
    folders = [f"output_dir={folder / 'ours'}", f"output_root={folder / 'hydra'}"]
    options = [*case.command(wanted.tiny), *wanted.options, *folders]
    if case.kind == "train":
        return [sys.executable, "train.py", *options, CALLBACK]
    if case.kind == "predict":
        return [sys.executable, "-m", "benchmarks.beside.ours", *options]
    return peer_command(case, Peer(OURS, "convolution:ours"), wanted)


def peer_command(case: Case, peer: Peer, wanted: Wanted) -> list[str]:
    asked = {
        "model": case.model,
        "case": case.name,
        "function": peer.prepare,
        "variant": peer.variant,
        "reference": str(wanted.reference) if wanted.reference else None,
        "tiny": wanted.tiny,
        "data": [*case.data(wanted.tiny), *filter(is_of_data, wanted.options)],
    }
    return [sys.executable, "-m", "benchmarks.beside.peer", json.dumps(asked)]


def start(name: str, command: list[str], log: Path) -> Side:
    """Starts a side's process; what it prints goes to the log."""
    here, there = socket.socketpair()
    environment = os.environ | {HANDLE: str(there.fileno()), "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with log.open("wb") as file:
        file.write(f"{shlex.join(command)}\n".encode())
        file.flush()
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, pass_fds=[there.fileno()], stdin=subprocess.DEVNULL,
            stdout=file, stderr=subprocess.STDOUT, process_group=0,
        )  # fmt: skip
    there.close()
    return Side(name, command, log, process, Connection(here.detach()))
