"""Progress of long work, on stderr: bars on a terminal, a plain line every few seconds elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

EVERY_S = 10.0  # seconds between two lines where there is no terminal: in a pipe, or a sweep's log
MIB = 1 << 20


class LineProgress(Progress):
    """Rich's bars on a terminal; elsewhere a line for each task every `every_s` seconds and at its end.

    Args:
        unit: a suffix of the counts, as " MiB".
        scale: what the counts are divided by.
        disable: shows nothing at all.
    """

    def __init__(
        self, *columns: ProgressColumn, unit: str = "", scale: int = 1, every_s: float = EVERY_S,
        disable: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        console = Console(stderr=True, soft_wrap=True)
        self.unit, self.scale, self.every_s = unit, scale, every_s
        self._has_lines = not console.is_terminal and not disable
        self._next_line_s: dict[TaskID, float] = {}
        super().__init__(*columns, console=console, disable=disable or not console.is_terminal, **options)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._print_due(task_id)

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        self._print_due(task_id)

    def _print_due(self, task_id: TaskID) -> None:
        now, task = time.monotonic(), self._tasks[task_id]
        due_s = self._next_line_s.setdefault(task_id, now + self.every_s)
        if self._has_lines and (now >= due_s or (task.finished and due_s < float("inf"))):
            self._next_line_s[task_id] = float("inf") if task.finished else now + self.every_s
            self.console.print(self._line(task), markup=False, highlight=False)

    def _line(self, task: Task) -> str:
        done, total = (None if n is None else f"{n / self.scale:,.0f}" for n in (task.completed, task.total))
        count = f"{done} of {total}" if total is not None else done
        return f"{task.description}: {count}{self.unit}, {task.elapsed or 0:.0f} s"


def item_progress(**options: Any) -> Progress:
    """Returns the progress of tasks that count items, with the time so far and the time left; `options` are rich's."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    return LineProgress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), **options)


def byte_progress() -> Progress:
    """Returns the progress of tasks that count bytes, with their rate."""
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    return LineProgress(*columns, unit=" MiB", scale=MIB)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Says what is being done: with a spinner on a terminal, in one line elsewhere."""
    console = Console(stderr=True, soft_wrap=True)
    if not console.is_terminal:
        console.print(what, markup=False, highlight=False)
    with console.status(what):
        yield
