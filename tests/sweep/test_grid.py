"""The end of sweeps whose jobs other launchers run: the state of each job, the best one, the page, the exit code."""

import os
from pathlib import Path
from typing import Any

import pytest
from hydra.core.utils import JobReturn
from omegaconf import DictConfig, OmegaConf

from src import cli
from src.errors import UserError
from src.report.job import SweepJob, read_job, write_job
from src.report.record import Record, RunError, read_record, write_record
from src.report.typed import build
from src.sweep.grid import Reported, current, ended
from src.system.files import check_free
from tests.sweep.test_sweep import fault, rows, sweep
from tests.sweep.test_table import CASE

JOB = SweepJob("key", [], [], "")


def record(status: Any) -> Record:
    error = None if status == "done" else build(RunError, {"type": "ValueError", "message": "broken", "where": None})
    return Record(kind="train", case=CASE, status=status, unit="images", error=error, e2e_time_s=3.0)


def failing(error: BaseException) -> Any:
    def task(config: DictConfig) -> None:
        raise error

    return task


@pytest.mark.parametrize(
    ("status", "result", "is_new", "state", "reason"),
    [
        ("done", JobReturn(_return_value=None), True, "done", None),
        ("failed", JobReturn(_return_value="ValueError: broken"), True, "failed", "ValueError: broken"),
        ("failed", None, True, "failed", "ValueError: broken"),
        ("done", None, True, "done", None),
        ("done", None, False, "failed", "the launcher's error"),  # a record of before says nothing of this job
        (None, None, False, "failed", "the launcher's error"),
        (None, JobReturn(_return_value="no such file"), False, "failed", "no such file"),
        (None, JobReturn(_return_value=None), False, "done", None),  # of a command without records
    ],
)
def test_the_state_of_a_job_is_that_of_its_record_or_what_its_launcher_says(
    status: str | None, result: JobReturn | None, is_new: bool, state: str, reason: str | None, tmp_path: Path
) -> None:
    if status is not None:
        write_record(record(status), tmp_path / "result.json")
    job = ended(tmp_path, JOB, result, "the launcher's error", is_new)
    assert (job.state, job.reason) == (state, reason)
    assert job.seconds == (pytest.approx(3.0) if status is not None and is_new else None)


def test_a_job_that_goes_on_without_its_launcher_is_running(tmp_path: Path) -> None:
    lock = check_free(tmp_path)
    assert ended(tmp_path, JOB, None, "a timeout", False).state == "running"
    os.close(lock)
    assert ended(tmp_path, JOB, None, "a timeout", False).state == "failed"


def test_a_failure_is_returned_and_a_signal_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    config = OmegaConf.create()
    monkeypatch.setattr(cli, "_failures", [])
    assert Reported(lambda config: None)(config) is None
    assert Reported(failing(cli.Unexpected(ValueError("broken"))))(config) == "ValueError: broken"
    assert Reported(failing(SystemExit(2)))(config) == "exit code 2"
    mistaken = Reported(lambda config: cli.run_job(failing(UserError("give another file")), config))
    assert mistaken(config) == "give another file"
    for code in (130, -1):
        with pytest.raises(SystemExit):
            Reported(failing(SystemExit(code)))(config)


@pytest.mark.slow
def test_a_sweep_of_hydras_launcher_ends_in_the_best_job_and_the_page(tmp_path: Path) -> None:
    done = sweep(tmp_path, "seed=1,2,3", "hydra/launcher=basic", "fit.final_evaluation=true", fault(tmp_path, oom=1))
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1] == "error: 1 of 3 jobs are not done: 0; the reasons are above"
    reason, states, best, page = done.stdout.splitlines()[-4:]
    assert reason.startswith("job 0 oom: RuntimeError: ") and states.startswith("3 jobs: 2 done, 1 oom; ")
    assert best.startswith(("best: job 1 (seed=2), top1 ", "best: job 2 (seed=3), top1 "))
    assert page == f"comparison: {tmp_path / 'sweep' / 'comparison.html'}"
    assert [read_job(tmp_path / "sweep" / str(number)).state for number in range(3)] == ["oom", "done", "done"]


@pytest.mark.slow
def test_hydras_launcher_goes_on_with_an_interrupted_sweep_and_runs_no_job_twice(tmp_path: Path) -> None:
    asked = (
        "hydra/sweeper=basic", "hydra/launcher=basic", "callbacks=default", "~callbacks.progress",
        "fit.checkpoint_every_n_steps=1", fault(tmp_path, interrupt=2),
    )  # fmt: skip
    stopped = sweep(tmp_path, *asked, "seed=1,2,3")
    assert stopped.returncode == 130, stopped.stderr
    assert stopped.stderr.splitlines()[-1].endswith(f"add sweep.resume={tmp_path / 'sweep'} to the same command")
    assert [row["state"] for row in rows(tmp_path)] == ["done", "interrupted", "waiting"]
    begun = tmp_path / "notes"
    again = sweep(tmp_path, *asked, "seed=1,2,3,4,4", f"sweep.resume={tmp_path / 'sweep'}")
    assert again.returncode == 0, again.stderr
    assert "4 jobs: 4 done (1 asked for again and not run again)" in again.stdout
    assert begun.read_text().split() == ["1", "2", "2", "3", "4"]
    assert read_record(tmp_path / "sweep" / "1").samples == 3 * 8  # of both legs
    same = sweep(tmp_path, "hydra/launcher=basic", f"sweep.resume={tmp_path / 'sweep'}", grid=False)
    assert same.returncode == 0 and "4 jobs: 4 done; " in same.stdout, same.stderr
    assert len(begun.read_text().split()) == 5


@pytest.mark.slow
def test_a_killed_sweep_of_hydras_launcher_goes_on_with_the_job_that_it_was_in(tmp_path: Path) -> None:
    asked = "hydra/launcher=basic", "seed=1,2", fault(tmp_path, die=2)
    assert sweep(tmp_path, *asked).returncode == -9
    ended = sweep(tmp_path, *asked, f"sweep.resume={tmp_path / 'sweep'}")
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "notes").read_text().split() == ["1", "2", "2"]


@pytest.mark.slow
def test_jobs_have_the_folders_that_a_key_names(tmp_path: Path) -> None:
    named = "hydra.sweep.subdir='lr=${hp.lr}'", "hydra/launcher=basic"
    done = sweep(tmp_path, *named, "hp.lr=0.05,0.1")
    assert done.returncode == 0, done.stderr
    assert [read_record(tmp_path / "sweep" / name).config["hp"]["lr"] for name in ("lr=0.05", "lr=0.1")] == [0.05, 0.1]
    other = sweep(tmp_path, *named, "seed=7,8")
    assert other.returncode == 2
    assert "hydra.sweep.subdir=lr=0.05: two jobs have this folder" in other.stderr


def test_a_job_of_a_launcher_that_has_ended_is_what_its_folder_says(tmp_path: Path) -> None:
    write_job(tmp_path, JOB.with_(state="running"))
    lock = check_free(tmp_path)
    assert current(tmp_path).state == "running"
    os.close(lock)
    assert current(tmp_path).state == "interrupted"
    write_record(record("done"), tmp_path / "result.json")
    assert current(tmp_path).state == read_job(tmp_path).state == "done"
