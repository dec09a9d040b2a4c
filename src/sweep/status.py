"""Prints the progress of a sweep: running jobs, each end with its reason, and the results."""

import time
from collections.abc import Collection, Mapping
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from src.errors import UserError
from src.report.compare.build import compare_each
from src.report.compare.page import pages
from src.report.compare.text import markdown
from src.report.digits import number
from src.report.job import SweepJob, differing_overrides, label
from src.report.load import load
from src.sweep.outcome import last_line, record_of
from src.sweep.table import as_csv, best_line, coloured, count_states, figures, result_rows, result_table
from src.system.files import write_text

REFRESH_S = 0.5
WIDTH = 200  # columns of the table where the output is not a terminal


class Status:
    """Called with all jobs: redraws the running ones on a terminal; elsewhere prints only each start and end.

    Args:
        shown: keys of overrides that name a job in any case; others where the jobs differ in them.
    """

    def __init__(self, shown: Collection[str] = ()) -> None:
        self.shown = shown
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

    def __call__(self, jobs: Mapping[Path, SweepJob]) -> None:
        labels = dict(zip(jobs, map(label, differing_overrides([*jobs.values()], self.shown)), strict=True))
        first = not self._states
        for folder, job in jobs.items():
            if self._states.get(folder, "waiting") != job.state and not (first and job.ended):
                self._print_change(folder, job, labels[folder])
            self._states[folder] = job.state
        if self.console.is_terminal and time.monotonic() - self._drawn_s > REFRESH_S:
            self._drawn_s = time.monotonic()
            self._live.update(self._running(jobs, labels), refresh=True)

    def _print_change(self, folder: Path, job: SweepJob, job_label: str) -> None:
        if job.state == "running" and self.console.is_terminal:
            return  # it is among the redrawn lines
        after = f" after {job.seconds:.0f} s" if job.seconds is not None else ""
        where = f" on GPU {','.join(job.devices)}" if job.state == "running" and job.devices else ""
        if job.state == "done":
            after += "".join(f": {name} {number(value)}" for name, value in [*figures(record_of(folder)).items()][:1])
        reason = f": {escape(job.reason)}; see {folder / 'log.txt'}" if job.reason else ""
        varied = f" ({escape(job_label)})" if job_label else ""
        self.console.print(f"job {folder.name}{varied} {coloured(job.state)}{after}{where}{reason}", soft_wrap=True)

    def _running(self, jobs: Mapping[Path, SweepJob], labels: Mapping[Path, str]) -> Group:
        lines = [Text(count_states([*jobs.values()]), style="bold")]
        for folder, job in jobs.items():
            if job.state == "running" and job.begun_s is not None:
                where = f" GPU {','.join(job.devices)}" if job.devices else ""
                line = f"  {folder.name} {labels[folder]} {time.time() - job.begun_s:.0f} s{where}  "
                lines.append(Text(line + last_line(folder / "log.txt"), no_wrap=True, overflow="ellipsis"))
        return Group(*lines)


def write_comparison(sweep: Path, jobs: Mapping[Path, SweepJob]) -> Path | None:
    """Writes the comparison of a sweep's jobs as a page, or as Markdown without its library; returns the file.

    None where fewer than two jobs have a record. Of several models each has a section.
    """
    if sum(record_of(folder) is not None for folder in jobs) < 2:
        return None
    try:
        comparisons = compare_each(load([sweep]))
    except UserError:
        return None
    try:
        file, text = sweep / "comparison.html", pages(comparisons)
    except UserError:
        file, text = sweep / "comparison.md", "\n".join(map(markdown, comparisons))
    write_text(file, text)
    return file


def print_results(sweep: Path, jobs: Mapping[Path, SweepJob], num_requested: int) -> None:
    """Prints the results, the best job and the page last; writes `results.csv` in the sweep's folder.

    Args:
        num_requested: the number of jobs with those that were asked for twice.
    """
    rows, best = result_rows(jobs), best_line(jobs)
    write_text(sweep / "results.csv", as_csv(rows))
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    console.print(result_table(rows))
    reasons = [row for row in rows if row["reason"]]
    for row in reasons:
        console.print(f"job {row['job']} {coloured(row['state'])}: {escape(row['reason'])}", soft_wrap=True)
    duplicates = num_requested - len(rows)
    note = f" ({duplicates} asked for again and not run again)" if duplicates else ""
    console.print(f"{count_states([*jobs.values()])}{note}; {sweep / 'results.csv'}", soft_wrap=True, highlight=False)
    if best is not None:
        console.print(best, markup=False, highlight=False, soft_wrap=True)
    if (page := write_comparison(sweep, jobs)) is not None:
        console.print(f"comparison: {page}", soft_wrap=True, highlight=False)
