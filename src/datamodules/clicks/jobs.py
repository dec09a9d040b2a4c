"""Jobs that leave a note when they are done, so that an interrupted preparation does none of them twice."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from pathlib import Path
from typing import Any, NamedTuple

from rich.progress import Progress

from src.system.files import write_text
from src.system.workers import WorkerPool


class Job(NamedTuple):
    """A call for a worker: a module-level function, its arguments, and a name that no other job has."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]


class Jobs(NamedTuple):
    """Does jobs in the workers of `pool`, and keeps their results, which JSON can hold, in the folder `done`."""

    done: Path
    pool: WorkerPool
    bars: Progress

    def results(self, description: str, jobs: Sequence[Job], at_once: int | None = None) -> list[Any]:
        """The results in the order of the jobs. The first exception of a job is raised here."""
        bar = self.bars.add_task(description, total=len(jobs))
        notes = [self.done / job.name for job in jobs]
        waiting = [(job, note) for job, note in zip(jobs, notes, strict=True) if not note.exists()]
        self.bars.advance(bar, len(jobs) - len(waiting))
        step = at_once or max(len(waiting), 1)
        for begin in range(0, len(waiting), step):
            for future in as_completed([self.pool.submit(do, *each) for each in waiting[begin : begin + step]]):
                future.result()
                self.bars.advance(bar)
        return [json.loads(note.read_text(encoding="utf-8")) for note in notes]


def do(job: Job, note: Path) -> None:
    """What a worker runs. The note is the last thing that is written."""
    write_text(note, json.dumps(job.function(*job.args)))
