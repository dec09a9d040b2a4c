"""Sweeps of real runs: what survives, what is told, and that nothing is run twice."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from src.report.record import read_record
from tests.support import ROOT
from tests.support.tiny_mobilenet import tiny_overrides

pytestmark = pytest.mark.slow

SHORT = (
    "callbacks=bare",
    "fit.max_steps=3",
    "fit.eval_every_n_epochs=null",
    "fit.final_evaluation=false",
    "measure.window=1",
)


def sweep(home: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    """`python train.py -m` with tiny runs, two at once, in `home`/sweep."""
    mine = [text for text in tiny_overrides(home) if not text.startswith(("output_dir=", "~", "measure.window"))]
    return subprocess.run(
        [sys.executable, "train.py", "-m", *mine, *SHORT, f"hydra.sweep.dir={home / 'sweep'}", "sweep.parallel=2",
         *overrides],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def fault(home: Path, **faults: int) -> str:
    values = "".join(f",{name}:{seed}" for name, seed in faults.items())
    return (
        f"+callbacks.fault={{_target_:tests.support.sweep_faults.Fault,seed:${{seed}},notes:{home / 'notes'}{values}}}"
    )


def rows(home: Path) -> dict[str, dict[str, str]]:
    """Returns the rows of results.csv by seed."""
    with (home / "sweep" / "results.csv").open(newline="", encoding="utf-8") as file:
        return {row["seed"]: row for row in csv.DictReader(file)}


@pytest.mark.slow
def test_a_sweep_outlives_its_failures_and_its_launcher(tmp_path: Path) -> None:
    asked = (f"seed={','.join(map(str, range(1, 13)))}", fault(tmp_path, oom=2, diverge=3, crash=4, kill=6))
    killed = sweep(tmp_path, *asked)
    assert killed.returncode == -9
    assert not (tmp_path / "sweep" / "results.csv").exists()
    ended = sweep(tmp_path, *asked, f"sweep.resume={tmp_path / 'sweep'}")
    assert ended.returncode == 2, ended.stderr
    results = rows(tmp_path)
    assert list(results) == [str(seed) for seed in range(1, 13)]
    assert {seed: row["state"] for seed, row in results.items() if row["state"] != "done"} == {
        "2": "oom", "3": "failed", "4": "failed",
    }  # fmt: skip
    assert "can't allocate memory" in results["2"]["reason"]
    assert "the loss is infinite or NaN at step 2" in results["3"]["reason"]
    assert "killed by SIGABRT" in results["4"]["reason"]
    assert all(results[seed]["reason"] in ended.stdout for seed in "234")
    assert "12 jobs: 9 done, 2 failed, 1 oom" in ended.stdout
    assert "error: 3 of 12 jobs are not done: 1, 2, 3;" in ended.stderr
    assert sorted(map(int, (tmp_path / "notes").read_text().split())) == list(range(1, 13))  # none of them twice
    assert all(float(row["p_train"]) > 0 for row in results.values() if row["state"] == "done")


@pytest.mark.slow
def test_ctrl_c_ends_the_running_jobs_and_the_sweep_goes_on_from_their_checkpoints(tmp_path: Path) -> None:
    asked = (
        "seed=1,2", "callbacks=default", "~callbacks.progress", fault(tmp_path, stop=1), "sweep.parallel=1",
        "fit.checkpoint_every_n_steps=1",
    )  # fmt: skip
    stopped = sweep(tmp_path, *asked)
    assert stopped.returncode == 130, stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert f"sweep.resume={tmp_path / 'sweep'}" in stopped.stderr
    assert [row["state"] for row in rows(tmp_path).values()] == ["interrupted", "waiting"]
    first = tmp_path / "sweep" / "0"
    assert read_record(first).samples == 2 * 8  # the step that it was in is not the last
    ended = sweep(tmp_path, f"sweep.resume={tmp_path / 'sweep'}", *asked)
    assert ended.returncode == 0, ended.stderr
    assert {row["state"] for row in rows(tmp_path).values()} == {"done"}
    assert read_record(first).samples == 3 * 8  # of both legs: one step was left


@pytest.mark.slow
def test_what_is_the_same_is_run_once_and_what_is_new_is_added(tmp_path: Path) -> None:
    ended = sweep(tmp_path, "seed=1", "hp.lr=0.05,5e-2", fault(tmp_path))
    assert ended.returncode == 0, ended.stderr
    assert "1 job: 1 done (1 asked for again and not run again)" in ended.stdout
    more = sweep(tmp_path, "seed=1,2", fault(tmp_path), f"sweep.resume={tmp_path / 'sweep'}")
    assert more.returncode == 0, more.stderr
    assert list(rows(tmp_path)) == ["1", "2"]
    assert (tmp_path / "notes").read_text().split() == ["1", "2"]


def test_a_time_limit_is_a_row(tmp_path: Path) -> None:
    ended = sweep(tmp_path, "seed=1,2", "sweep.timeout_s=0.2")
    assert ended.returncode == 2, ended.stderr
    assert {(row["state"], row["reason"]) for row in rows(tmp_path).values()} == {
        ("timeout", "longer than sweep.timeout_s=0.2")
    }


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["output_dir=there"], "output_dir is for one run"),
        (["sweep.resume=elsewhere"], "sweep.resume=elsewhere: there is no such folder"),
        (["sweep.parallel=0"], "sweep.parallel=0 is not allowed; expected a whole number of 1 or more, or null"),
        (
            ["hydra.launcher.timeout_s=-1"],
            "timeout_s=-1 is not allowed; expected a number above 0, or null",
        ),
        (
            ["hydra.sweeper.max_batch_size=0"],
            "max_batch_size=0 is not allowed; expected a whole number of 1",
        ),
        (
            ["hydra/sweeper=search", "hydra.sweeper.trials=0"],
            "trials=0 is not allowed; expected a whole number",
        ),
        (
            ["hydra/sweeper=search", "hydra.sweeper.seed=-1"],
            "seed=-1 is not allowed; expected a whole number",
        ),
        (["hp.lr=1e-3,many"], "hp.lr: Value 'many'"),
    ],
)
def test_a_mistake_is_one_line_and_starts_nothing(tmp_path: Path, overrides: list[str], words: str) -> None:
    ended = sweep(tmp_path, *overrides)
    assert ended.returncode == 2
    assert words in ended.stderr and "Traceback" not in ended.stderr
    assert not list((tmp_path / "sweep").glob("*/job.json"))


class TestSearch:
    """Optuna proposes, the launcher runs."""

    SPACE = ("hp.lr=tag(log,interval(1e-3,1e-1))", "hp.batch_size=4,8")
    ASKED = ("hydra/sweeper=search", "hydra.sweeper.trials=2", "hydra.sweeper.maximize=p_train", "sweep.parallel=1")

    @pytest.mark.slow
    def test_a_killed_search_goes_on_with_the_trials_that_it_has(self, tmp_path: Path) -> None:
        asked = (*self.ASKED, *self.SPACE, fault(tmp_path, kill=1))
        assert sweep(tmp_path, *asked).returncode == -9
        ended = sweep(tmp_path, *asked, f"sweep.resume={tmp_path / 'sweep'}")
        assert ended.returncode == 0, ended.stderr
        with (tmp_path / "sweep" / "results.csv").open(newline="", encoding="utf-8") as file:
            trials = list(csv.DictReader(file))
        assert len(trials) == 2
        assert len((tmp_path / "notes").read_text().split()) == 2  # the one that the kill left was not run again
        assert all(1e-3 <= float(row["hp.lr"]) <= 1e-1 for row in trials)
        best = max(trials, key=lambda row: float(row["p_train"]))
        assert f"hp.lr={best['hp.lr']}" in ended.stdout.splitlines()[-1]

    @pytest.mark.parametrize(
        ("overrides", "words"),
        [
            (["hp.lr=1,2", "hydra.sweeper.minimize=p_core"], "maximize=FIGURE or hydra.sweeper.minimize=FIGURE"),
            (["hp.lr=1,2", "hydra.sweeper.maximize=speed"], "cannot go by 'speed'; choose from final_metric"),
            (["hp.lr=0.1"], "needs something to search"),
        ],
    )
    def test_a_mistake_is_one_line(self, tmp_path: Path, overrides: list[str], words: str) -> None:
        ended = sweep(tmp_path, *self.ASKED, *overrides)
        assert ended.returncode == 2
        assert words in ended.stderr and "Traceback" not in ended.stderr
