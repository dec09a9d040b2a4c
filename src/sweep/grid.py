"""Hydra's grid of jobs, whose end is the same whichever launcher runs them: table, best job, page, exit code."""

import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from src import cli
from src.config.explain import explain
from src.config.hydra_files import without_secrets
from src.config.ranges import Count
from src.config.values import check_plugin
from src.errors import UserError
from src.report.job import SweepJob, write_job
from src.sweep.launcher import IsolatedLauncher, complain, job_return, sweep_job
from src.sweep.outcome import Exit, outcome, record_of
from src.sweep.status import print_results
from src.system.files import check_free
from src.system.masking import masked_text

MOST_LETTERS = 300  # of a launcher's error, which may hold all that a job printed
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

    `job.json` in the folder of each job says how it ended, so that `report.py` reads the sweep like any other.
    """

    def __init__(self, launcher: Launcher, context: HydraContext, config: DictConfig) -> None:
        self.launcher, self.context, self.config = launcher, context, config
        self.jobs: dict[Path, SweepJob] = {}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Does nothing: Hydra has set up the launcher that is wrapped."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Runs all jobs; an error of the launcher is the reason of those that have no result."""
        folders = [self._register(overrides, initial_job_idx + i) for i, overrides in enumerate(job_overrides)]
        before = {folder: written_at(folder) for folder in folders}
        results: Sequence[JobReturn | None] = [None] * len(folders)
        problem = "the sweep was ended before"
        try:
            results = self.launcher.launch(job_overrides, initial_job_idx)
        except Exception as error:
            if cli.DEBUGGING:
                raise
            problem = masked_text(f"{type(error).__name__}: {' '.join(str(error).split())}")[:MOST_LETTERS]
        finally:
            for folder, result in zip(folders, results, strict=True):
                is_new = written_at(folder) != before[folder]
                self.jobs[folder] = ended(folder, self.jobs[folder], result, problem, is_new)
                write_job(folder, self.jobs[folder])
        return [job_return(folder, self.jobs[folder]) for folder in folders]

    def finish(self) -> None:
        """Prints the results; the exit code is 2 if a job is not done."""
        if "ray" in sys.modules:
            sys.modules["ray"].shutdown()  # which prints what the jobs have printed
        if self.jobs:
            print_results(Path(self.config.hydra.sweep.dir), self.jobs, len(self.jobs))
        if sys.exc_info()[0] is None:
            cli.run_job(lambda _: complain(self.jobs), self.config)

    def _register(self, overrides: Sequence[str], number: int) -> Path:
        composed = self.context.config_loader.load_sweep_config(self.config, list(overrides))
        with open_dict(composed):
            composed.hydra.job.num = number
        folder = Path(composed.hydra.sweep.dir) / str(composed.hydra.sweep.subdir)
        folder.mkdir(parents=True, exist_ok=True)
        job = sweep_job(self.context, self.config, overrides, ["output_dir"])
        self.jobs[folder] = job.with_(begun_s=time.time())
        write_job(folder, job)
        return folder


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
    if record is not None and record.e2e_time_s is not None:
        end_s = (folder / "result.json").stat().st_mtime
        job = job.with_(begun_s=end_s - record.e2e_time_s, ended_s=end_s)
    if result is not None and failure is None:
        return job.with_(state="done" if record is None else record.status)
    if record is not None and (record.status != "done" or result is None):
        state, reason = outcome(folder, Exit(exit_code=0))
        return job.with_(state=state, reason=reason)
    if result is None and is_in_use(folder):
        return job.with_(state="running", reason=f"goes on without its launcher, which ended with {problem}")
    return job.with_(state="failed", reason=str(failure))


def is_in_use(folder: Path) -> bool:
    """Returns whether a run is writing in a folder."""
    try:
        os.close(check_free(folder))
    except UserError:
        return True
    return False
