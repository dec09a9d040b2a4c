"""Hydra's grid of jobs, whose end is the same whichever launcher runs them: table, best job, page, exit code."""

import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from src import cli
from src.config.explain import explain
from src.config.hydra_files import without_secrets
from src.config.ranges import Count
from src.config.values import check_plugin
from src.errors import UserError
from src.report.job import SweepJob, alive, quote, quote_path, read_job, sole_launcher, write_job
from src.report.record import Record
from src.sweep.launcher import IsolatedLauncher, claim_folder, complain, job_return, planned, way_to_resume
from src.sweep.outcome import Exit, outcome, record_of
from src.system.files import check_free
from src.system.masking import masked_text

MOST_LETTERS = 300  # of a launcher's error, which may hold all that a job printed
TO_RUN = ("waiting", "interrupted")  # states of jobs that a launcher runs
POLL_S = 0.5
FAILED = (1, 2)  # exit codes of a run that failed; others are those of signals and of schedulers


class GridSweeper(Sweeper):
    """Hydra's own sweeper; its `multirun.yaml` has no secrets. The launcher has its own config, with them.

    Args:
        max_batch_size, params: as Hydra's.
    """

    def __init__(self, max_batch_size: Count | None = None, params: dict[str, Any] | None = None) -> None:
        # Here, because Hydra imports its plugins anew: a class of before would be another one.
        from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

        self.grid = BasicSweeper(max_batch_size, params)

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        check_plugin(config, "sweeper")
        self.grid.setup(hydra_context=hydra_context, task_function=Reported(task_function), config=config)
        if not isinstance(self.grid.launcher, IsolatedLauncher):
            assert self.grid.launcher is not None
            claim_folder(config)
            self.grid.launcher = ReportingLauncher(self.grid.launcher, hydra_context, config)

    def sweep(self, arguments: list[str]) -> Any:
        """Runs the jobs of the grid that the arguments span."""
        assert self.grid.config is not None
        self.grid.config = without_secrets(self.grid.config)
        try:
            return self.grid.sweep(arguments)
        finally:
            if isinstance(self.grid.launcher, ReportingLauncher):
                self.grid.launcher.finish()


class Reported:
    """A job's function that returns why the run failed, None for one that did not.

    With an error of its own a launcher would end before the other jobs, and forget the results of those before.
    """

    def __init__(self, task_function: TaskFunction) -> None:
        self.task_function = task_function

    def __call__(self, config: DictConfig) -> str | None:
        mistakes = len(cli.failures())
        try:
            self.task_function(config)
        except cli.Unexpected as error:
            traceback.print_exception(error.error)
            return masked_text(f"{type(error.error).__name__}: {error.error}")
        except SystemExit as error:
            if error.code not in FAILED:
                raise
            return f"exit code {error.code}"
        return masked_text(explain(cli.failures()[-1])) if len(cli.failures()) > mistakes else None


class ReportingLauncher(Launcher):
    """Has another launcher run the jobs, on a cluster or in this process, and ends the sweep as IsolatedLauncher does.

    `job.json` in the folder of each job says how it ended, so that `report.py` and `sweep.resume` read any sweep alike.
    """

    def __init__(self, launcher: Launcher, context: HydraContext, config: DictConfig) -> None:
        self.launcher, self.context, self.config = launcher, context, config
        self.folder = Path(config.hydra.sweep.dir)
        self.jobs: dict[Path, SweepJob] = {}
        self.num_requested = 0

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Does nothing: Hydra has set up the launcher that is wrapped."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Runs the jobs that have not ended; waits for those that an earlier launcher has left running."""
        with sole_launcher(self.folder):
            folders, asked = planned(self.context, self.config, job_overrides, ["output_dir"])
            self.num_requested += len(folders)
            self.jobs |= {folder: current(folder) for folder in asked}
            left = {folder: job for folder, job in asked.items() if self.jobs[folder].state in TO_RUN}
            if left:
                self._run(left, initial_job_idx)
            for folder in asked:
                while is_in_use(folder):
                    time.sleep(POLL_S)
                self.jobs[folder] = current(folder)
        return [job_return(folder, self.jobs[folder]) for folder in folders]

    def _run(self, jobs: Mapping[Path, SweepJob], initial_job_idx: int) -> None:
        """Runs jobs; an error of the launcher is the reason of those that have no result."""
        before = {folder: written_at(folder) for folder in jobs}
        begun = {folder: self.jobs[folder].with_(begun_s=time.time(), ended_s=None, reason=None) for folder in jobs}
        results: Sequence[JobReturn | None] = [None] * len(jobs)
        problem, is_interrupted = "the sweep was ended before", True
        try:
            results = self.launcher.launch([in_folder(*entry) for entry in jobs.items()], initial_job_idx)
            is_interrupted = False
        except Exception as error:
            is_interrupted = False
            if cli.DEBUGGING:
                raise
            problem = masked_text(f"{type(error).__name__}: {' '.join(str(error).split())}")[:MOST_LETTERS]
        finally:
            for folder, result in zip(jobs, results, strict=True):
                job = ended(folder, begun[folder], result, problem, written_at(folder) != before[folder])
                if result is None and job.state == "failed" and job.reason == problem:
                    job = job.with_(state="interrupted" if is_interrupted else job.state)
                    job = job if has_begun(folder) else job.with_(state="waiting", begun_s=None)
                write_job(folder, job)
                self.jobs[folder] = job

    def finish(self) -> None:
        """Prints the results; the exit code is 2 if a job is not done."""
        if "ray" in sys.modules:
            sys.modules["ray"].shutdown()  # which prints what the jobs have printed
        if self.jobs:
            from src.sweep.status import print_results  # every command loads Hydra's plugins: a page needs much more

            print_results(self.folder, self.jobs, self.num_requested)
        if sys.exc_info()[0] is None:
            cli.run_job(lambda _: complain(self.jobs), self.config)
        elif self.jobs:
            print(way_to_resume(self.folder), file=sys.stderr)


def in_folder(folder: Path, job: SweepJob) -> list[str]:
    """Returns a job's overrides, with its folder and the checkpoint that it goes on from if it was interrupted."""
    where = [f"hydra.sweep.dir={quote_path(folder.parent)}", f"hydra.sweep.subdir={quote(folder.name)}"]
    checkpoint = folder / "checkpoints" / "last.ckpt"
    goes_on = checkpoint.exists() and not any(text.startswith(("resume=", "ckpt_path=")) for text in job.overrides)
    return [*job.overrides, *where, *([f"ckpt_path={quote_path(checkpoint)}"] if goes_on else [])]


def current(folder: Path) -> SweepJob:
    """Returns a job with its state now, which is written: its launcher may have ended before it."""
    job = read_job(folder)
    if job.ended:
        return job
    if is_in_use(folder):
        return job.with_(state="running", reason=None)
    if (record := record_of(folder)) is not None:
        state, reason = outcome(folder, Exit(exit_code=None))
        job = timed(folder, job, record).with_(state=state, reason=reason)
    elif job.state == "running":
        job = job.with_(state="interrupted", reason="killed before its record was written")
    write_job(folder, job)
    return job


def has_begun(folder: Path) -> bool:
    """Returns whether a job has written anything into its folder."""
    return any(entry.name not in ("job.json", "lock") for entry in folder.iterdir())


def written_at(folder: Path) -> int | None:
    """Returns when the record of a folder was written, None without one."""
    file = folder / "result.json"
    return file.stat().st_mtime_ns if file.exists() else None


def ended(folder: Path, job: SweepJob, result: JobReturn | None, problem: str, is_new: bool) -> SweepJob:
    """Returns a job that another launcher ran, with its state and times.

    Args:
        result: what the launcher returned, with what `Reported` returned in it; None where it ended with an error.
        problem: that error.
        is_new: whether the record is of this job, not of an earlier one in the same folder.
    """
    record = record_of(folder) if is_new else None
    failure = problem if result is None else result._return_value
    job = timed(folder, job, record)
    if result is not None and failure is None:
        return job.with_(state="done" if record is None else record.status)
    if record is not None and (record.status != "done" or result is None):
        state, reason = outcome(folder, Exit(exit_code=0))
        return job.with_(state=state, reason=reason)
    if result is None and is_in_use(folder):
        return job.with_(state="running", reason=f"goes on without its launcher, which ended with {problem}")
    return job.with_(state="failed", reason=str(failure))


def timed(folder: Path, job: SweepJob, record: Record | None) -> SweepJob:
    """Returns a job with the times of its record, unchanged without them."""
    if record is None or record.e2e_time_s is None:
        return job
    end_s = (folder / "result.json").stat().st_mtime
    return job.with_(begun_s=end_s - record.e2e_time_s, ended_s=end_s)


def is_in_use(folder: Path) -> bool:
    """Returns whether a run is writing in a folder, or a supervisor of IsolatedLauncher watches its job."""
    if alive(folder):
        return True
    try:
        os.close(check_free(folder))
    except UserError:
        return True
    return False
