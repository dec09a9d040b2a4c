"""Records why a rank ended, in the file where torchrun and the process that started the ranks read it."""

import json
import os
import re
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from src.system.files import write_text
from src.system.group import ANSWERED_FOR
from src.system.masking import masked_text
from src.system.signals import ENDING

ASKED = {code for number in ENDING for code in (-number, 128 + number)}  # exit codes of ranks asked to end
NOTICED_S = 5  # at most until torchrun notices a rank's death
MEMORY = re.compile(
    r"out ?of ?memory|can(no|')t allocate memory|not enough memory|ALLOC_FAILED|\bMemoryError\b", re.IGNORECASE
)


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


def first_failure(failures: dict[int, Any], stopped: Mapping[int, float]) -> Failure:
    """Returns the failure that caused the others, from torch's `ProcessFailure` of each rank.

    stopped: seconds for which ranks had been stopped when they were killed for it.
    """
    of_ranks = [read(rank, failure, stopped.get(rank)) for rank, failure in failures.items()]
    return min(of_ranks, key=lambda failure: (failure.rank not in stopped, failure.follows, failure.time_s))


def read(rank: int, failure: Any, stopped_s: float | None) -> Failure:
    """Returns torch's `ProcessFailure` with what `note` wrote."""
    data = failure.error_file_data
    if "error" in data:
        stack = data["message"]["extraInfo"]["py_callstack"]
        return Failure(rank, failure.exitcode, data["time_s"], data["error"], stack)
    if failure.exitcode < 0:  # killed: other ranks may have noticed before torchrun did
        name = failure.signal_name()
        how = f"ended by {name}" + (" (lack of memory?)" if name == "SIGKILL" else "")
        if stopped_s is not None:
            how = f"ended because it was stopped for {stopped_s:g} s (SIGSTOP or a debugger; trainer.patience_s)"
    else:
        how = f"ended with exit code {failure.exitcode} before it could say why; its output is above"
    error = {"type": "RankDied", "message": how, "where": None}
    return Failure(rank, failure.exitcode, failure.timestamp - NOTICED_S, error, None)
