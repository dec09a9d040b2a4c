"""Sweeps of real runs: what survives, what is told, and that nothing is run twice."""

import csv
import subprocess
from pathlib import Path

import pytest

from src.report.job import read_job
from src.report.record import read_record
from tests.support import warm
from tests.support.refusing import Command, EntryPoint
from tests.support.tiny_mobilenet import tiny_overrides

pytestmark = pytest.mark.slow

SHORT = (
    "callbacks=bare",
    "fit.max_steps=3",
    "fit.eval_every_n_epochs=null",
    "fit.final_evaluation=false",
    "measure.window=1",
)


def arguments(home: Path, *overrides: str) -> list[str]:
    """Returns those of a sweep of tiny runs, two at once, in `home`/sweep."""
    mine = [text for text in tiny_overrides(home) if not text.startswith(("output_dir=", "~", "measure.window"))]
    return ["-m", *mine, *SHORT, f"hydra.sweep.dir={home / 'sweep'}", "sweep.parallel=2", *overrides]


def sweep(home: Path, *overrides: str, grid: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs a sweep of `arguments`, or without `grid` one of these overrides alone."""
    return warm.run("train.py", *(arguments(home, *overrides) if grid else ["-m", *overrides]))


def fault(home: Path, **faults: int) -> str:
    values = "".join(f",{name}:{seed}" for name, seed in faults.items())
    return (
        f"+callbacks.fault={{_target_:tests.support.sweep_faults.Fault,seed:${{seed}},notes:{home / 'notes'}{values}}}"
    )


def rows(home: Path) -> list[dict[str, str]]:
    """Returns the rows of results.csv."""
    with (home / "sweep" / "results.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_sweep_outlives_its_failures_and_its_launcher_and_runs_each_job_once(tmp_path: Path) -> None:
    """Two learning rates are one, so each job is asked for twice; resuming adds the sixth seed."""
    more = "hp.lr=0.05,5e-2", fault(tmp_path, oom=1, diverge=2, crash=3, kill=4)
    killed = sweep(tmp_path, "seed=1,2,3,4,5", *more)
    assert killed.returncode == -9
    assert not (tmp_path / "sweep" / "results.csv").exists()
    ended = sweep(tmp_path, "seed=1,2,3,4,5,6", *more, f"sweep.resume={tmp_path / 'sweep'}")
    assert ended.returncode == 2, ended.stderr
    results = {row["seed"]: row for row in rows(tmp_path)}
    assert list(results) == list("123456")
    assert {seed: row["state"] for seed, row in results.items() if row["state"] != "done"} == {
        "1": "oom", "2": "failed", "3": "failed",
    }  # fmt: skip
    assert "can't allocate memory" in results["1"]["reason"]
    assert "the loss is infinite or NaN at step 2" in results["2"]["reason"]
    assert "killed by SIGABRT" in results["3"]["reason"]
    assert all(results[seed]["reason"] in ended.stdout for seed in "123")
    assert "6 jobs: 3 done, 2 failed, 1 oom (6 asked for again and not run again)" in ended.stdout
    assert "error: 3 of 6 jobs are not done: 0, 1, 2;" in ended.stderr
    assert sorted((tmp_path / "notes").read_text().split()) == list("123456")  # none of them twice
    assert all(float(row["p_train"]) > 0 for row in results.values() if row["state"] == "done")


def test_ctrl_c_ends_the_running_jobs_and_the_sweep_goes_on_from_their_checkpoints(tmp_path: Path) -> None:
    asked = (
        "seed=1,2", "callbacks=default", "~callbacks.progress", fault(tmp_path, stop=1), "sweep.parallel=1",
        "fit.checkpoint_every_n_steps=1",
    )  # fmt: skip
    stopped = sweep(tmp_path, *asked)
    assert stopped.returncode == 130, stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert f"sweep.resume={tmp_path / 'sweep'}" in stopped.stderr
    assert [row["state"] for row in rows(tmp_path)] == ["interrupted", "waiting"]
    first = tmp_path / "sweep" / "0"
    assert read_record(first).samples == 2 * 8  # the step that it was in is not the last
    ended = sweep(tmp_path, *asked, "seed=1", f"sweep.resume={tmp_path / 'sweep'}")  # a job, not its sweep
    assert ended.returncode == 0, ended.stderr
    assert read_job(first).state == "done"
    assert read_record(first).samples == 3 * 8  # of both legs: one step was left


def test_a_time_limit_is_a_row(tmp_path: Path, command: Command) -> None:
    ended = command("train.py", *arguments(tmp_path, "seed=1", "sweep.timeout_s=0.2"))
    assert ended.code == 2 and "error: 1 of 1 jobs are not done: 0; the reasons are above" in ended.err
    (row,) = rows(tmp_path)
    assert (row["state"], row["reason"]) == ("timeout", "longer than sweep.timeout_s=0.2")


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
def test_a_mistake_is_one_line_and_starts_nothing(
    tmp_path: Path, refused: EntryPoint, overrides: list[str], words: str
) -> None:
    assert words in refused("train.py", *arguments(tmp_path, *overrides))
    assert not list((tmp_path / "sweep").glob("*/job.json"))


class TestSearch:
    """Optuna proposes, the launcher runs."""

    SPACE = ("hp.lr=tag(log,interval(1e-3,1e-1))", "hp.batch_size=4,8")
    ASKED = ("hydra/sweeper=search", "hydra.sweeper.trials=2", "hydra.sweeper.maximize=p_train", "sweep.parallel=1")

    def test_a_killed_search_goes_on_with_the_trials_that_it_has(self, tmp_path: Path) -> None:
        asked = (*self.ASKED, *self.SPACE, fault(tmp_path, kill=1))
        assert sweep(tmp_path, *asked).returncode == -9
        ended = sweep(tmp_path, *asked, f"sweep.resume={tmp_path / 'sweep'}")
        assert ended.returncode == 0, ended.stderr
        trials = rows(tmp_path)
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
    def test_a_mistake_is_one_line(self, tmp_path: Path, refused: EntryPoint, overrides: list[str], words: str) -> None:
        assert words in refused("train.py", *arguments(tmp_path, *self.ASKED, *overrides))
