"""Hydra's launcher of this project: every job of `-m` in processes of its own, several at once over the GPUs."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from src.cli import guarded
from src.errors import UserError
from src.sweep.identity import enrol, key_of
from src.sweep.job import Job, alive, folders_of, read_job, sole_launcher
from src.sweep.outcome import record_of
from src.sweep.runner import Runner, Slots
from src.sweep.status import Status, finish
from src.system.files import claimed
from src.system.group import started_by
from src.system.masking import MASK

# What this launcher decides for a job, whatever the sweep was given.
OURS = re.compile(r"[+~]*hydra[./](mode|sweep|launcher|sweeper|run)\b")
OF_ONE_RUN = ("output_dir", "resume")


class IsolatedLauncher(Launcher):
    """See docs/guides/sweeps.md.

    Args:
        parallel: jobs at once; None: as many as the GPUs carry, one on a machine without.
        timeout_s: seconds after which a job is ended, None: never.
    """

    def __init__(self, parallel: int | None = None, timeout_s: float | None = None) -> None:
        self.slots, self.timeout_s = Slots(parallel=parallel, alone=True), timeout_s

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        if self.slots.parallel is not None and self.slots.parallel < 1:
            raise UserError(f"sweep.parallel={self.slots.parallel} runs nothing; give 1 or more")
        resume = OmegaConf.select(config, "sweep.resume")
        if resume is not None and not Path(resume).is_dir():
            raise UserError(f"sweep.resume={resume}: there is no such folder; give the folder of a sweep")
        chosen = any(text.startswith("hydra.sweep.dir=") for text in config.hydra.overrides.hydra)
        if resume is None and not chosen:
            with read_write(config), open_dict(config):
                config.hydra.sweep.dir = str(claimed(Path(config.hydra.sweep.dir)))
        self.context, self.config = hydra_context, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Runs the jobs; what ended badly is told in the table and by exit code 2, and stops no other job."""
        folders, jobs = self.run(job_overrides)
        finish(self.folder, jobs, len(folders))
        guarded(lambda _: complain(jobs), self.config)
        return [returned(folder, jobs[folder]) for folder in folders]

    @property
    def folder(self) -> Path:
        """Of the sweep."""
        return Path(self.config.hydra.sweep.dir)

    def run(self, job_overrides: Sequence[Sequence[str]]) -> tuple[list[Path], dict[Path, Job]]:
        """The folder of each job, and the jobs as they ended; asked to end, this process ends when they have."""
        setup_globals()
        if started_by() is not None:
            raise UserError("a sweep starts the processes of its jobs itself: run it without torchrun or srun")
        with sole_launcher(self.folder):
            folders, commands = self._folders(self.folder, job_overrides)
            with Status() as status:
                runner = Runner(self.slots, status)
                jobs = runner.run(list(dict.fromkeys(folders)), commands)
        if runner.asked:
            finish(self.folder, jobs, len(folders))
            print(f"interrupted; the same command with sweep.resume={self.folder} goes on", file=sys.stderr)
            sys.exit(130)
        return folders, jobs

    def _folders(
        self, sweep: Path, job_overrides: Sequence[Sequence[str]]
    ) -> tuple[list[Path], dict[Path, Sequence[str]]]:
        """The folder of each job, and the commands by folder, with secrets.

        A sweep that goes on without being given anything has the jobs that it had. Raises UserError where one of these
        needs a secret.
        """
        asked = [[text for text in overrides if not text.startswith("sweep.")] for overrides in job_overrides]
        known = folders_of(sweep)
        if known and not any(asked):
            check_secrets([*known.values()])
            return [*known.values()], {}
        jobs = [self._job(given) for given in asked]
        folders = enrol(sweep, jobs)
        return folders, {folder: job.command for folder, job in zip(folders, jobs, strict=True)}

    def _job(self, overrides: Sequence[str]) -> Job:
        for key in OF_ONE_RUN:
            if any(text.startswith(f"{key}=") for text in overrides):
                raise UserError(
                    f"{key} is for one run; a sweep has hydra.sweep.dir=FOLDER, and goes on by sweep.resume=FOLDER"
                )
        config = self.context.config_loader.load_sweep_config(self.config, list(overrides))
        door = Path(sys.argv[0]).resolve()
        given: Any = OmegaConf.to_container(self.config.hydra.overrides.hydra)
        kept = [text for text in given if not OURS.match(text)]
        return Job(
            key=key_of(door.name, config),
            overrides=list(overrides),
            command=[sys.executable, str(door), *overrides, *kept],
            cwd=os.getcwd(),
            needs=gpus_of(config),
            timeout_s=self.timeout_s,
        )


def gpus_of(config: DictConfig) -> int:
    """How many GPUs of this machine a job takes where there are some."""
    if "model" not in config or OmegaConf.select(config, "hardware.accelerator") == "cpu":
        return 0
    return OmegaConf.select(config, "trainer.devices", default=1)


def check_secrets(folders: Sequence[Path]) -> None:
    """Raises UserError where a job that is to be run was given a secret, which no file of a sweep holds."""
    for folder in folders:
        job = read_job(folder)
        if not job.ended and not alive(folder) and any(MASK in word for word in job.command):
            raise UserError(
                f"{folder}: the job was given a secret, which is not kept; give all overrides of the sweep again, with "
                f"sweep.resume={folder.parent}"
            )


def complain(jobs: Mapping[Path, Job]) -> None:
    """Raises UserError where a job is not done."""
    bad = [folder.name for folder, job in jobs.items() if job.state != "done"]
    if bad:
        raise UserError(f"{len(bad)} of {len(jobs)} jobs are not done: {', '.join(bad)}; the reasons stand above")


def returned(folder: Path, job: Job) -> JobReturn:
    """For Hydra: the final metric of a job that is done, None of any other."""
    record = record_of(folder)
    metric = record.final_metric.value if record and record.final_metric and job.state == "done" else None
    return JobReturn(overrides=job.overrides, status=JobStatus.COMPLETED, _return_value=metric)
