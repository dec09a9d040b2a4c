"""What a person sees of a sweep: the running jobs as they run, each ending at once, the results at the end."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from src.sweep.job import Job
from src.sweep.outcome import last_line
from src.sweep.table import as_csv, coloured, counted, label, result_rows, result_table, varied
from src.system.files import write_text

REFRESH_S = 0.5
WIDTH = 200  # characters of the table in a file


class Status:
    """Told how the jobs stand. On a terminal it redraws what runs; elsewhere it prints beginnings and endings alone."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self._live = Live(console=self.console, auto_refresh=False, transient=True)
        self._states: dict[Path, str] = {}
        self._drawn_s = 0.0

    def __enter__(self) -> "Status":
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __call__(self, jobs: Mapping[Path, Job]) -> None:
        labels = dict(zip(jobs, map(label, varied([*jobs.values()])), strict=True))
        first = not self._states
        for folder, job in jobs.items():
            if self._states.get(folder, "waiting") != job.state and not (first and job.ended):
                self._say(folder, job, labels[folder])
            self._states[folder] = job.state
        if self.console.is_terminal and time.monotonic() - self._drawn_s > REFRESH_S:
            self._drawn_s = time.monotonic()
            self._live.update(self._picture(jobs, labels), refresh=True)

    def _say(self, folder: Path, job: Job, what: str) -> None:
        if job.state == "running" and self.console.is_terminal:
            return  # is in the picture
        after = f" after {job.seconds:.0f} s" if job.seconds is not None else ""
        where = f" on GPU {','.join(job.devices)}" if job.state == "running" and job.devices else ""
        reason = f": {escape(job.reason)}; see {folder / 'log.txt'}" if job.reason else ""
        varies = f" ({escape(what)})" if what else ""
        self.console.print(f"job {folder.name}{varies} {coloured(job.state)}{after}{where}{reason}", soft_wrap=True)

    def _picture(self, jobs: Mapping[Path, Job], labels: Mapping[Path, str]) -> Group:
        lines = [Text(counted([*jobs.values()]), style="bold")]
        for folder, job in jobs.items():
            if job.state == "running" and job.begun_s is not None:
                where = f" GPU {','.join(job.devices)}" if job.devices else ""
                line = f"  {folder.name} {labels[folder]} {time.time() - job.begun_s:.0f} s{where}  "
                lines.append(Text(line + last_line(folder / "log.txt"), no_wrap=True, overflow="ellipsis"))
        return Group(*lines)


def finish(sweep: Path, jobs: Mapping[Path, Job], number_asked: int) -> None:
    """Prints the results and writes them to `results.csv` of the sweep's folder."""
    rows = result_rows(jobs)
    write_text(sweep / "results.csv", as_csv(rows))
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    console.print(result_table(rows))
    reasons: Sequence[Mapping[str, str]] = [row for row in rows if row["reason"]]
    for row in reasons:
        console.print(f"job {row['job']} {coloured(row['state'])}: {escape(row['reason'])}", soft_wrap=True)
    same = number_asked - len(rows)
    note = f" ({same} asked for again and not run again)" if same else ""
    console.print(f"{counted([*jobs.values()])}{note}; {sweep / 'results.csv'}", soft_wrap=True, highlight=False)
