"""The end of sweeps whose jobs other launchers run: the state of each job, the best one, the page, the exit code."""

import os
from pathlib import Path
from typing import Any

import pytest
from hydra.core.utils import JobReturn
from omegaconf import DictConfig, OmegaConf

from src import cli
from src.errors import UserError
from src.report.job import SweepJob, read_job
from src.report.record import Record, RunError, write_record
from src.report.typed import build
from src.sweep.grid import Reported, ended
from src.system.files import check_free
from tests.sweep.test_sweep import fault, sweep
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
