"""Kills runs, goes on with them, and compares to the last bit with a run that nothing disturbed.

    python -m tests.reliability.kills 100                  # kills of each model, on one core
    python -m tests.reliability.kills 20 moflow dlrm --seed 3

A run is a fork of this process, which has loaded what takes seconds to load, and executes train.py. It is killed at a
random time, or before a random one of its file operations (open for writing, rename, remove, mkdir), then started again
with `resume=true`, and so on; a run in five is left alone to its end. Then its last and best checkpoint, final metric
and files must be those of the undisturbed run. Prints a line for each model; exits with 1 where one differs.
"""

import tests.support.lean_start  # noqa: F401, I001

import argparse
import atexit
import json
import os
import random
import runpy
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytorch_lightning  # noqa: F401  # each run would load it for seconds
import torch

import src.train  # noqa: F401
from tests.support import ROOT, tiny_distilbert, tiny_dlrm, tiny_mobilenet, tiny_run, tiny_se3
from tests.support.same import assert_same_bits, lasting_state

MODELS: dict[str, Callable[[Path], list[str]]] = {
    "moflow": tiny_run.tiny_overrides,
    "se3_transformer": tiny_se3.tiny_overrides,
    "distilbert": tiny_distilbert.tiny_overrides,
    "dlrm": tiny_dlrm.tiny_overrides,
    "mobilenet_v1": tiny_mobilenet.tiny_overrides,
}
ALWAYS = "fit.max_epochs=3", "fit.eval_every_n_epochs=1", "fit.checkpoint_every_n_steps=3", "resume=true"
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
LIMIT_S = 120.0  # of a run that hangs


class Kill(NamedTuple):
    """How a run is ended: signals after `seconds`, or SIGKILL before the file operation with the number `operation`."""

    signals: tuple[signal.Signals, ...] = ()
    seconds: float = 0.0
    operation: int | None = None

    @property
    def kind(self) -> str:
        return "file" if self.operation is not None else " ".join(each.name for each in self.signals)


KINDS = ("file", signal.SIGKILL), (signal.SIGKILL,), (signal.SIGTERM,), (signal.SIGINT,), (signal.SIGINT, signal.SIGINT)


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


def execute(act: Callable[[], None], log: Path, kill_at: int | None, count: Path | None) -> None:
    """Does something in this process, a fork, and leaves it; `count` gets the number of file operations."""
    seen = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if writes(event, arguments):
            seen += 1
            if seen == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    code = 1
    try:
        os.setsid()
        with log.open("a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        torch.set_num_threads(1)
        sys.addaudithook(hook)
        act()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        total = seen
        atexit._run_exitfuncs()
        sys.stdout.flush()
        if count is not None:
            count.write_text(str(total))
        os._exit(code)


def run(act: Callable[[], None], log: Path, kill: Kill = Kill(), count: Path | None = None) -> tuple[int, float]:  # noqa: B008
    """Returns the exit code of a fork, negative for a signal, and its seconds. Raises TimeoutError if it hangs."""
    begun = time.monotonic()
    process = os.fork()
    if process == 0:
        execute(act, log, kill.operation, count)
    due, left = begun + kill.seconds, list(kill.signals)
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        now = time.monotonic()
        if ended:
            return os.waitstatus_to_exitcode(status), now - begun
        if left and now >= due:
            os.kill(process, left.pop(0))
            due = now + 0.3  # the next signal: another wish, not the same one twice
        if now > begun + LIMIT_S:
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            raise TimeoutError(f"a run did not end within {LIMIT_S:.0f} s: {log}")
        time.sleep(0.005)


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


def kill_often(model: str, home: Path, kills: int, seed: int) -> Counter[str]:
    """Returns how many kills of each kind a model's runs survived. Raises AssertionError where anything differs."""
    rng = random.Random(f"{model} {seed}")
    overrides = [*MODELS[model](home), *ALWAYS]
    log, count = home / "log.txt", home / "count"
    straight = home / "straight"

    def training(folder: Path) -> Callable[[], None]:
        return partial(train_py, [*overrides, f"output_dir={folder}"])

    code, seconds = run(training(straight), log, count=count)
    assert code == 0, f"the undisturbed run failed: {log}"
    code, seconds = run(training(home / "again"), log, count=count)  # now with prepared data
    expected, operations = what_is_left(straight), int(count.read_text())
    assert_same_bits(what_is_left(home / "again"), expected, "a second undisturbed run")
    survived: Counter[str] = Counter()
    chain = 0
    while survived.total() < kills:
        chain += 1
        folder = home / f"chain_{chain}"
        done = False
        while not done:
            kind = rng.choice(KINDS)
            if survived.total() >= kills or rng.random() < 0.2:
                kill = Kill()
            elif kind[0] == "file":
                kill = Kill(operation=rng.randint(1, operations))
            else:
                kill = Kill(tuple(each for each in kind if isinstance(each, signal.Signals)), rng.uniform(0, seconds))
            code, _ = run(training(folder), log, kill)
            done = code == 0
            if done:
                continue
            assert code in (-9, -15, 130, 143), f"exit code {code} after {kill}: {log}"
            survived[kill.kind] += 1
        assert_same_bits(what_is_left(folder), expected, f"{model}, chain {chain}")
    return survived


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("kills", type=int, help="kills of each model")
    parser.add_argument("models", nargs="*", default=list(MODELS), help=f"of {', '.join(MODELS)}; default: all")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    failed = False
    for model in arguments.models:
        begun = time.monotonic()
        home = Path(tempfile.mkdtemp(prefix=f"kills_{model}_"))
        try:
            survived = kill_often(model, home, arguments.kills, arguments.seed)
        except (AssertionError, TimeoutError) as error:
            failed = True
            print(f"{model}: {error} (kept: {home})", flush=True)
            continue
        kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(survived.items()))
        seconds = time.monotonic() - begun
        print(f"{model}: {survived.total()} kills survived in {seconds:.0f} s ({kinds})", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
