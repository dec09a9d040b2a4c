"""What makes two jobs the same run, and what a job's folder is."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from src.sweep.job import Job, alive, folders_of, read_job, write_job


def key_of(door: str, config: DictConfig, groups: Sequence[str] = ()) -> str:
    """A digest of the composed config: `hp.lr=1e-3` and `hp.lr=0.001` are one run, however they were written.

    With `groups` only these parts of the config count.
    """
    config = config.copy()
    with open_dict(config):
        config.output_dir = "."  # where and how it is run is not what is run
        config.pop("hydra", None)
        config.pop("sweep", None)
    try:
        plain: Any = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException:  # a mistake that the job itself will explain
        plain = OmegaConf.to_container(config, resolve=False)
    plain = {name: part for name, part in plain.items() if not groups or name in groups}
    return hashlib.sha256(json.dumps([door, in_order(plain)], default=str).encode()).hexdigest()[:16]


def in_order(plain: Any) -> Any:
    """Dictionaries as lists in the order of their keys, whatever types these have."""
    if isinstance(plain, dict):
        return sorted(([str(key), in_order(value)] for key, value in plain.items()), key=lambda pair: pair[0])
    return [in_order(value) for value in plain] if isinstance(plain, list) else plain


def enrol(sweep: Path, jobs: Sequence[Job]) -> list[Path]:
    """The folder of each job, in order; made where it is new, the same one for jobs that are the same run."""
    folders = folders_of(sweep)
    free = (sweep / str(number) for number in range(len(jobs) + len(list(sweep.iterdir()))))
    for job in jobs:
        if job.key not in folders:
            folders[job.key] = next(folder for folder in free if not folder.exists())
            write_job(folders[job.key], job)
            continue
        before = read_job(folders[job.key])
        if not before.ended and not alive(folders[job.key]):  # runs as it is asked for now
            state = {name: getattr(before, name) for name in ("state", "reason", "begun_s", "ended_s")}
            write_job(folders[job.key], job.with_(**state))
    return [folders[job.key] for job in jobs]
