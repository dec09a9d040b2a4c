"""Prepares small data sets twice at once, kills preparations, damages what was prepared, and reads it.

    python -m tests.reliability.preparations 20 [DATA ...]      # kills and damages of each data set

Two processes that prepare at once, and one that takes over from a killed one, must leave the files of a lone one and
nothing else. A reader of damaged files must return the same batches or refuse in one line. Prints a line for each data
set; exits with 1 where one fails.
"""

import tests.support.patched_start  # noqa: F401, I001

import hashlib
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hydra.utils import instantiate
from src.datamodules.clicks import records  # noqa: F401  # each process would load it
from src.datamodules.clicks.check import STAMP, SUMS  # with times of files
from src.datamodules.graphs import qm9 as qm9_graphs
from src.datamodules.molecules import zinc250k
from src.errors import UserError
from tests.fuzz.test_readers import archives
from tests.reliability.kills import Kill, execute, run
from tests.support import criteo_rows, qm9_rows, sst2_rows
from tests.support.composing import composed
from tests.support.tiny_se3 import write_molecules

SMILES = "CCO", "C[C@H](N)C(=O)O", "c1ccccc1", "CC#N", "C1CC1", "CC(=O)[O-]", "CN", "CO", "OC=C", "CCF"
REFUSED = 2


def smiles(home: Path) -> list[str]:
    (home / "my.smiles").write_text("\n".join(SMILES) + "\n")
    source = "datamodule.source"
    return ["datamodule=smiles_file", f"{source}.file={home / 'my.smiles'}", f"+{source}.workers=1",
            f"{source}.held_out_share=0.3", f"{source}.rare_below=1"]  # fmt: skip


def zinc(home: Path) -> list[str]:
    (home / "zinc250k.smiles").write_text("\n".join(SMILES) + "\n")
    zinc250k.SHA256 = hashlib.sha256((home / "zinc250k.smiles").read_bytes()).hexdigest()
    zinc250k.EXTRA_ROW, zinc250k.HELD_OUT_SHARE = -1, 0.3
    return ["datamodule=zinc250k", f"+datamodule.source.mirror={home}", "+datamodule.source.workers=1"]


def qm9(home: Path) -> list[str]:
    qm9_graphs.MEMBERS = qm9_rows.write_package(home)
    return ["datamodule=qm9", f"+datamodule.source.mirror={home}", "+datamodule.source.workers=1"]


def molecules(home: Path) -> list[str]:
    source = "datamodule.source"
    return ["datamodule=molecule_file", f"{source}.file={write_molecules(home / 'my.csv')}", "datamodule.task=energy",
            f"+{source}.workers=1"]  # fmt: skip


def sst2(home: Path) -> list[str]:
    sst2_rows.write_files(home)
    return ["datamodule=sst2", f"datamodule.raw={home}", f"datamodule.vocabulary={sst2_rows.write_vocabulary(home)}"]


def criteo(home: Path) -> list[str]:
    path = criteo_rows.write(home / "train.txt", criteo_rows.lines(600, 0))
    return ["datamodule=criteo", f"datamodule.raw={path}", "datamodule.prepare.frequency_limit=2"]


def clicks(home: Path) -> list[str]:
    draw = random.Random(0)
    rows = [f"{draw.randint(0, 1)},{draw.random():.3f},{draw.choice('abcde')}" for _ in range(200)]
    (home / "my.csv").write_text("\n".join(["clicked,age,site", *rows, ""]))
    source = "datamodule.source"
    return ["datamodule=click_file", f"{source}.file={home / 'my.csv'}", f"{source}.label=clicked",
            f"{source}.numerical=[age]", f"{source}.categorical=[site]"]  # fmt: skip


def criteo_synthetic(home: Path) -> list[str]:
    generate = "datamodule.generate"
    return ["datamodule=criteo_synthetic", f"{generate}.train_rows=300", f"{generate}.test_rows=60",
            f"{generate}.cardinalities=[40,5,300]"]  # fmt: skip


def cifar10(home: Path) -> list[str]:
    (home / "cifar.tar").write_bytes(archives()[0])
    return ["datamodule=cifar10", f"datamodule.source={home / 'cifar.tar'}"]


DATA: dict[str, Callable[[Path], list[str]]] = {
    "smiles_file": smiles, "zinc250k": zinc, "qm9": qm9, "molecule_file": molecules, "sst2": sst2, "criteo": criteo,
    "click_file": clicks, "cifar10": cifar10, "criteo_synthetic": criteo_synthetic,
}  # fmt: skip

NOTES = re.compile(rf"({re.escape(STAMP)}|{re.escape(SUMS)})$|\.({re.escape(STAMP)}|{re.escape(SUMS)})\..*\.tmp$")


def read(overrides: list[str], answer: Path) -> None:
    """Prepares the data and reads it; `answer` gets a digest of the first batches. Exits as train.py does."""
    try:
        config = composed("prepare", *overrides)
        datamodule = instantiate(config.datamodule)
        datamodule.prepare_data()
        datamodule.setup("fit")
        torch.manual_seed(0)
        digest = hashlib.sha256()
        for loader in datamodule.loader("train", train=True, batch_size=2), datamodule.val_dataloader():
            batch = next(iter(loader))
            add(batch.clicks() if hasattr(batch, "clicks") else batch, digest.update)
        answer.write_text(digest.hexdigest())
    except UserError as error:
        print(error)
        sys.exit(REFUSED)


def add(value: Any, to: Callable[[bytes], None]) -> None:
    """Adds the arrays and numbers in a batch."""
    if isinstance(value, Tensor):
        value = value.cpu().numpy()
    if isinstance(value, np.ndarray):
        to(f"{value.dtype}{value.shape}".encode() + np.ascontiguousarray(value).tobytes())
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            add(getattr(value, field.name), to)
    elif isinstance(value, tuple | list):
        for part in value:
            add(part, to)
    elif isinstance(value, dict):
        for key, part in value.items():
            add((key, part), to)
    else:
        assert value is None or isinstance(value, str | int | float | bool), type(value)
        to(repr(value).encode())


def files_in(folder: Path) -> dict[str, bytes]:
    """Returns contents by path, without the locks that killed processes left and that lock nothing.

    Nor with what was noted about checked files, or half noted by one that was killed after another had noted it.
    """
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if not NOTES.match(path.name)}


class Trial:
    """A data set in a folder of its own; each preparation has a folder too."""

    def __init__(self, name: str, home: Path) -> None:
        self.home = home
        (home / "raw").mkdir(parents=True)
        self.overrides = DATA[name](home / "raw")
        self.log, self.answer, self.count = home / "log.txt", home / "answer", home / "count"
        self.lone = home / "lone"
        assert self.run(self.lone, count=self.count) == 0, f"the preparation failed: {self.log}"
        self.operations = int(self.count.read_text())
        self.files, self.batches = files_in(self.lone), self.answer.read_text()
        assert self.files, "nothing was prepared"
        left = [name for name in self.files if name.startswith(".") or "/." in name]
        assert not left, f"left over: {left}"

    def act(self, folder: Path, answer: Path | None = None) -> Callable[[], None]:
        return partial(read, [*self.overrides, f"data_root={folder}"], answer or self.answer)

    def run(self, folder: Path, kill: Kill = Kill(), count: Path | None = None) -> int:  # noqa: B008
        self.answer.unlink(missing_ok=True)
        return run(self.act(folder), self.log, kill, count)[0][0]

    def check(self, folder: Path, what: str) -> None:
        """Fails unless the folder is as a lone preparation leaves it."""
        files = files_in(folder)
        others = sorted(set(files) ^ set(self.files))
        assert not others, f"{what}: {len(others)} files more or less, such as {others[0]}"
        differ = [name for name in files if files[name] != self.files[name]]
        assert not differ, f"{what}: {differ} differ"

    def at_once(self, number: int, kill_at: int | None) -> None:
        """Two processes prepare at once; one is killed before a file operation, where `kill_at` says so."""
        folder, answers = self.home / f"at_once_{number}", [self.home / f"answer_{i}" for i in range(2)]
        begun = [fork(self.act(folder, answer), self.log, kill_at if i == 0 else None)
                 for i, answer in enumerate(answers)]  # fmt: skip
        codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in begun]
        ends = [[0, 0]] + [[-9, 0]] * (kill_at is not None)  # the one to be killed may find all prepared
        assert codes in ends, f"{codes}, killed before operation {kill_at}: {self.log}"
        assert answers[1].read_text() == self.batches
        self.check(folder, f"two at once, one killed before operation {kill_at}")

    def taken_over(self, number: int, kill_at: int) -> None:
        """One that is killed, and the next one."""
        folder = self.home / f"killed_{number}"
        code = self.run(folder, Kill(operation=kill_at))
        assert code == -9, f"exit code {code} instead of a kill before operation {kill_at}: {self.log}"
        assert self.run(folder) == 0 and self.answer.read_text() == self.batches, f"after a kill: {self.log}"
        self.check(folder, f"after a kill before operation {kill_at}")

    def damaged(self, draw: random.Random) -> str:
        """Reads what was damaged in one file, at times once it was read whole; returns 'refused' or 'same'.

        A file that was read before keeps its time, and with some kinds of damage its size: what a reader notes about
        files that it knows must not hide a changed content.
        """
        folder = self.home / "damaged"
        for name, content in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        name = draw.choice(list(self.files))
        kind = draw.choice(list(DAMAGES))
        status = (folder / name).stat()
        was_read = draw.random() < 0.5
        if was_read:
            assert self.run(folder) == 0 and self.answer.read_text() == self.batches, (
                f"a copy cannot be read: {self.log}"
            )
        DAMAGES[kind](folder / name, draw, [content for other, content in self.files.items() if other != name])
        if was_read and (folder / name).exists():
            os.utime(folder / name, ns=(status.st_atime_ns, status.st_mtime_ns))
            kind += ", with the time of a file that was read"
        begin = self.log.stat().st_size
        code = self.run(folder)
        said = self.log.read_text()[begin:].strip()
        for path in folder.rglob("*"):
            if path.is_file():
                path.unlink()
        if code == 0:
            assert self.answer.read_text() == self.batches, f"{name}, {kind}: other batches"
            return "same"
        assert code == REFUSED, f"{name}, {kind}: exit code {code}: {said[-300:]}"
        line = said.splitlines()[-1]
        assert str(folder) in line, f"{name}, {kind}: {line}"
        return "refused"


def fork(act: Callable[[], None], log: Path, kill_at: int | None) -> int:
    process = os.fork()
    if process == 0:
        execute(act, log, Kill(operation=kill_at))
    return process


def flip(path: Path, draw: random.Random, _: list[bytes]) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def cut(path: Path, draw: random.Random, _: list[bytes]) -> None:
    path.write_bytes(path.read_bytes()[: draw.randrange(max(1, path.stat().st_size))])


DAMAGES: dict[str, Callable[[Path, random.Random, list[bytes]], Any]] = {
    "a flipped bit": flip,
    "truncated": cut,
    "emptied": lambda path, *_: path.write_bytes(b""),
    "removed": lambda path, *_: path.unlink(),
    "another file's content": lambda path, draw, others: path.write_bytes(draw.choice(others or [b""])),
    "zeros": lambda path, *_: path.write_bytes(bytes(path.stat().st_size)),
}


class Counts(NamedTuple):
    at_once: int
    kills: int
    refused: int
    same: int


def try_out(name: str, home: Path, count: int, seed: int = 0) -> Counts:
    """Returns how much a data set survived. Raises AssertionError where anything differs."""
    draw = random.Random(f"{name} {seed}")
    trial = Trial(name, home)
    trial.at_once(0, None)
    for number in range(1, count + 1):
        act = trial.at_once if number % 2 else trial.taken_over
        act(number, draw.randint(1, trial.operations - 1))
    ends = [trial.damaged(draw) for _ in range(count)]
    return Counts(1 + (count + 1) // 2, count, ends.count("refused"), ends.count("same"))


def main(count: int, names: list[str]) -> int:
    failed = 0
    for name in names or DATA:
        begun = time.monotonic()
        home = Path(tempfile.mkdtemp(prefix=f"preparations_{name}_"))
        try:
            counts = try_out(name, home / name, count)
        except (AssertionError, TimeoutError) as error:
            failed = 1
            print(f"{name}: {error} (kept: {home})", flush=True)
            continue
        shutil.rmtree(home)
        print(f"{name}: {counts.at_once} prepared at once, {counts.kills} killed, {counts.refused} damages refused and "
              f"{counts.same} without effect, {time.monotonic() - begun:.0f} s", flush=True)  # fmt: skip
    return failed


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
