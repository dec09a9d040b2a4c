"""Records why a rank ended, in the file where torchrun and the process that started the ranks read it."""

import json
import os
import re
import signal
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from src.system.files import write_text
from src.system.group import ANSWERED_FOR
from src.system.masking import masked_text
from src.system.signals import ENDING

ASKED = {code for number in ENDING for code in (-number, 128 + number)}  # exit codes of ranks asked to end
NOTICED_S = 5  # at most until the launcher notices a rank's death
MEMORY = re.compile(
    r"out ?of ?memory|can(no|')t allocate memory|not enough memory|ALLOC_FAILED|\bMemoryError\b", re.IGNORECASE
)


@dataclass(frozen=True)
class Exit:
    """How a rank's process ended: its exit code, when that was noticed in seconds since 1970, and its error's file."""

    rank: int
    exitcode: int
    noticed_s: float
    error_file: Path


@dataclass(frozen=True)
class Failure:
    """How a rank ended: the time in seconds since 1970, its error as in records, and its traceback."""

    rank: int
    exitcode: int
    time_s: float
    error: dict[str, Any]
    traceback: str | None

    @property
    def follows(self) -> bool:
        """Whether it may have followed from another: the rank was asked to end, or lost the other one."""
        return self.exitcode in ASKED or self.error["type"] == "RankLost"


def note(error: BaseException, described: dict[str, Any]) -> None:
    """Writes the error, and `described` as in records, to the file that torchrun gave this rank, if any.

    torchrun prints the traceback of the first rank that failed from it.
    """
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not file:
        return
    stack = masked_text("".join(traceback.format_exception(error)))
    extra = {"py_callstack": stack, "timestamp": str(int(time.time()))}
    message = {"message": f"{described['type']}: {described['message']}", "extraInfo": extra}
    write_text(Path(file), json.dumps({"message": message, "error": described, "time_s": time.time()}))


def is_told() -> bool:
    """Returns whether this rank's launcher says why it ended: from what `note` wrote."""
    return ANSWERED_FOR in os.environ and Path(os.environ.get("TORCHELASTIC_ERROR_FILE", "")).is_file()


def another_failed() -> bool:
    """Returns whether another rank of this machine, under the same torchrun, ended for a reason of its own."""
    mine = Path(os.environ.get("TORCHELASTIC_ERROR_FILE", ""))
    if not mine.name:
        return False
    others = [file for file in mine.parent.parent.glob("*/error.json") if file != mine]
    errors = [json.loads(file.read_text()).get("error", {}) for file in others]  # torch's own files have none
    return any(error.get("type") != "RankLost" for error in errors)


def memory_ran_out(error: str) -> bool:
    """Returns whether an error's type and message are those of torch, cuBLAS, NCCL or Python out of memory."""
    return bool(MEMORY.search(error))


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError | RuntimeError) and memory_ran_out(f"{type(error).__name__}: {error}")


def cause_of(error: BaseException) -> BaseException:
    """Returns the error, or the out-of-memory error that caused it: ending a broken capture raises its own."""
    followed, seen = error, set[int]()
    while not is_out_of_memory(followed):
        seen.add(id(followed))
        before = followed.__cause__ or (None if followed.__suppress_context__ else followed.__context__)
        if before is None or id(before) in seen:  # an error that is unwrapped and raised again may be its own cause
            return error
        followed = before
    return followed


def first_failure(exits: Sequence[Exit], stopped: Mapping[int, float]) -> Failure:
    """Returns the failure that caused the others, of ranks that did not end with 0.

    stopped: seconds for which ranks had been stopped when they were killed for it.
    """
    of_ranks = [read(rank, stopped.get(rank.rank)) for rank in exits]
    return min(of_ranks, key=lambda failure: (failure.rank not in stopped, failure.follows, failure.time_s))


def read(ended: Exit, stopped_s: float | None) -> Failure:
    """Returns why a rank ended, from what `note` wrote if it did."""
    rank, exitcode = ended.rank, ended.exitcode
    if ended.error_file.is_file():
        data = json.loads(ended.error_file.read_text())
        return Failure(rank, exitcode, data["time_s"], data["error"], data["message"]["extraInfo"]["py_callstack"])
    if exitcode < 0:  # killed: other ranks may have noticed before the launcher did
        name = signal.Signals(-exitcode).name
        how = f"ended by {name}" + (" (lack of memory?)" if name == "SIGKILL" else "")
        if stopped_s is not None:
            how = f"ended because it was stopped for {stopped_s:g} s (SIGSTOP or a debugger; trainer.patience_s)"
    else:
        how = f"ended with exit code {exitcode} before it could say why; its output is above"
    error = {"type": "RankDied", "message": how, "where": None}
    return Failure(rank, exitcode, ended.noticed_s - NOTICED_S, error, None)
