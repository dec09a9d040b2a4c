"""Finds how a job ended from its record, its exit code and the last line of its log."""

import re
import signal
from dataclasses import dataclass
from pathlib import Path

from src.errors import UserError
from src.launch.failures import memory_ran_out
from src.report.record import Record, read_record

TAIL = 20_000  # bytes of the log that are searched


@dataclass(frozen=True)
class Exit:
    """The end of a job's process.

    Attributes:
        exit_code: negative for a signal; None if it is not known.
        cause: 'timeout' or 'interrupted' if the supervisor ended it; None if it ended by itself.
        oom_kills: processes that the kernel killed on this machine for lack of memory while the job ran.
    """

    exit_code: int | None
    cause: str | None = None
    oom_kills: int = 0


def outcome(folder: Path, end: Exit) -> tuple[str, str | None]:
    """Returns the state of an ended job, and the reason if it is not 'done'."""
    record = record_of(folder)
    if record is not None and record.status == "done" and end.exit_code in (0, None):
        return "done", None
    if end.cause:
        return end.cause, None
    rank_killed = record is not None and record.error is not None and record.error.type == "RankDied"
    if end.oom_kills and (end.exit_code == -signal.SIGKILL or rank_killed):
        return "oom", "killed by the kernel: the machine's memory ran out"
    if record is not None and record.error is not None:
        where = f" ({record.error.where})" if record.error.where else ""
        reason = f"{record.error.type}: {' '.join(record.error.message.split())}{where}"
        full = record.status == "failed" and memory_ran_out(reason)
        return ("oom" if full else record.status), reason
    if end.exit_code is None:
        return "interrupted", "killed together with its supervisor"
    if end.exit_code == 0:
        return ("done", None) if record is None else (record.status, None)
    last = last_line(folder / "log.txt")
    if end.exit_code < 0:
        return "failed", f"killed by {signal.Signals(-end.exit_code).name}" + (f"; last line: {last}" if last else "")
    return ("oom" if memory_ran_out(last) else "failed"), last or f"exit code {end.exit_code}, nothing printed"


def record_of(folder: Path) -> Record | None:
    """Returns the record in a job's folder; None if there is none or it cannot be read."""
    try:
        return read_record(folder)
    except UserError:
        return None


def last_line(log: Path) -> str:
    """Returns the last line of a log, at most 500 characters; a progress bar is one line, as last drawn."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    lines = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]
    return lines[-1][:500] if lines else ""
