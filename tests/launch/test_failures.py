"""Which rank's error is the cause of the others', and what torchrun can show of it."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from src.launch.failures import Exit, another_failed, cause_of, first_failure, note

NONE = Path("none")
ERROR = {"type": "ArithmeticError", "message": "broken", "where": "src/a.py:1"}


def raised(message: str) -> BaseException:
    try:
        raise ArithmeticError(message)
    except ArithmeticError as error:
        return error


def noted(folder: Path, rank: int, monkeypatch: pytest.MonkeyPatch) -> Exit:
    """Returns the exit of a rank that wrote its error."""
    file = folder / f"{rank}.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    note(raised(f"of rank {rank}"), {**ERROR, "message": f"of rank {rank}"})
    return Exit(rank, 1, time.time(), file)


def test_the_first_error_counts_within_one_second_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = [noted(tmp_path, rank, monkeypatch) for rank in (2, 0, 1)]
    first = first_failure(sorted(order, key=lambda ended: ended.rank), {})
    assert (first.rank, first.error["message"]) == (2, "of rank 2")
    assert first.traceback is not None and "in raised" in first.traceback


def test_a_killed_rank_made_the_others_fail_though_they_noticed_before_the_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exits = [noted(tmp_path, 0, monkeypatch), Exit(1, -9, time.time(), NONE)]
    first = first_failure(exits, {})
    assert (first.rank, first.error["type"]) == (1, "RankDied")
    assert first.error["message"] == "ended by SIGKILL (lack of memory?)"


@pytest.mark.parametrize("exitcode", [-15, 143])
def test_a_rank_that_was_ended_is_no_cause(tmp_path: Path, exitcode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    exits = [Exit(0, exitcode, 0.0, NONE), noted(tmp_path, 1, monkeypatch)]
    assert first_failure(exits, {}).rank == 1


def test_torchrun_shows_the_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = noted(tmp_path, 1, monkeypatch).error_file
    shown = str(ChildFailedError("train.py", {1: ProcessFailure(1, 101, 1, str(file))}))
    assert "in raised" in shown and "ArithmeticError: of rank 1" in shown


def test_a_process_of_nobody_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    monkeypatch.chdir(tmp_path)
    note(raised("alone"), ERROR)
    assert not list(tmp_path.iterdir())


def test_what_followed_from_a_lack_of_memory_is_not_the_cause() -> None:
    full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    try:
        try:
            raise full
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
    except RuntimeError as error:
        assert cause_of(error) is full
    other, wrapped = raised("broken"), raised("wrapped")
    other.__context__, wrapped.__cause__ = wrapped, other
    assert cause_of(other) is other and cause_of(wrapped) is wrapped


@pytest.mark.parametrize(
    ("content", "is_told"),
    [
        ({"message": "of torch"}, True),
        ({"error": {"type": "UserError"}}, True),
        ({"error": {"type": "RankLost"}}, False),
    ],
)
def test_another_rank_failed_unless_it_lost_this_one(
    content: dict[str, Any], is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "0" / "error.json"))
    for rank in "01":
        (tmp_path / rank).mkdir()
    (tmp_path / "0" / "error.json").write_text('{"error": {"type": "UserError"}}')  # its own
    assert not another_failed()
    (tmp_path / "1" / "error.json").write_text(json.dumps(content))
    assert another_failed() is is_told
