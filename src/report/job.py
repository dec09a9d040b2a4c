"""A job of a sweep is a folder: `job.json` has its command and state, `lock` is held while the job is alive.

So two launchers never run one job at once, and a launcher that resumes after a kill knows which jobs are still alive.
"""

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from src.errors import UserError
from src.report.digits import short_value
from src.report.json_files import read_json
from src.report.typed import build
from src.system.files import try_lock, write_text
from src.system.masking import masked_overrides

ENDED = ("done", "failed", "oom", "timeout")  # such a job is not run again unless its folder is deleted
STATES = (*ENDED, "interrupted", "running", "waiting")


@dataclass(frozen=True)
class SweepJob:
    """The command of a job and its state.

    Attributes:
        key: equal for jobs that are the same run, see `src.sweep.launcher.run_key`.
        overrides: the job's overrides on the command line.
        command: the process to start, in the folder `cwd`. In `job.json` both are without secrets.
        needs: number of GPUs that the job needs.
        timeout_s: wall seconds after which the job is ended; None: never.
        state: one of STATES; `reason` says why the job is not done.
        devices: the GPUs given to the job; empty without GPUs, or for a job that needs none.
        environment: variables set for the job's process.
        begun_s, ended_s: seconds since 1970.
        supervisor: id of the process that watches the job.
    """

    key: str
    overrides: Sequence[str]
    command: Sequence[str]
    cwd: str
    needs: int = 0
    timeout_s: float | int | None = None
    state: str = "waiting"
    reason: str | None = None
    devices: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)
    begun_s: float | int | None = None
    ended_s: float | int | None = None
    supervisor: int | None = None

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def seconds(self) -> float | None:
        return self.ended_s - self.begun_s if self.begun_s is not None and self.ended_s is not None else None

    def with_(self, **changes: object) -> "SweepJob":
        return replace(self, **changes)  # type: ignore[arg-type]


def write_job(folder: Path, job: SweepJob) -> None:
    """Writes `job.json`, atomically, without secrets: `Runner` passes these to the job's process."""
    hidden = job.with_(overrides=masked_overrides(job.overrides), command=masked_overrides(job.command))
    write_text(folder / "job.json", json.dumps(asdict(hidden), indent=2, ensure_ascii=False) + "\n")


def read_job(folder: Path) -> SweepJob:
    """Returns the job of a folder. Raises UserError where `job.json` is missing or not valid."""
    file = folder / "job.json"
    try:
        data = read_json(file)
        if not isinstance(data, dict):
            raise ValueError(f"a job is a JSON object, this is a {type(data).__name__}")
        optional = [f.name for f in fields(SweepJob) if f.name not in ("key", "overrides", "command", "cwd")]
        job = build(SweepJob, data, optional=optional)
        if job.state not in STATES:
            raise ValueError(f"key 'state' is {job.state!r}, expected {', '.join(STATES)}")
    except ValueError as error:
        raise UserError(f"{file}: not a valid job file ({error}); delete the folder {folder}") from None
    return job


def job_folders(sweep: Path) -> dict[str, Path]:
    """Returns the folders of a sweep's jobs by the jobs' keys, in the order of their numbers."""
    folders = [file.parent for file in sweep.glob("*/job.json") if file.parent.name.isdigit()]
    return {read_job(folder).key: folder for folder in sorted(folders, key=lambda folder: int(folder.name))}


def differing_overrides(jobs: Sequence[SweepJob], shown: Collection[str] = ()) -> list[dict[str, str]]:
    """Returns for each job the overrides whose values differ among the jobs, by key, in the given order.

    Args:
        shown: keys that are always among them.
    """
    by_job = [{text.lstrip("+").partition("=")[0]: text.partition("=")[2] for text in job.overrides} for job in jobs]
    keys = dict.fromkeys(key for overrides in by_job for key in overrides)
    differing = [key for key in keys if key in shown or len({overrides.get(key) for overrides in by_job}) > 1]
    return [{key: overrides.get(key, "") for key in differing} for overrides in by_job]


def label(overrides: Mapping[str, str]) -> str:
    """Returns overrides as words of a line."""
    return " ".join(f"{key}={short_value(value)}" for key, value in overrides.items())


def alive(folder: Path) -> bool:
    """Returns whether a process of the job is alive."""
    lock = try_lock(folder / "lock")
    if lock is not None:
        os.close(lock)
    return lock is None


@contextmanager
def sole_launcher(sweep: Path) -> Iterator[None]:
    """Locks the sweep for the block. Raises UserError where another launcher has it."""
    sweep.mkdir(parents=True, exist_ok=True)
    lock = try_lock(sweep / "lock")
    if lock is None:
        raise UserError(
            f"{sweep}: another launcher runs this sweep; wait for its end, or choose another hydra.sweep.dir"
        )
    try:
        yield
    finally:
        os.close(lock)


def quote_path(path: Path) -> str:
    """Returns the absolute path quoted as the value of an override."""
    return quote(str(path.resolve()))


def quote(text: str) -> str:
    """Returns a text quoted as the value of an override."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def register_jobs(sweep: Path, jobs: Sequence[SweepJob], names: Sequence[str] = ()) -> list[Path]:
    """Returns the folder of each job, in order, and creates the new ones; jobs with the same key share a folder.

    Raises UserError where two jobs, of this sweep or an earlier one, have one name.

    Args:
        names: those of the jobs' folders, where they are not to be numbers.
    """
    folders = _named(sweep, jobs, names) if names else job_folders(sweep)
    free = (sweep / str(number) for number in range(len(jobs) + len(list(sweep.iterdir()))))
    for job in jobs:
        if job.key not in folders:
            folders[job.key] = next(folder for folder in free if not folder.exists())
        folder = folders[job.key]
        before = read_job(folder) if (folder / "job.json").exists() else None
        if before is None:
            write_job(folder, job)
        elif before.key != job.key:
            raise UserError(f"{folder}: another job is there; delete the folder, or choose another hydra.sweep.dir")
        elif not before.ended and not alive(folder):  # it will run with the new command
            state = {name: getattr(before, name) for name in ("state", "reason", "begun_s", "ended_s")}
            write_job(folder, job.with_(**state))
    return [folders[job.key] for job in jobs]


def _named(sweep: Path, jobs: Sequence[SweepJob], names: Sequence[str]) -> dict[str, Path]:
    keys: dict[str, str] = {}
    for job, name in zip(jobs, names, strict=True):
        if keys.setdefault(name, job.key) != job.key:
            raise UserError(f"hydra.sweep.subdir={name}: two jobs have this folder; name the keys that differ in it")
    return {key: sweep / name for name, key in keys.items()}
