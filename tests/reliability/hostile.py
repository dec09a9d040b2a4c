"""Checkpoints that an attacker wrote: each ends in one line and exit code 2, or is read as if nothing were in it.

    python -m tests.reliability.hostile 500                  # hostile checkpoints, spread over five models
    python -m tests.reliability.hostile 50 moflow dlrm --seed 3

Takes the checkpoint of a tiny run of each model and plants something at a random place of it: a `_target_`, keys with
dots, dicts and lists in place of scalars, interpolations, names of importable things, pickled calls. The checksum is
written anew. A fork then runs predict.py or train.py with it under an audit hook, which notes every process that is
started, connection, import and write that the same command with the untouched checkpoint does not do. Prints a line for
each model; exits with 1 where anything was executed or a run ended otherwise.
"""

import tests.support.patched_start  # noqa: F401, I001

import argparse
import os
import random
import re
import runpy
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytorch_lightning  # noqa: F401  # each run would load it for seconds
import torch

import src.predict
import src.train  # noqa: F401
from src.config.settings import CONF
from src.report.record import read_record
from src.training.checkpoints import write_checkpoint
from tests.reliability.kills import MODELS, run, train_py, writes
from tests.support import ROOT

SECRET = "xK9-planted-secret-42"
MODULE = "planted_canary_module"  # importable; writes the canary when it is
STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "pty.spawn")
OTHERS = ("socket.connect", "urllib.Request", "webbrowser.open", "shutil.rmtree", "shutil.move", "os.chmod", "os.link",
          "os.symlink", "ftplib.connect", "smtplib.connect")  # fmt: skip


class Call:
    """Is pickled as a call of a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def calls(canary: Path) -> list[dict[str, Any]]:
    """Returns configs that Hydra would execute."""
    file = str(canary)
    return [
        {"_target_": "os.system", "command": f"touch {file}"},
        {"_target_": "setuptools._distutils.spawn.spawn", "cmd": ["touch", file]},
        {"_target_": "subprocess.Popen", "args": ["touch", file]},
        {"_target_": "builtins.open", "file": file, "mode": "w"},
        {"_target_": "builtins.eval", "_args_": [f"open({file!r}, 'w')"]},
        {"_target_": "pathlib.Path.touch", "_args_": [{"_target_": "pathlib.Path", "_args_": [file]}]},
        {"_target_": "joblib.load", "filename": file},
        {"_target_": f"{MODULE}.run"},
        {"_target_": "src.system.files.write_text", "path": file, "text": "x"},
        {"_target_": "src.training.task.torch.load", "f": file},
        {"_target_": "torch.hub.load", "repo_or_dir": "a/b", "model": "c"},
        {"_target_": "hydra.utils.get_object", "path": f"{MODULE}.run"},
    ]


class Plant(NamedTuple):
    """What was planted where; a `value` may be taken as another value of its key."""

    where: str
    what: str
    is_value: bool


def places(value: Any, where: str = "") -> Iterator[tuple[Any, Any, str]]:
    """Yields the dict or list, the key, and the dotted key of everything in a checkpoint; of long lists the first."""
    if isinstance(value, dict | list):
        for key in [*value][:40] if isinstance(value, dict) else range(min(len(value), 3)):
            name = f"{where}.{key}" if where else str(key)
            yield value, key, name
            yield from places(value[key], name)


class Was(list[Any]):
    """A tuple that can be changed."""


def as_lists(value: Any) -> Any:
    """Returns a copy of a checkpoint in which everything can be changed."""
    if isinstance(value, dict):
        return type(value)((key, as_lists(part)) for key, part in value.items())
    if isinstance(value, list | tuple):
        return (Was if isinstance(value, tuple) else list)(map(as_lists, value))
    return value


def as_tuples(value: Any, seen: set[int]) -> Any:
    """Returns what `as_lists` was given, with what was planted meanwhile."""
    if id(value) not in seen and isinstance(value, dict | list):
        seen.add(id(value))
        for key in value if isinstance(value, dict) else range(len(value)):
            value[key] = as_tuples(value[key], seen)
    return tuple(value) if isinstance(value, Was) else value


def place(checkpoint: dict[str, Any], draw: random.Random) -> tuple[Any, Any, str]:
    """Returns a random dict or list of a checkpoint, one of its keys, and the dotted key."""
    configs = ["model_config", "run_config"]  # these decide what is made: each gets as much as all others
    section = draw.choice([*checkpoint, *configs * len(checkpoint)])
    choices = [*places(checkpoint[section], section)]
    if section in configs and draw.random() < 0.7:
        choices = [choice for choice in choices if ".task" in choice[2] or ".datamodule" in choice[2]]
    return draw.choice([*choices, (checkpoint, section, section)])


def plant(checkpoint: dict[str, Any], draw: random.Random, canary: Path) -> Plant:
    """Plants something in a checkpoint, and returns what."""
    container, key, where = place(checkpoint, draw)
    call = draw.choice(calls(canary))
    name = draw.choice([call["_target_"], MODULE, f"{MODULE}.run", "this.x", "antigravity"])
    kind = draw.choice(KINDS)
    if kind == "call":
        container[key] = draw.choice(
            [call, call | {"_partial_": True}, [call], {"x": call}, call | {"_recursive_": False}]
        )
    elif kind == "call beside" and isinstance(container[key], dict):
        container[key] |= call
    elif kind == "dots" and isinstance(container, dict):
        container |= {f"{key}.{argument}": value for argument, value in call.items()}
    elif kind == "new key" and isinstance(container, dict):
        container[draw.choice(NEW_KEYS)] = draw.choice([call, [call], name])
    elif kind == "interpolation":
        text = draw.choice(INTERPOLATIONS)
        container[key] = draw.choice([text, [text], {"x": text}])
    elif kind == "pickled call":
        container[key] = draw.choice(
            [Call(os.system, f"touch {canary}"), Call(eval, f"open({str(canary)!r}, 'w')"), Call(canary.touch)]
        )
    elif kind == "list in itself":
        container[key] = itself = []
        itself.append(itself)
    else:
        kind = "value"
        container[key] = draw.choice([name, [name], *VALUES])
    is_value = kind in ("interpolation", "value")
    return Plant(where, f"{kind} {container[key]!r:.60}" if is_value else kind, is_value)


KINDS = (
    *["call", "dots", "value"] * 2, "call beside", "new key", "interpolation", "pickled call", "list in itself",
)  # fmt: skip
NEW_KEYS: tuple[Any, ...] = ("new", "_args_", "_recursive_", "_convert_", "a.b", "__class__", "", 7)
INTERPOLATIONS = (
    "${oc.env:PLANTED}", "a ${oc.env:PLANTED} b", "${class_folders:/}", "${first:${oc.env:PLANTED}}",
    "${hydra:runtime.cwd}", "${", "${oc.create:{_target_: os.system}}", "???",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, -1, 10**400, float("nan"), float("inf"), "", b"x", 3j, torch.ones(2), [], {}, {"x": 1}, "x" * 10**5,
)  # fmt: skip


class Trial:
    """The tiny run of one model in a folder of its own, and what its untouched checkpoint leads to."""

    def __init__(self, model: str, home: Path) -> None:
        self.model, self.home, self.canary = model, home, home / "canary"
        (home / "modules").mkdir(parents=True)
        (home / "modules" / f"{MODULE}.py").write_text(
            f"open({str(self.canary)!r}, 'w')\n\ndef run(*a, **b):\n    pass\n"
        )
        self.log = home / "log.txt"
        self.overrides = [*MODELS[model](home), "fit.max_epochs=1"]
        (code,), _ = run(partial(train_py, [*self.overrides, f"output_dir={home / 'trained'}"]), self.log)
        assert code == 0, f"the training failed: {self.log}"
        (home / "data").mkdir(exist_ok=True)  # not every training leaves something there
        for name in CONF.glob("datamodule/*.yaml"):  # a model's usual data are not fetched where a file names none
            with suppress(FileExistsError):
                (home / "data" / name.stem).touch(exist_ok=False)
        path = home / "trained" / "checkpoints" / "last.ckpt"
        self.checkpoint = torch.load(path, weights_only=True)
        self.usual: dict[str, tuple[set[str], Any]] = {}
        for way in [*WAYS, *WAYS]:  # the second time with the modules loaded that the first one had loaded
            code, events, folder = self.start(way, as_lists(self.checkpoint), "untouched")
            assert code == 0, f"{way} with the untouched checkpoint failed: {self.log}"
            self.usual[way] = {*events, *self.usual.get(way, ((), None))[0]}, left(folder)
            load(folder.parent / "modules")

    def start(self, way: str, checkpoint: dict[str, Any], name: str) -> tuple[int, list[str], Path]:
        """Returns the exit code of a command with a checkpoint, what it did, and its output folder."""
        folder = self.home / f"{name}_{way}"
        path = folder / "from" / "checkpoints" / "last.ckpt"
        write_checkpoint(as_tuples(checkpoint, set()), path)
        out, events = folder / "out", folder / "events"
        self.log.write_text("")
        command = WAYS[way](self, path, out)
        (code,), _ = run(
            partial(audited, command, events, [folder, self.home / "data"], self.home / "modules"), self.log
        )
        return code, events.read_text().splitlines() if events.exists() else ["nothing was noted"], out

    def fault(self, way: str, planted: Plant, checkpoint: dict[str, Any], name: str) -> str | None:
        """Returns what a hostile checkpoint did; None where it was refused or nothing came of it."""
        try:
            code, events, folder = self.start(way, checkpoint, name)
        except TimeoutError as error:
            return str(error)
        usual, result = self.usual[way]
        log = self.log.read_text(errors="replace")
        new = [event for event in events if event not in usual and WORKER not in event]
        if self.canary.exists():
            self.canary.unlink()
            return "the canary was written"
        if new:
            return f"it did {new[0]}"
        if any(SECRET.encode() in file.read_bytes() for file in [self.log, *folder.rglob("*")] if file.is_file()):
            return "the secret was written"
        if "Traceback" in log:
            return f"a traceback: {log.strip().splitlines()[-1][:200]}"
        if code == 2:
            lines = [line for line in log.splitlines() if line.startswith("error: ")]
            return None if len(lines) == 1 else f"{len(lines)} lines that begin with error:"
        if code != 0:
            return f"exit code {code}"
        return None if planted.is_value or left(folder) == result else "another result"


def audited(command: Callable[[], None], events: Path, folders: list[Path], modules: Path) -> None:
    """Runs a command in this process; `events` gets what it does beyond reading and writing in these folders."""
    os.environ["PLANTED"] = SECRET
    sys.path.append(str(modules))
    note = os.open(events, os.O_WRONLY | os.O_CREAT)
    inside = tuple(map(str, folders))
    tops = {name.partition(".")[0] for name in sys.modules}

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        what = None
        if event == "shutil.rmtree" and os.path.realpath(os.fspath(arguments[0])).startswith(inside):
            what = None
        elif event in STARTS or event in OTHERS:
            what = f"{event} {arguments[0] if event != 'subprocess.Popen' else arguments[1]!r:.100}"
        elif event == "import":
            top = str(arguments[0]).partition(".")[0]
            what = None if top in tops else f"import {top}"
        elif writes(event, arguments):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            what = None if path.startswith(inside) else f"{event} {os.path.dirname(path)}"
        if what is not None:
            os.write(note, (re.sub(r"\d+", "N", what).replace("\n", " ") + "\n").encode())  # numbers of processes

    sys.addaudithook(hook)
    try:
        command()
    finally:
        (folders[0] / "modules").write_text("\n".join(sys.modules))


def load(names: Path) -> None:
    """Imports the modules that a fork had: the next ones need not."""
    for name in names.read_text().splitlines():
        if name.partition(".")[0] not in (MODULE, "__main__", "tests"):
            with suppress(Exception):
                import_module(name)


def predict_py(overrides: list[str]) -> None:
    sys.argv = ["predict.py", *overrides]
    runpy.run_path(str(ROOT / "predict.py"), run_name="__main__")


def predicting(*more: str) -> Callable[[Trial, Path, Path], Callable[[], None]]:
    def command(trial: Trial, path: Path, out: Path) -> Callable[[], None]:
        overrides = [f"ckpt_path={path}", "hardware=cpu", "num_samples=8", "batch_size=8", "logger=none"]
        return partial(predict_py, [*overrides, f"data_root={trial.home / 'data'}", f"output_dir={out}", *more])

    return command


def training(trial: Trial, path: Path, out: Path) -> Callable[[], None]:
    return partial(train_py, [*trial.overrides, "fit.max_epochs=2", f"ckpt_path={path}", f"output_dir={out}"])


WORKER = "from src.system.workers import serve"  # of a preparation of the same file with other values

WAYS: dict[str, Callable[[Trial, Path, Path], Callable[[], None]]] = {
    "predict": predicting(), "evaluate": predicting("evaluate=true"), "train": training,
}  # fmt: skip


def left(folder: Path) -> Any:
    """Returns what a run's result is, without its times."""
    record = read_record(folder)
    predictions = {path.name: path.read_bytes() for path in sorted(folder.glob("*.csv"))}
    return record.status, record.final_metric, record.samples, predictions


def attack(model: str, home: Path, number: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Returns how many hostile checkpoints of a model ended how, and a line for each that should not have."""
    trial, ends, faults = Trial(model, home), Counter[str](), []
    for i in range(number):
        draw = random.Random(f"{model} {seed} {i}")
        checkpoint = as_lists(trial.checkpoint)
        planted, way = plant(checkpoint, draw, trial.canary), draw.choice([*WAYS])
        name = f"{seed}_{i}"
        fault = trial.fault(way, planted, checkpoint, name)
        if fault:
            faults.append(f"{model} {i}, {way}: {planted.what} in {planted.where}: {fault}")
            print(faults[-1], flush=True)
        else:
            shutil.rmtree(home / f"{name}_{way}")
        ends["fault" if fault else "refused" if "error: " in trial.log.read_text(errors="replace") else "read"] += 1
    return ends, faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("checkpoints", type=int, help="hostile checkpoints of all models together")
    parser.add_argument("models", nargs="*", default=list(MODELS), help=f"of {', '.join(MODELS)}; default: all")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for model in MODELS:  # the packages of all: where a checkpoint names no model, predict.py takes its usual one
        import_module(f"src.models.{model}.task")
    failed = False
    for i, model in enumerate(arguments.models):
        begun, home = time.monotonic(), Path(tempfile.mkdtemp(prefix=f"hostile_{model}_"))
        number = len(range(i, arguments.checkpoints, len(arguments.models)))
        ends, faults = attack(model, home, number, arguments.seed)
        failed |= bool(faults)
        kept = f" (kept: {home})" if faults else ""
        print(f"{model}: {number} hostile checkpoints in {time.monotonic() - begun:.0f} s: {ends['refused']} refused, "
              f"{ends['read']} read as other values or as none, {len(faults)} faults{kept}", flush=True)  # fmt: skip
        if not faults:
            shutil.rmtree(home)
    sys.exit(failed)


if __name__ == "__main__":
    main()
