"""Kills runs, goes on with them, and compares to the last bit with a run that nothing disturbed.

    python -m tests.reliability.kills 100                  # kills of each model, on one core
    python -m tests.reliability.kills 20 moflow dlrm --seed 3
    python -m tests.reliability.kills 100 mobilenet_v1 --ranks 2

A run is a fork of this process, which has loaded what takes seconds to load, and executes train.py; with several ranks
one fork each, of which a random one is killed, and the others are terminated then, as by torchrun. It is killed at a
random time, before a random one of its file operations (open for writing, rename, remove, mkdir), or before it writes
its record, then started again with `resume=true`, and so on; a run in five is left alone to its end. The chains of
kills end after three epochs and by early stopping in turn. Then the last and best checkpoint, final metric and files
must be those of the undisturbed run, and the same command once more must change nothing. Prints a line for each model;
exits with 1 where one differs.
"""

import tests.support.patched_start  # noqa: F401, I001

import argparse
import atexit
import json
import os
import random
import runpy
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytorch_lightning  # noqa: F401  # each run would load it for seconds
import torch

import src.train  # noqa: F401
from tests.support import ROOT, tiny_distilbert, tiny_dlrm, tiny_mobilenet, tiny_run, tiny_se3
from tests.support.ranks_contract import as_rank
from tests.support.same import assert_same_bits, lasting_state

MODELS: dict[str, Callable[[Path], list[str]]] = {
    "moflow": tiny_run.tiny_overrides,
    "se3_transformer": tiny_se3.tiny_overrides,
    "distilbert": tiny_distilbert.tiny_overrides,
    "dlrm": tiny_dlrm.tiny_overrides,
    "mobilenet_v1": tiny_mobilenet.tiny_overrides,
}
ALWAYS = "fit.checkpoint_every_n_steps=3", "resume=true"
ENDINGS = {
    "epochs": ("fit.max_epochs=3", "fit.eval_every_n_epochs=1"),
    "plateau": (
        *("fit.max_epochs=9", "fit.stop_after_plateau=1", "fit.eval_every_n_epochs=null", "fit.eval_every_n_steps=3"),
    ),
}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
LIMIT_S = 120.0  # of a run that hangs


class Kill(NamedTuple):
    """How a run is ended: signals after `seconds`, or SIGKILL before the file operation with the number `operation`.

    `at_record`: SIGKILL before its record, after its last checkpoint. `rank`: which one SIGKILL is for.
    """

    signals: tuple[signal.Signals, ...] = ()
    seconds: float = 0.0
    operation: int | None = None
    at_record: bool = False
    rank: int = 0

    @property
    def kind(self) -> str:
        if self.at_record:
            return "record"
        return "file" if self.operation is not None else " ".join(sent.name for sent in self.signals)


KINDS: tuple[tuple[str | signal.Signals, ...], ...] = (
    *(("file",), ("record",), (signal.SIGKILL,), (signal.SIGTERM,), (signal.SIGINT,), (signal.SIGINT, signal.SIGINT)),
)


def writes(event: str, arguments: tuple[Any, ...]) -> bool:
    """Returns whether an audit event is a file operation that leaves something on disk but Python's bytecode."""
    if arguments and (isinstance(arguments[0], int) or "__pycache__" in str(arguments[0])):
        return False  # a descriptor that is open already; what only the first run of a checkout writes
    if event == "open":
        return isinstance(arguments[2], int) and bool(arguments[2] & WRITING)
    return event in ("os.rename", "os.remove", "os.mkdir")


def train_py(overrides: Sequence[str]) -> None:
    sys.argv = ["train.py", *overrides]
    runpy.run_path(str(ROOT / "train.py"), run_name="__main__")


def execute(
    act: Callable[[], None],
    log: Path,
    kill: Kill,
    count: Path | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Does something in this process, a fork, and leaves it; `count` gets the number of file operations."""
    seen = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if writes(event, arguments):
            seen += 1
            is_record = event == "os.rename" and Path(os.fsdecode(arguments[1])).name == "result.json"
            if seen == kill.operation or (kill.at_record and is_record):
                os.kill(os.getpid(), signal.SIGKILL)

    code = 1
    try:
        os.setsid()
        os.environ |= environment
        with log.open("a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        torch.set_num_threads(1)
        sys.addaudithook(hook)
        act()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException as error:
        is_early = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # before the first line of a command
        if is_early and isinstance(error, KeyboardInterrupt):
            code = 128 + signal.SIGINT
        else:
            traceback.print_exc()
    finally:
        total = seen
        atexit._run_exitfuncs()
        sys.stdout.flush()
        if count is not None:
            count.write_text(str(total))
        os._exit(code)


def run(
    act: Callable[[], None],
    log: Path,
    kill: Kill = Kill(),  # noqa: B008
    count: Path | None = None,
    ranks: int = 1,
) -> tuple[list[int], float]:
    """Returns the exit code of each rank's fork, negative for a signal, and their seconds. Raises TimeoutError."""
    begun = time.monotonic()
    environments: list[dict[str, str]] = [{}] if ranks == 1 else environments_of(ranks)
    alive: dict[int, int] = {}
    for rank, environment in enumerate(environments):
        process = os.fork()
        if process == 0:
            is_killed = rank == kill.rank or kill.at_record
            execute(act, log, kill if is_killed else Kill(), count if rank == 0 else None, environment)
        alive[rank] = process
    codes = [0] * ranks
    due, left, is_told = begun + kill.seconds, list(kill.signals), False
    while alive:
        for rank, process in list(alive.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                codes[rank] = os.waitstatus_to_exitcode(status)
                del alive[rank]
        now = time.monotonic()
        if left and now >= due:
            number = left.pop(0)
            targets = [kill.rank] if number == signal.SIGKILL else [*alive]  # the others as a terminal sends them
            for rank in set(targets) & alive.keys():
                os.kill(alive[rank], number)
            due = now + 0.3  # the next signal: another wish, not the same one twice
        if any(codes) and not is_told:
            is_told = True
            for process in alive.values():  # as torchrun does where a rank has failed
                os.kill(process, signal.SIGTERM)
        if now > begun + LIMIT_S:
            for process in alive.values():
                os.killpg(process, signal.SIGKILL)
                os.waitpid(process, 0)
            raise TimeoutError(f"a run did not end within {LIMIT_S:.0f} s: {log}")
        time.sleep(0.005)
    return codes, time.monotonic() - begun


def environments_of(ranks: int) -> list[dict[str, str]]:
    """Returns the environment of each rank, as torchrun sets it."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = str(probe.getsockname()[1])
    return [as_rank(rank, ranks) | {"MASTER_PORT": port} for rank in range(ranks)]


def what_is_left(folder: Path) -> dict[str, Any]:
    """Returns what must be the same after a run, however often it was ended on the way."""
    record = json.loads((folder / "result.json").read_text())
    return {
        "status": record["status"],
        "final_metric": record["final_metric"],
        "samples": record["samples"],
        "history": [{name: row[name] for name in row if not is_of_time(name)} for row in record["history"]],
        "files": sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()),
        **{name: lasting_state(folder / "checkpoints" / f"{name}.ckpt") for name in ("last", "best")},
    }


def is_of_time(name: str) -> bool:
    return name in ("time_s", "seconds") or name.endswith("_per_s")


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def kill_often(model: str, home: Path, kills: int, seed: int, ranks: int = 1) -> Counter[str]:
    """Returns how many kills of each kind a model's runs survived. Raises AssertionError where anything differs."""
    rng = random.Random(f"{model} {seed}")
    survived: Counter[str] = Counter()
    endings = [Chains(model, home, ending, ranks) for ending in ENDINGS]
    chain = 0
    while survived.total() < kills:
        survived += endings[chain % len(endings)].chain(f"chain_{chain}", rng, kills - survived.total())
        chain += 1
    return survived


class Chains:
    """Runs of a model that end in one way, and what an undisturbed one leaves."""

    def __init__(self, model: str, home: Path, ending: str, ranks: int) -> None:
        self.name, self.home, self.ranks = f"{model}, {ending}", home, ranks
        self.log, count = home / f"{ending}.txt", home / "count"
        topology = [] if ranks == 1 else [f"trainer=1x{ranks}"]
        self.overrides = [*MODELS[model](home), *topology, *ALWAYS, *ENDINGS[ending]]
        for name in ("straight", "again"):  # the second one with prepared data
            codes, self.seconds = run(self.training(f"{ending}_{name}"), self.log, count=count, ranks=ranks)
            assert not any(codes), f"the undisturbed run failed: {self.log}"
        self.operations = int(count.read_text())
        self.expected = what_is_left(home / f"{ending}_straight")
        epochs = self.expected["last"]["epoch"]
        assert ending == "epochs" or epochs < 8, f"{self.name}: early stopping did not end the run"
        assert_same_bits(what_is_left(home / f"{ending}_again"), self.expected, "a second undisturbed run")

    def training(self, folder: str) -> Callable[[], None]:
        return partial(train_py, [*self.overrides, f"output_dir={self.home / folder}"])

    def chain(self, folder: str, rng: random.Random, kills: int) -> Counter[str]:
        """Kills a run until it ends, at most `kills` times; returns the kills that were survived, by their kind."""
        survived: Counter[str] = Counter()
        training = self.training(folder)
        while True:
            kill = Kill() if survived.total() >= kills or rng.random() < 0.2 else self.draw(rng)
            codes, _ = run(training, self.log, kill, ranks=self.ranks)
            if not any(codes):
                break
            died = -signal.SIGKILL in codes  # the ranks that lost one end with an error
            allowed = (
                -9,
                -15,
                130,
                143,
                *([0, 1] if died and self.ranks > 1 else []),
                *([0] if self.ranks > 1 else []),
            )
            assert all(code in allowed for code in codes), f"exit codes {codes} after {kill}: {self.log}"
            survived[kill.kind] += 1
        assert_same_bits(what_is_left(self.home / folder), self.expected, f"{self.name}, {folder}")
        before = content_of(self.home / folder)
        codes, _ = run(training, self.log, ranks=self.ranks)
        assert not any(codes), f"exit codes {codes} of a run that was done: {self.log}"
        assert content_of(self.home / folder) == before, f"{self.name}, {folder}: a run that was done has changed"
        return survived

    def draw(self, rng: random.Random) -> Kill:
        """Returns a random kill."""
        kind = rng.choice(KINDS)
        rank = rng.randrange(self.ranks)
        if kind[0] == "record":
            return Kill(at_record=True)
        if kind[0] == "file":
            return Kill(operation=rng.randint(1, self.operations))
        return Kill(tuple(s for s in kind if isinstance(s, signal.Signals)), rng.uniform(0, self.seconds), rank=rank)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("kills", type=int, help="kills of each model")
    parser.add_argument("models", nargs="*", default=list(MODELS), help=f"of {', '.join(MODELS)}; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1, help="of each run; default: 1")
    arguments = parser.parse_args()
    failed = False
    for model in arguments.models:
        begun = time.monotonic()
        home = Path(tempfile.mkdtemp(prefix=f"kills_{model}_"))
        try:
            survived = kill_often(model, home, arguments.kills, arguments.seed, arguments.ranks)
        except (AssertionError, TimeoutError) as error:
            failed = True
            print(f"{model}: {error} (kept: {home})", flush=True)
            continue
        shutil.rmtree(home)
        kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(survived.items()))
        seconds = time.monotonic() - begun
        print(f"{model}: {survived.total()} kills survived in {seconds:.0f} s ({kinds})", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
