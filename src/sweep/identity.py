"""Keys that tell whether two jobs are the same run, and the folder of each job."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from src.report.job import Job, alive, job_folders, read_job, write_job


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


def register_jobs(sweep: Path, jobs: Sequence[Job]) -> list[Path]:
    """Returns the folder of each job, in order, and creates the new ones; jobs with the same key share a folder."""
    folders = job_folders(sweep)
    free = (sweep / str(number) for number in range(len(jobs) + len(list(sweep.iterdir()))))
    for job in jobs:
        if job.key not in folders:
            folders[job.key] = next(folder for folder in free if not folder.exists())
            write_job(folders[job.key], job)
            continue
        before = read_job(folders[job.key])
        if not before.ended and not alive(folders[job.key]):  # it will run with the new command
            state = {name: getattr(before, name) for name in ("state", "reason", "begun_s", "ended_s")}
            write_job(folders[job.key], job.with_(**state))
    return [folders[job.key] for job in jobs]
