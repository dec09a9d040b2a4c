"""A case passes only where every command ends as it must and the losses that must agree do."""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
import torch

from tests.options import page
from tests.options.cases import Case
from tests.options.judge import (
    FAILED,
    NOT_RUN,
    NOT_TRIED,
    PASSED,
    REFUSED,
    Losses,
    Refusal,
    disagreement,
    judged_refusal,
    refusal_of,
    wrong_losses,
)
from tests.options.run import TIMED_OUT, Command, Ended, Work, kill, run_all, shares_of_cores, start
from tests.options.trying import Found, Trial, part_of
from tests.support import ROOT

FALLING: Losses = [(step, 10.0 - step / 4) for step in range(1, 25)]
CASE = Case("moflow/quick: x=1", "moflow/quick", ("x=1",))


def with_last(loss: float) -> Losses:
    return [*FALLING[:-1], (24, loss)]


@pytest.mark.parametrize(
    ("other", "precision", "word"),
    [
        (FALLING, "fp32", ""),
        ([(step, loss * (1 + 1e-6)) for step, loss in FALLING], "fp32", ""),
        ([(step, loss * 1.001) for step, loss in FALLING], "fp32", "from step 1 on"),
        ([(step, loss * 1.001) for step, loss in FALLING], "amp", ""),
        ([(step, loss * (1.5 if step > 12 else 1)) for step, loss in FALLING], "bf16", "from step 13 on"),
        (with_last(math.nan), "amp", "inf later"),
        ([], "fp32", "no loss of the same step"),
    ],
)
def test_losses_that_must_agree(other: Losses, precision: str, word: str) -> None:
    message = disagreement("graph and eager", FALLING, other, precision)[0]
    assert (message == "") == (word == "") and word in message


def test_losses_of_one_run() -> None:
    assert wrong_losses(FALLING, 24) == ""
    assert wrong_losses(FALLING[:20], 24) == "20 losses of 24 steps"
    assert wrong_losses(with_last(math.inf), 24) == "a loss is not finite"


def test_a_refusal_needs_its_exit_code_and_its_line() -> None:
    row = Refusal("moflow/*: x=1", "give y", "x is not for GPUs")
    assert refusal_of("moflow/quick: x=1", "cuda", [row]) == row
    assert refusal_of("dlrm/quick: x=1", "cuda", [row]) is None
    assert judged_refusal(row, {"train": (2, "x=1: give y")}) == ""
    for code, line in ((0, ""), (1, "x=1: give y"), (2, "another mistake")):
        assert "was to be refused" in judged_refusal(row, {"train": (code, line)}), (code, line)


def verdict(outcome: Found, case: Case = CASE, done: bool = True) -> tuple[str, str]:
    trial = Trial(Path(), "cuda", 0.0, 1, outcomes={case.name: outcome}, done={case.name} if done else set())
    trial.done |= {"moflow/quick: as it is"}
    trial.outcomes["moflow/quick: as it is"] = Found(losses={"off": FALLING, "on": FALLING})
    result = trial.verdict(case)
    return result.status, result.why


def ended(tmp_path: Path, code: int = 0, printed: str = "") -> Ended:
    log = tmp_path / f"log_{code}.txt"
    log.write_text(printed)
    return Ended(code, 1.0, log)


def test_verdicts(tmp_path: Path) -> None:
    good, both = ended(tmp_path), {"off": FALLING, "on": FALLING}
    ends = {"train graph=off": good, "train graph=on": good}
    assert verdict(Found(ends, both)) == (PASSED, "")
    apart = {"off": FALLING, "on": [(step, 2 * loss) for step, loss in FALLING]}
    assert verdict(Found(ends, apart))[0] == FAILED
    crashed = ended(tmp_path, 1, "Traceback\nRuntimeError: no\n")
    status, why = verdict(Found({"train graph=off": good, "train graph=on": crashed}, {"off": FALLING}))
    assert status == FAILED and why == "train graph=on ended with 1: RuntimeError: no"
    mistake = ended(tmp_path, 2, "error: x=1 is not allowed\n")
    assert verdict(Found({"train graph=off": mistake})) == (FAILED, "train graph=off ended with 2: x=1 is not allowed")
    absent = ended(tmp_path, 2, "error: FCD and NSPDK need the package fcd_torch; install the extra distances\n")
    assert verdict(Found({"train graph=off": absent}))[0] == NOT_TRIED
    assert verdict(Found(ends, both), done=False)[0] == NOT_RUN
    twin = Case(CASE.name, CASE.base, CASE.train, twin="moflow/quick: as it is")
    assert verdict(Found(ends, both), twin)[0] == PASSED
    other: dict[str, Losses] = {graph: [(step, loss + 1) for step, loss in FALLING] for graph in both}
    assert verdict(Found(ends, other), twin)[0] == FAILED
    late = Case(CASE.name, CASE.base, CASE.train, twin="moflow/quick: x=2")
    assert verdict(Found(ends, both), late)[0] == NOT_RUN  # what it is compared with was not reached
    bare = ended(tmp_path, 1, "Traceback\nModuleNotFoundError: No module named 'polars'\nnote: more\n")
    assert verdict(Found({"prepare": bare})) == (NOT_TRIED, "the package polars is not installed")


def test_parts_have_every_case_once_and_their_bases() -> None:
    every = [Case("a: as it is", "a", ("x",))]
    every += [Case(f"a: {number}", "a", ("x",), twin="a: as it is") for number in range(10)]
    parts = [part_of(every, f"{number}/3", "*") for number in (1, 2, 3)]
    assert {case.name for part in parts for case in part} == {case.name for case in every}
    assert all(part[0].name == "a: as it is" for part in parts)
    assert sum(map(len, parts)) == len(every) + 2
    assert [case.name for case in part_of(every, "1/1", "a: 3")] == ["a: as it is", "a: 3"]
    done = {case.name for case in every} - {"a: 7"}
    assert [case.name for case in part_of(every, "1/1", "a: *", done)] == ["a: as it is", "a: 7"]


def test_commands_run_in_forks_and_are_killed_in_time(tmp_path: Path) -> None:
    (tmp_path / "prints.py").write_text("import sys\nprint(sys.argv[1])\nsys.exit(3)\n")
    (tmp_path / "waits.py").write_text("import signal\nsignal.pause()\n")
    (tmp_path / "threads.py").write_text("import torch\nprint(torch.get_num_threads())\n")
    ends = list[tuple[int, str]]()

    def work(name: str) -> Work:
        for script, limit_s in (("prints.py", 60.0), ("threads.py", 60.0), ("waits.py", 0.2)):
            end = yield Command(str(tmp_path / script), ("x=1",), tmp_path / name / f"{script}.txt", limit_s)
            ends.append((end.code, end.printed.strip()))

    shares = [len(cores) for cores in shares_of_cores(2)]
    torch.set_num_threads(8)  # of this process and of its forks, which take fewer
    with tempfile.TemporaryDirectory() as folder:
        run_all([work("one"), work("two")], 2, time.monotonic() + 60)
        assert Path(folder).exists()  # no fork removed it at its exit
    torch.set_num_threads(1)
    assert sorted(ends) == [(0, str(max(shares))), (0, str(min(shares))), (3, "x=1"), (3, "x=1"),
                            (TIMED_OUT, ""), (TIMED_OUT, "")]  # fmt: skip


def test_nothing_outlives_the_end(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text("import signal\nsignal.pause()\n")

    def work() -> Work:
        yield Command(str(tmp_path / "waits.py"), (), tmp_path / "log.txt", 60.0)

    before = set(psutil.Process().children())  # of tests before it in this process
    run_all([work()], 1, time.monotonic() + 0.2, last_s=0.0)
    assert set(psutil.Process().children()) <= before


def test_a_process_is_killed_before_it_has_a_group(tmp_path: Path) -> None:
    kill(start(Command(str(tmp_path / "none.py"), (), tmp_path / "log.txt", 60.0)))


def test_the_page_has_what_failed_and_what_agreed() -> None:
    case = {"name": "moflow/quick: x=1", "status": PASSED, "difference": 1.234e-7}
    failed = {"name": "moflow/published: x=1", "status": FAILED, "why": "train ended with 1: no | yes"}
    run = {"device": "NVIDIA H100", "gpus": 1, "torch": "2.11.0", "date": "2026-11-27", "seconds": 500}
    call = run | {"sources": {"commit": "0123456789", "dirty": False}, "cases": [case, failed]}
    result = page.joined([call])
    text = page.page(result)
    assert "Of 2 options that were tried, 1 run, 0 are refused" in text and "1 fail." in text
    assert result["cases"]["moflow/quick: x=1"] == [0, PASSED, "1e-07"] and r"no \| yes" in text
    assert "| NVIDIA H100 | 2.11.0 | 2026-11-27 | 0123456 (500 s) |" in text
    assert json.loads(page.shown(result)) == result
    mended = call | {"cases": [failed | {"status": PASSED, "difference": 0.0}], "date": "2026-11-28"}
    assert [row[1] for row in page.joined([result, mended])["cases"].values()] == [PASSED, PASSED]


def test_the_committed_page_is_that_of_its_result() -> None:
    assert page.PAGE.exists() == page.RESULT.exists()
    if page.RESULT.exists():
        result = json.loads(page.RESULT.read_text(encoding="utf-8"))
        assert page.PAGE.read_text(encoding="utf-8") == page.page(result)


@pytest.mark.slow
def test_some_options_on_a_cpu(tmp_path: Path) -> None:
    only = "ONLY=mobilenet_v1/quick: *precision=tf32"
    command = [sys.executable, "-m", "tests.options", "DEVICE=cpu", "AT_ONCE=2", f"OUT={tmp_path}", only]
    subprocess.run(command, cwd=ROOT, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    cases = json.loads((tmp_path / "options_1_of_1.json").read_text())["cases"]
    assert {case["name"]: case["status"] for case in cases} == {
        "mobilenet_v1/quick: as it is": PASSED,
        "mobilenet_v1/quick: precision=tf32": REFUSED,
        "mobilenet_v1/quick: predict precision=tf32": REFUSED,
    }
