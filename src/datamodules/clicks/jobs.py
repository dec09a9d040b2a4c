"""Jobs whose results are kept in files, so that an interrupted preparation does not repeat finished ones."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from pathlib import Path
from typing import Any, NamedTuple

from rich.progress import Progress

from src.system.files import write_text
from src.system.reading import read_json
from src.system.workers import WorkerPool


class Call(NamedTuple):
    """A call for a worker: a unique name, a module-level function, and its arguments."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]


class Jobs(NamedTuple):
    """Runs jobs in the workers of `pool`, and keeps their JSON results in the folder `done`."""

    done: Path
    pool: WorkerPool
    bars: Progress

    def results(self, description: str, jobs: Sequence[Call], max_parallel: int | None = None) -> list[Any]:
        """Runs the unfinished jobs; returns all results in the order of the jobs. Raises a job's first exception."""
        bar = self.bars.add_task(description, total=len(jobs))
        files = [self.done / job.name for job in jobs]
        unfinished = [(job, file) for job, file in zip(jobs, files, strict=True) if not file.exists()]
        self.bars.advance(bar, len(jobs) - len(unfinished))
        step = max_parallel or max(len(unfinished), 1)
        for begin in range(0, len(unfinished), step):
            for future in as_completed([self.pool.submit(run, *pair) for pair in unfinished[begin : begin + step]]):
                future.result()
                self.bars.advance(bar)
        return [read_json(file, f"delete {self.done.parent} to begin again") for file in files]


def run(job: Call, result: Path) -> None:
    """Runs a job in a worker. The result is written last, so it marks the job as finished."""
    write_text(result, json.dumps(job.function(*job.args)))
