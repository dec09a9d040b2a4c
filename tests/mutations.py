"""Breaks one line of src/ at a time and expects tests to fail: `python -m tests.mutations [PATTERN] [JOBS=2]`.

tests/mutations.txt lists the mutations. PATTERN takes those whose file, lines or tests contain it; JOBS=2 tries two at
once, each in a copy of the project. Each test file runs without a mutation first: one that fails then finds nothing.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from queue import SimpleQueue

import psutil

from tests.support import ROOT

LIST = Path(__file__).with_suffix(".txt")
LIMIT_S = 300.0  # of one run of tests, on a machine that does other work too
PASSED = "NOT FOUND: every test passes"


@dataclass(frozen=True)
class Mutation:
    """A line of a file and the broken one in its place, both without indentation, and test files that find it."""

    file: str
    tests: tuple[str, ...]
    line: str
    broken: str

    def applied(self, text: str) -> str:
        """Returns the file's text with the broken line. Raises ValueError unless the line occurs exactly once."""
        lines = text.split("\n")
        (number,) = (number for number, line in enumerate(lines) if line.strip() == self.line)
        lines[number] = lines[number].replace(self.line, self.broken)
        return "\n".join(lines)


def mutations(text: str) -> list[Mutation]:
    """Returns the mutations of a list: paragraphs of `FILE: TESTS`, `- LINE` and `+ BROKEN`, and comments (#)."""
    paragraphs = [[line for line in part.splitlines() if line[:1] != "#"] for part in text.split("\n\n")]
    listed = []
    for head, line, broken in filter(None, paragraphs):
        file, _, tests = head.partition(": ")
        listed.append(Mutation(file, tuple(tests.split()), line.removeprefix("- "), broken.removeprefix("+ ")))
    return listed


class Copy:
    """A copy of the project's files, in which tests run with this interpreter."""

    def __init__(self, root: Path, files: Sequence[str], folder: Path) -> None:
        self.folder = folder
        for file in files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / file, folder / file)
        self._times = count(1)

    def verdict(self, tests: Sequence[str]) -> str:
        """Returns `found by` and the first test that fails, PASSED, or why tests could not be run."""
        words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}  # else each run would compile src anew
        process = subprocess.Popen(words, cwd=self.folder, env=environment, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
        try:
            lines = process.communicate(timeout=LIMIT_S)[0].splitlines()
        except subprocess.TimeoutExpired:
            for started in (*psutil.Process(process.pid).children(recursive=True), process):
                started.kill()
            process.communicate()
            return f"NOT FOUND: the tests take more than {LIMIT_S:g} s"
        if process.returncode == 0:
            return PASSED
        failed = [line.removeprefix("FAILED ").partition(" - ")[0] for line in lines if line.startswith("FAILED ")]
        # A module that cannot be imported would be found by any test.
        return f"found by {failed[0]}" if failed else f"NOT FOUND: pytest ends with {process.returncode}, {lines[-1:]}"

    def verdict_on(self, mutation: Mutation) -> str:
        """Returns what `verdict` does, with the mutation."""
        path = self.folder / mutation.file
        text = path.read_text(encoding="utf-8")
        try:
            self._write(path, mutation.applied(text))
            return self.verdict(mutation.tests)
        finally:
            self._write(path, text)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        stamp = next(self._times)  # Python takes compiled code for current by a file's size and its time in seconds
        os.utime(path, (stamp, stamp))


def main(arguments: Sequence[str]) -> int:
    """Prints a line for each mutation; returns 1 if one was not found."""
    begin_s = time.monotonic()
    jobs = [os.environ.get("JOBS", "1"), *(word[5:] for word in arguments if word.startswith("JOBS="))][-1]
    patterns = [word for word in arguments if not word.startswith("JOBS=")]
    chosen = [mutation for mutation in mutations(LIST.read_text("utf-8")) if all(p in str(mutation) for p in patterns)]
    listed = subprocess.check_output(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT)
    files = [file for file in listed.decode().split("\0") if (ROOT / file).is_file()]
    with tempfile.TemporaryDirectory(prefix="mutations_") as home, ThreadPoolExecutor(int(jobs)) as pool:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(int(jobs)):
            copies.put(Copy(ROOT, files, Path(home) / str(number)))

        def timed(run: Callable[[Copy], str]) -> tuple[str, float]:
            """Returns the verdict of tests in a copy that is free, and their seconds."""
            copy, begin_s = copies.get(), time.monotonic()
            try:
                return run(copy), time.monotonic() - begin_s
            finally:
                copies.put(copy)

        tests = sorted({test for mutation in chosen for test in mutation.tests})
        before = pool.map(lambda test: timed(lambda copy: copy.verdict([test]))[0], tests)
        red = {test: verdict for test, verdict in zip(tests, before, strict=True) if verdict != PASSED}
        print("".join(f"fails without a mutation: {test} {verdict}\n" for test, verdict in red.items()), end="")
        running = {
            pool.submit(timed, lambda copy, mutation=mutation: copy.verdict_on(mutation)): mutation
            for mutation in chosen
            if not red.keys() & {*mutation.tests}
        }
        found = 0
        for future in as_completed(running):
            mutation, (verdict, seconds) = running[future], future.result()
            found += verdict.startswith("found")
            print(f"{seconds:5.1f} s  {mutation.file}: {mutation.broken}  {verdict}", flush=True)
    print(f"{found} of {len(chosen)} mutations found in {time.monotonic() - begin_s:.0f} s")
    return int(found < max(1, len(chosen)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
