"""Tries cases: prepares, trains with and without the CUDA graph, predicts, and compares the losses."""

import json
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import torch

from src.measure.sources import sources
from tests.options.bases import STEPS
from tests.options.cases import Case, cases
from tests.options.data import write_data
from tests.options.judge import (
    FAILED,
    NOT_RUN,
    NOT_TRIED,
    PASSED,
    REFUSED,
    Losses,
    Refusal,
    Verdict,
    disagreement,
    how_it_failed,
    judged_refusal,
    refusal_of,
    wrong_losses,
)
from tests.options.refusals import ENDS_EARLY, REFUSALS
from tests.options.run import Command, Ended, Work, run_all
from tests.support.composing import composed

CPU_STEPS = 8
PREDICTED = "num_samples=24", "batch_size=16"
ABSENT = re.compile(r"needs? the package|install the extra")  # of the line where an optional package is not installed
ABSENT_MODULE = re.compile(  # of an incomplete set-up
    r"^ModuleNotFoundError: (?:No module named|Requirement) '(\w+).*'", re.MULTILINE
)
LOG_LINES = 40  # of a failed command, kept
SAVE_EVERY_S = 20.0


def device_here() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def all_cases(device: str, gpus: int) -> list[Case]:
    """Returns the cases of one GPU, or those of two with the bases that they are compared with."""
    return [case for case in cases(composed, device) if case.gpus == gpus]


def part_of(every: Sequence[Case], part: str, only: str, done: Collection[str] = ()) -> list[Case]:
    """Returns one part of the cases whose name matches and is not done: "2/3" is the second third by their commands.

    A base's cases are neighbours, so that few bases are run in two parts; each part has the bases that it needs.
    """
    number, parts = map(int, part.split("/"))
    named = [case for case in every if fnmatchcase(case.name, only) and case.name not in done]
    total, before, chosen = sum(map(weight, named)), 0, []
    for case in named:
        if before * parts // max(1, total) == number - 1:
            chosen.append(case)
        before += weight(case)
    names = {case.name for case in chosen}
    bases = {f"{case.base}: as it is" for case in chosen if needs_base(case)}
    needed = (bases | {case.twin for case in chosen}) - names
    return [case for case in every if case.name in needed] + chosen


def needs_base(case: Case) -> bool:
    return bool(case.twin) or (not case.train and case.predict is not None)


def weight(case: Case) -> int:
    """Returns the commands of a case."""
    return len(case.graphs) * bool(case.train) + (case.predict is not None) + (case.prepare is not None)


@dataclass
class Found:
    """What the commands of a case left."""

    ends: dict[str, Ended] = field(default_factory=dict)
    losses: dict[str, Losses] = field(default_factory=dict)  # by execution.graph
    precision: str = "fp32"


@dataclass
class Trial:
    """A call: runs cases and judges them. `home` holds the data and the runs' folders."""

    home: Path
    device: str
    end_s: float
    at_once: int
    fork: bool = True
    keep: bool = False
    outcomes: dict[str, Found] = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    save: Callable[[Sequence[Verdict]], object] = lambda verdicts: None  # what is known so far, now and then
    chosen: Sequence[Case] = ()
    saved_s: float = field(default_factory=time.monotonic)

    def run(self, chosen: Sequence[Case]) -> list[Verdict]:
        """Runs the bases first, then the others; returns a verdict of each."""
        self.chosen = chosen
        self.files = write_data(self.home / "files")
        tried = [case for case in chosen if not case.not_tried]
        for number, case in enumerate(chosen):
            self.folders[case.name] = self.home / f"case_{number}"
        first = [case for case in tried if case.name.endswith(": as it is")]
        for some in (first, [case for case in tried if case not in first]):
            run_all((self.work(case) for case in some), self.at_once, self.end_s, self.fork)
        return [self.verdict(case) for case in chosen]

    def work(self, case: Case) -> Work:
        """Yields the commands of a case in order; what fails ends it."""
        outcome = self.outcomes[case.name] = Found()
        folder = self.folders[case.name]
        if case.prepare is not None:
            overrides = case.prepare or [text for text in case.train if text.startswith("datamodule")]
            if not case.prepare and not any(text.startswith("datamodule=") for text in overrides):
                overrides = None  # the data of an experiment, which prepare.py does not know
            if overrides is not None:
                yield from self.command(case, "prepare", "prepare.py", overrides)
        for graph in case.graphs if case.train and all(ended.code == 0 for ended in outcome.ends.values()) else ():
            run = folder / f"train_{graph}"
            yield from self.command(case, f"train graph={graph}", "train.py", case.train, f"execution.graph={graph}",
                                    f"output_dir={run}")  # fmt: skip
            outcome.losses[graph], outcome.precision = losses_of(run / "result.json")
        is_trained = all(ended.code == 0 for ended in outcome.ends.values())
        if case.predict is not None and is_trained:
            run = folder / f"train_{case.graphs[-1]}" if case.train else self.folders[f"{case.base}: as it is"]
            run = run if case.train else run / f"train_{'on' if self.device == 'cuda' else 'off'}"
            sizes = [] if any(text.startswith("num_samples=") for text in case.predict) else PREDICTED
            checkpoint = f"ckpt_path={run / 'checkpoints' / 'last.ckpt'}"
            data = [text for text in case.train if text.startswith(("data_root=", "datamodule.data_dir="))]
            yield from self.command(case, "predict", "predict.py", (*sizes, *case.predict, *data), checkpoint,
                                    f"output_dir={folder / 'predict'}")  # fmt: skip
        self.done.add(case.name)
        if time.monotonic() > self.saved_s + SAVE_EVERY_S:
            self.saved_s = time.monotonic()
            self.save([self.verdict(other) for other in self.chosen])
        if not self.keep and not case.name.endswith(": as it is"):
            for part in ("train_on", "train_off", "train_auto", "predict", "data", "outputs"):
                shutil.rmtree(folder / part, ignore_errors=True)

    def command(self, case: Case, what: str, script: str, overrides: Sequence[str], *more: str) -> Work:
        folder = self.folders[case.name]
        words = [self.filled(text, folder) for text in overrides]
        if not any(text.startswith("data_root=") for text in words):
            words.append(f"data_root={self.home / 'data'}")
        common = f"output_root={folder / 'outputs'}", *(["hardware=cpu"] if self.on_cpu(script, words) else [])
        log = folder / f"{what.replace(' ', '_')}.txt"
        command = Command(script, (*words, *common, *more), log, case.timeout_s, case.gpus)
        self.outcomes[case.name].ends[what] = yield command

    def on_cpu(self, script: str, overrides: Sequence[str]) -> bool:
        return self.device == "cpu" and script == "predict.py" and not any(t.startswith("hardware=") for t in overrides)

    def filled(self, text: str, folder: Path) -> str:
        """Returns an override with the paths of this call."""
        for name, path in sorted(self.files.items(), reverse=True):
            text = text.replace(f"FILE_{name}", str(path))
        return text.replace("FOLDER_OF_CASE", str(folder / "data"))

    def verdict(self, case: Case) -> Verdict:
        """Returns what came of a case."""
        if case.not_tried:
            return Verdict(case.name, NOT_TRIED, case.not_tried)
        outcome = self.outcomes.get(case.name)
        if outcome is None or case.name not in self.done or (case.twin and case.twin not in self.done):
            return Verdict(case.name, NOT_RUN, "out of time")
        seconds = round(sum(ended.seconds for ended in outcome.ends.values()), 1)
        lines = [ended.error_line for ended in outcome.ends.values() if ended.code == 2]
        if lines and ABSENT.search(lines[-1]):
            return Verdict(case.name, NOT_TRIED, lines[-1], seconds)
        absent = [
            name for ended in outcome.ends.values() if ended.code for name in ABSENT_MODULE.findall(ended.printed)
        ]
        if absent:
            return Verdict(case.name, NOT_TRIED, f"the package {absent[0]} is not installed", seconds)
        row = refusal_of(case.name, self.device, REFUSALS)
        if row is not None and not row.always and all(ended.code == 0 for ended in outcome.ends.values()):
            row = None
        if row is not None:
            status, why, worst = REFUSED, *self.refused(row, outcome)
        else:
            status, why, worst = PASSED, *self.passed(case, outcome)
        if why:
            logs = [ended for ended in outcome.ends.values() if ended.code != 0] or list(outcome.ends.values())[-1:]
            log = "\n".join(f"{logs[0].log.stem}\n{logs[0].printed}".splitlines()[-LOG_LINES:]) if logs else ""
            return Verdict(case.name, FAILED, why, seconds, worst, log)
        return Verdict(case.name, status, row.reason if row else "", seconds, worst)

    def refused(self, row: Refusal, outcome: Found) -> tuple[str, None]:
        last = list(outcome.ends.items())[-1:]
        return judged_refusal(row, {what: (ended.code, ended.error_line) for what, ended in last}), None

    def passed(self, case: Case, outcome: Found) -> tuple[str, float | None]:
        """Returns what is wrong with a case that must run, "" if nothing, and the largest difference of its losses."""
        for what, ended in outcome.ends.items():
            if ended.code:
                return how_it_failed(what, ended.code, ended.error_line, ended.printed), None
        steps = 1 if any(fnmatchcase(case.option, pattern) for pattern in ENDS_EARLY) else self.steps
        for graph, losses in outcome.losses.items():
            if why := wrong_losses(losses, steps):
                return f"train graph={graph}: {why}", None
        worst = None
        if len(outcome.losses) == 2:
            why, worst = disagreement("graph and eager", outcome.losses["off"], outcome.losses["on"], outcome.precision)
            if why:
                return why, worst
        if case.twin and case.train:
            twin = self.outcomes.get(case.twin)
            if twin is None or not twin.losses:
                return f"{case.twin}, whose losses it must have, gave none", worst
            graph = next(iter(outcome.losses))
            other = twin.losses.get(graph) or list(twin.losses.values())[-1]
            why, apart = disagreement(f"it and {case.twin!r}", other, outcome.losses[graph], outcome.precision)
            worst = max(apart, worst or 0.0)
            return why, worst
        return "", worst

    @property
    def steps(self) -> int:
        return STEPS if self.device == "cuda" else CPU_STEPS


def losses_of(record: Path) -> tuple[Losses, str]:
    """Returns the loss of each step of a run, and its precision; nothing where there is no record."""
    try:
        content = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return [], "fp32"
    rows = [(int(row["step"]), float(row["loss"])) for row in content["history"] if row.get("loss") is not None]
    return rows, content["case"]["precision"]


@cache
def gpus() -> list[str]:
    """Returns the names of the GPUs, asked in a process of its own: forks of one that has asked CUDA cannot use it."""
    ask = "import torch; print(*map(torch.cuda.get_device_name, range(torch.cuda.device_count())), sep=chr(10))"
    return subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout.splitlines()


def save(verdicts: Sequence[Verdict], out: Path, part: str, device: str, seconds: float) -> Path:
    """Writes options_PART.json; returns its path."""
    result: dict[str, Any] = {
        "part": part,
        "device": gpus()[0] if device == "cuda" else "CPU",
        "gpus": len(gpus()) if device == "cuda" else 0,
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "sources": sources(),
        "seconds": round(seconds),
        "cases": [verdict.plain() for verdict in verdicts],
    }
    file = out / f"options_{part.replace('/', '_of_')}.json"
    file.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return file


def write(verdicts: Sequence[Verdict], out: Path, part: str, device: str, seconds: float) -> int:
    """Writes options_PART.json and prints what failed; returns the exit code."""
    file = save(verdicts, out, part, device, seconds)
    for verdict in verdicts:
        if verdict.status in (FAILED, NOT_RUN):
            print(f"{verdict.status}: {verdict.name}: {verdict.why}")
    counts = Counter(verdict.status for verdict in verdicts)
    print(", ".join(f"{count} {status}" for status, count in sorted(counts.items())), f"in {seconds:.0f} s: {file}")
    return int(counts[FAILED] > 0)
