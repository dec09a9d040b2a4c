"""Progress bars of long work, on stderr."""

from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


def item_progress(**options: Any) -> Progress:
    """Returns bars that count items, with the time so far and the time left; `options` are rich's."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True), **options)


def byte_progress() -> Progress:
    """Returns bars that count bytes, with their rate."""
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    return Progress(*columns, console=Console(stderr=True))
