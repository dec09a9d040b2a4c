"""Where the time before the first step went: what ended when, from the creation of the process on."""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from src.system.group import ANSWERED_FOR

_ends: list[tuple[str, float, int]] = []  # seconds of time.perf_counter, and the process: a fork has its parent's too


@dataclass(frozen=True)
class Start:
    """How long a run took to its first step, on rank 0; seconds.

    Attributes:
        first_step_s: from the start of the command to the end of the first optimiser step.
        steady_from_s: likewise, to the end of the warm-up steps; None where training ended before.
        parts_s: what they are made of, in order: see docs/reference/metrics.md.
    """

    first_step_s: float | int | None = None
    steady_from_s: float | int | None = None
    parts_s: dict[str, float | int | None] = field(default_factory=dict)


def ended(part: str) -> None:
    """Notes that a part of the start has ended: it began where the one before it ended."""
    _ends.append((part, time.perf_counter(), os.getpid()))


def start_of(begin_s: float, training_s: float, step_ends_s: Sequence[float], warmup_steps: int) -> Start | None:
    """Returns how a run started; None before its first step.

    Args:
        begin_s: when it began, in seconds of time.perf_counter.
        training_s, step_ends_s: seconds from then on to the begin of training and to the end of each step.
    """
    if not step_ends_s:
        return None
    parts: dict[str, float | int | None] = {}
    ends = [(part, end_s) for part, end_s, process in _ends if process == os.getpid()]
    ends.append(("device", begin_s + training_s))
    if (launcher_s := launched_s()) > 0:
        # A fork's begin is known to a hundredth of a second, and may lie before what ended last in its launcher.
        of_launcher = [(part, min(end_s, begin_s)) for part, end_s, process in _ends if process != os.getpid()]
        ends = [*of_launcher, ("launcher", begin_s), *ends]
    last_s = begin_s - launcher_s
    for part, end_s in ends:
        if last_s < end_s <= begin_s + training_s:
            parts[part] = (parts.get(part) or 0.0) + end_s - last_s
            last_s = end_s
    parts["first step"] = step_ends_s[0] - training_s
    is_steady = 0 < warmup_steps <= len(step_ends_s)
    if is_steady:
        parts["warm-up"] = step_ends_s[warmup_steps - 1] - step_ends_s[0]
    return Start(launcher_s + step_ends_s[0], launcher_s + step_ends_s[warmup_steps - 1] if is_steady else None, parts)


def process_creation_s(process: int | None = None) -> float:
    """Returns the time at which a process, this one if none is given, was created, in seconds of `time.perf_counter`.

    Linux tells it in seconds since it was started. psutil adds that to a time of day which is known to a second.
    Raises psutil.Error for a process that is gone.
    """
    if sys.platform != "linux":
        return time.perf_counter() - (time.time() - psutil.Process(process).create_time())
    try:
        stat = Path(f"/proc/{process or 'self'}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise psutil.NoSuchProcess(process or os.getpid()) from error
    # The second field is a name in brackets and may contain anything; starttime is the 22nd.
    created_s = int(stat.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.perf_counter() - (time.clock_gettime(time.CLOCK_BOOTTIME) - created_s)


def launched_s() -> float:
    """Returns for how long the command had gone on when it started this process as a rank; 0 for no rank."""
    launcher = os.environ.get(ANSWERED_FOR)
    if launcher is None:
        return 0.0
    try:
        return max(0.0, process_creation_s() - process_creation_s(int(launcher)))
    except (psutil.Error, ValueError):
        return 0.0
