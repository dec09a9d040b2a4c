"""A single run that is asked to end: when it does, what it leaves, and that it can go on as if nothing had been."""

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from src.launch import ending
from src.launch.ending import Interrupted
from src.report.record import Record, read_record
from src.run import train
from tests.support.started import LONG, begin, ended, provoked
from tests.support.tiny_mobilenet import tiny_mobilenet

pytestmark = pytest.mark.slow

STEPS = 8  # an epoch
AT_RECORD = "+callbacks.at_record={_target_:tests.support.provoking.AtRecord,what:'SIGINT SIGTERM SIGINT'}"


def interrupted(home: Path, *overrides: str) -> tuple[Record, Interrupted]:
    """Returns the record of a run that must have been ended by a signal, and the exception."""
    with pytest.raises(Interrupted) as caught:
        train(tiny_mobilenet(home, *overrides))
    record = read_record(home / "run")
    assert record.status == "interrupted" and record.error is not None
    assert (record.error.type, record.error.message) == ("Interrupted", str(caught.value))
    return record, caught.value


def test_a_signal_ends_the_run_after_the_next_step_with_a_checkpoint(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    record, raised = interrupted(tmp_path, provoked(what="is_terminated", step=3))
    assert raised.code == 143 and str(raised) == "SIGTERM after step 4"
    assert record.samples == 4 * 8 and record.p_core is not None
    assert torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=False)["global_step"] == 4
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


@pytest.mark.parametrize("name", ["SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"])
def test_other_signals_that_ask_it_to_end_do_the_same(tmp_path: Path, name: str) -> None:
    before = signal.signal(signal.Signals[name], signal.SIG_DFL)  # tests may run in the background, or under nohup
    try:
        record, raised = interrupted(tmp_path, provoked(what=name, step=3))
    finally:
        now = signal.signal(signal.Signals[name], before)
    assert raised.code == 128 + signal.Signals[name] and str(raised) == f"{name} after step 4"
    assert record.go_on is not None and record.go_on.checkpoint is not None
    assert torch.load(record.go_on.checkpoint, weights_only=False)["global_step"] == 4
    assert now is signal.SIG_DFL


@pytest.mark.parametrize("name", ["SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"])
def test_a_signal_that_was_ignored_from_the_start_stays_ignored(tmp_path: Path, name: str) -> None:
    """As SIGHUP is under nohup."""
    before = signal.signal(signal.Signals[name], signal.SIG_IGN)
    try:
        assert train(tiny_mobilenet(tmp_path, provoked(what=name, step=3))).status == "done"
    finally:
        signal.signal(signal.Signals[name], before)


def test_submitits_handler_is_called_when_the_record_is_there(tmp_path: Path) -> None:
    """It requeues the job and ends the process."""
    records: list[Record] = []

    def requeue(*_: object) -> NoReturn:
        records.append(read_record(tmp_path / "run"))
        sys.exit(-1)

    before = signal.signal(signal.SIGUSR2, requeue)
    try:
        with pytest.raises(SystemExit) as caught:
            train(tiny_mobilenet(tmp_path, provoked(what="SIGUSR2", step=3)))
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert caught.value.code == -1
    assert [(record.status, record.samples) for record in records] == [("interrupted", 4 * 8)]


def test_going_on_does_what_the_run_would_have_done(tmp_path: Path) -> None:
    same = "fit.max_epochs=2", "hp.accumulate=3"
    interrupted(tmp_path / "a", provoked(what="is_interrupted", step=2), *same)
    last = tmp_path / "a" / "run" / "checkpoints" / "last.ckpt"
    train(tiny_mobilenet(tmp_path / "b", f"ckpt_path={last}", *same))
    train(tiny_mobilenet(tmp_path / "c", *same))
    states = [torch.load(tmp_path / name / "run" / "checkpoints" / "last.ckpt", weights_only=False) for name in "bc"]
    assert states[0]["global_step"] == states[1]["global_step"] == 2 * STEPS
    torch.testing.assert_close(states[0]["state_dict"], states[1]["state_dict"], rtol=0, atol=0)


def test_an_untried_lightning_keeps_its_signal_handling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "TRIED", ("0.",))
    record, raised = interrupted(tmp_path, provoked(what="is_terminated", step=3))
    assert raised.code == 143 and (record.samples or 0) >= 3 * 8


def test_an_evaluation_is_finished_first(tmp_path: Path) -> None:
    record, raised = interrupted(tmp_path, provoked(what="is_interrupted", hook="on_validation_start"))
    assert raised.code == 130 and str(raised) == f"SIGINT after step {STEPS}"
    assert (tmp_path / "run" / "checkpoints" / "best.ckpt").exists()
    evaluations = [row for row in record.history if "top1" in row]
    assert len(evaluations) == 1  # and not the final one


def test_a_second_signal_ends_the_run_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "SAME_S", 0.0)
    record, raised = interrupted(tmp_path, provoked(what="'is_interrupted is_interrupted'", step=3))
    assert str(raised) == "SIGINT before the next step"
    assert record.samples == 2 * 8
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_an_error_that_follows_from_a_signal_does_not_hide_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "SAME_S", 0.0)
    _, raised = interrupted(tmp_path, provoked(what="fails_when_interrupted", step=3))
    assert str(raised) == "SIGINT before the next step"


@pytest.mark.parametrize("hook", ["on_exception", "teardown"])
def test_further_signals_lose_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: str) -> None:
    """While Lightning ends the run that the second signal has interrupted, and while the record is made."""
    monkeypatch.setattr(ending, "SAME_S", 0.0)
    twice = "'is_interrupted is_terminated'"
    later = provoked(what=twice, hook=hook).replace("+callbacks.at=", "+callbacks.later=")
    record, raised = interrupted(tmp_path, provoked(what=twice, step=3), later, AT_RECORD)
    assert str(raised) == "SIGTERM before the next step" and record.samples == 2 * 8


def test_a_run_that_is_over_cannot_be_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C is answered; SIGTERM is not, which a launcher sends to rank 0 where another rank was refused."""
    monkeypatch.setattr(ending, "SAME_S", 1.0)  # AtRecord changes it
    record = train(tiny_mobilenet(tmp_path, AT_RECORD))
    assert record.status == "done" and read_record(tmp_path / "run") == record
    assert capfd.readouterr().err.count("ending: the record of this run is being written") == AT_RECORD.count("SIGINT")


@pytest.mark.parametrize(
    ("trainer", "first", "number"), [("1x2", "SIGUSR1", signal.SIGTERM), ("1x1", "SIGINT", signal.SIGINT)]
)
def test_a_storm_of_signals_leaves_a_record(tmp_path: Path, trainer: str, first: str, number: signal.Signals) -> None:
    """As of somebody who presses Ctrl-C until the prompt is back, and faster."""
    process = begin(tmp_path, f"trainer={trainer}", LONG, provoked(what="reports", step=3, same_s=0), group=True)
    assert process.stderr is not None
    while "provoked at" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.Signals[first])
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(ended, process)  # a full pipe would stop the run
        while not wait([reading], 0.02).done:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
    reading.result()
    record = read_record(tmp_path / "run")
    assert record.error is not None and record.error.type == "Interrupted", record.error
    assert record.status == "interrupted" and process.returncode != -signal.SIGUSR1  # which would end a launcher


def test_a_signal_before_the_first_step_leaves_an_earlier_record_as_it_is(tmp_path: Path) -> None:
    """As a rank gets one where another was refused, and a person who has seen that the folder is the wrong one."""
    train(tiny_mobilenet(tmp_path))
    before = (tmp_path / "run" / "result.json").read_bytes()
    with pytest.raises(Interrupted, match="SIGTERM outside of training"):
        train(tiny_mobilenet(tmp_path, "fit.max_epochs=2", provoked(what="is_terminated", hook="on_fit_start")))
    assert (tmp_path / "run" / "result.json").read_bytes() == before


def test_the_same_wish_may_come_twice(tmp_path: Path) -> None:
    _, raised = interrupted(tmp_path, provoked(what="'is_terminated is_terminated'", step=3))
    assert str(raised) == "SIGTERM after step 4"


def test_outside_of_training_a_signal_ends_the_run_at_once(tmp_path: Path) -> None:
    record, raised = interrupted(tmp_path, provoked(what="is_terminated", hook="on_test_start"), "fit.max_steps=5")
    assert str(raised) == "SIGTERM outside of training"
    assert record.samples == 5 * 8
