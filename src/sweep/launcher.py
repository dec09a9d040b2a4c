"""Hydra's launcher of this project: runs each job of `-m` in its own processes, several at once over the GPUs."""

import hashlib
import json
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from src.cli import run_job
from src.config.ranges import Count, Positive
from src.config.schema import Sweep
from src.config.settings import config_options
from src.config.values import check_plugin, check_values
from src.errors import UserError
from src.report.job import SweepJob, alive, job_folders, read_job, register_jobs, sole_launcher
from src.sweep.outcome import record_of
from src.sweep.runner import Runner, Slots
from src.system.files import claimed
from src.system.group import started_by
from src.system.interpreter import python
from src.system.loading import keep_loaded
from src.system.masking import MASK

# Hydra's settings of the sweep itself: they are not passed on to a job.
OF_THE_SWEEP = re.compile(r"[+~]*hydra[./](mode|sweep|launcher|sweeper|run)\b")
OF_ONE_RUN = ("output_dir", "resume")


class IsolatedLauncher(Launcher):
    """Runs the jobs of a sweep as docs/guides/sweeps.md describes.

    Args:
        parallel: jobs at once; None: one per GPU, or one on a machine without GPUs.
        timeout_s: wall seconds after which a job is ended, None: never.
    """

    def __init__(self, parallel: Count | None = None, timeout_s: Positive | None = None) -> None:
        self.slots, self.timeout_s = Slots(parallel=parallel, lock_gpus=True), timeout_s

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        check_values("sweep.", config.sweep, Sweep)  # first: hydra.launcher takes its values from there
        check_plugin(config, "launcher")
        keep_loaded()  # this process imports little, and lasts as long as its jobs
        claim_folder(config)
        self.context, self.config = hydra_context, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Runs all jobs and prints the results; the exit code is 2 if one is not done."""
        folders, jobs = self.run(job_overrides)
        from src.sweep.status import print_results  # every command loads Hydra's plugins: a page needs much more

        print_results(self.folder, jobs, len(folders))
        run_job(lambda _: complain(jobs), self.config)
        return [job_return(folder, jobs[folder]) for folder in folders]

    @property
    def folder(self) -> Path:
        """The folder of the sweep."""
        return Path(self.config.hydra.sweep.dir)

    def run(
        self, job_overrides: Sequence[Sequence[str]], shown: Collection[str] = ()
    ) -> tuple[list[Path], dict[Path, SweepJob]]:
        """Returns the folder of each job, and the ended jobs. After a signal, exits with 130 once they have ended.

        Args:
            shown: as for `Status`.
        """
        from src.sweep.status import Status, print_results

        setup_globals()
        if started_by() is not None:
            raise UserError("a sweep starts the processes of its jobs itself: run it without torchrun or srun")
        with sole_launcher(self.folder):
            folders, jobs = planned(self.context, self.config, job_overrides, OF_ONE_RUN, self.timeout_s)
            with Status(shown) as status:
                runner = Runner(self.slots, status)
                jobs = runner.run([*jobs], {folder: job.command for folder, job in jobs.items()})
        if runner.interrupts:
            print_results(self.folder, jobs, len(folders))
            print(way_to_resume(self.folder), file=sys.stderr)
            sys.exit(130)
        return folders, jobs


def way_to_resume(sweep: Path) -> str:
    """Returns the line that ends a sweep that was interrupted."""
    return f"interrupted; to resume, add sweep.resume={sweep} to the same command"


def claim_folder(config: DictConfig) -> None:
    """Makes the folder of a new sweep its own. Raises UserError where the one to be resumed is not there."""
    resume = OmegaConf.select(config, "sweep.resume")
    if resume is not None and not Path(resume).is_dir():
        raise UserError(f"sweep.resume={resume}: there is no such folder; give the folder of a sweep")
    chosen = any(text.startswith("hydra.sweep.dir=") for text in config.hydra.overrides.hydra)
    if resume is None and not chosen:
        with read_write(config), open_dict(config):
            config.hydra.sweep.dir = str(claimed(Path(config.hydra.sweep.dir)))


def planned(
    context: HydraContext,
    config: DictConfig,
    job_overrides: Sequence[Sequence[str]],
    refused: Sequence[str],
    timeout_s: float | None = None,
) -> tuple[list[Path], dict[Path, SweepJob]]:
    """Returns the folder of each job that is asked for, and the jobs by folder, with secrets.

    A sweep that is resumed without overrides has the same jobs as before. Raises UserError where one of these needs a
    secret.

    Args:
        refused, timeout_s: as for `sweep_job` and `SweepJob`.
    """
    sweep = Path(config.hydra.sweep.dir)
    requested = [[text for text in overrides if not text.startswith("sweep.")] for overrides in job_overrides]
    existing = list(job_folders(sweep).values())
    if existing and not any(requested):
        check_secrets(existing)
        return existing, {folder: read_job(folder) for folder in existing}
    jobs = [sweep_job(context, config, overrides, refused, timeout_s) for overrides in requested]
    folders = register_jobs(sweep, jobs, [*folder_names(context, config, requested)])
    return folders, dict(zip(folders, jobs, strict=True))


def folder_names(context: HydraContext, config: DictConfig, job_overrides: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yields the name of each job's folder where `hydra.sweep.subdir` is given; nothing otherwise."""
    if not any(text.startswith("hydra.sweep.subdir=") for text in config.hydra.overrides.hydra):
        return
    for number, overrides in enumerate(job_overrides):
        composed = context.config_loader.load_sweep_config(config, list(overrides))
        with open_dict(composed):
            composed.hydra.job.num = number
        yield str(composed.hydra.sweep.subdir)


def sweep_job(
    context: HydraContext,
    config: DictConfig,
    overrides: Sequence[str],
    refused: Sequence[str],
    timeout_s: float | None = None,
) -> SweepJob:
    """Returns a job of a sweep with the command that runs it on this machine. Raises UserError for a key of `refused`.

    Args:
        config: that of the sweep.
        refused: keys of one run that would have the jobs of a sweep share a folder or a checkpoint.
    """
    for key in refused:
        if any(text.startswith(f"{key}=") for text in overrides):
            raise UserError(
                f"{key} is for one run; a sweep has hydra.sweep.dir=FOLDER, and sweep.resume=FOLDER resumes it"
            )
    composed = context.config_loader.load_sweep_config(config, list(overrides))
    entry_point = Path(sys.argv[0]).resolve()
    hydra_overrides: Any = OmegaConf.to_container(config.hydra.overrides.hydra)
    kept = [text for text in hydra_overrides if not OF_THE_SWEEP.match(text)]
    return SweepJob(
        key=run_key(entry_point.name, composed),
        overrides=list(overrides),
        command=python(str(entry_point), *overrides, *kept, *config_options(config.hydra)),
        cwd=os.getcwd(),
        needs=gpus_of(composed),
        timeout_s=timeout_s,
    )


def gpus_of(config: DictConfig) -> int:
    """Returns the number of GPUs on this machine that a job needs if it has any."""
    if "model" not in config or OmegaConf.select(config, "hardware.accelerator") == "cpu":
        return 0
    return OmegaConf.select(config, "trainer.devices", default=1)


def check_secrets(folders: Sequence[Path]) -> None:
    """Raises UserError where a job still to be run was given a secret, since `job.json` does not hold secrets."""
    for folder in folders:
        job = read_job(folder)
        if not job.ended and not alive(folder) and any(MASK in word for word in job.command):
            raise UserError(
                f"{folder}: the job was given a secret, which is not kept; give all overrides of the sweep again, with "
                f"sweep.resume={folder.parent}"
            )


def complain(jobs: Mapping[Path, SweepJob]) -> None:
    """Raises UserError where a job is not done."""
    bad = [folder.name for folder, job in jobs.items() if job.state != "done"]
    if bad:
        raise UserError(f"{len(bad)} of {len(jobs)} jobs are not done: {', '.join(bad)}; the reasons are above")


def job_return(folder: Path, job: SweepJob) -> JobReturn:
    """Returns Hydra's result of a job: the final metric if it is done, else None."""
    record = record_of(folder)
    metric = record.final_metric.value if record and record.final_metric and job.state == "done" else None
    return JobReturn(overrides=job.overrides, status=JobStatus.COMPLETED, _return_value=metric)


def run_key(entry_point: str, config: DictConfig, groups: Sequence[str] = ()) -> str:
    """Returns a digest of the entry point's name and the composed config: `hp.lr=1e-3` and `hp.lr=0.001` are one run.

    With `groups`, only these top-level parts of the config count.
    """
    config = config.copy()
    with open_dict(config):
        config.output_dir = "."  # output and launcher settings do not change the result
        config.pop("hydra", None)
        config.pop("sweep", None)
    try:
        plain: Any = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException:  # the job itself will report this mistake
        plain = OmegaConf.to_container(config, resolve=False)
    plain = {name: part for name, part in plain.items() if not groups or name in groups}
    return hashlib.sha256(json.dumps([entry_point, sort_keys(plain)], default=str).encode()).hexdigest()[:16]


def sort_keys(plain: Any) -> Any:
    """Returns `plain` with each dictionary as a list of (key, value), sorted by key; keys may be of mixed types."""
    if isinstance(plain, dict):
        return sorted(([str(key), sort_keys(value)] for key, value in plain.items()), key=lambda pair: pair[0])
    return [sort_keys(value) for value in plain] if isinstance(plain, list) else plain
