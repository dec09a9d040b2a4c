"""The record of a run that was resumed: one identity, its legs, and what adds up over them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from src.callbacks.legs import over, rate_over
from src.launch.ending import Interrupted
from src.measure.phases import PHASES
from src.report.load import load
from src.report.record import Record, read_record, write_record
from src.run import train
from tests.support.started import provoked
from tests.support.tiny_mobilenet import tiny_mobilenet

TWO = ("fit.max_epochs=2",)


def leg(samples: int, rate: float | None, joules: float | None = None) -> dict[str, Any]:
    rates = dict.fromkeys(("p_whole", "p_train", "p_core"), rate)
    return {"samples": samples, "wall_s": 10.0, "phases_s": {"compute": 4.0, "wall": 10.0}, "joules": joules, **rates}


def test_rates_are_all_samples_over_all_time() -> None:
    assert rate_over([leg(100, 50.0), leg(300, 100.0)], "p_whole") == 400 / 5  # 2 s and 3 s
    assert rate_over([leg(100, 50.0), leg(0, None)], "p_whole") == 50.0
    assert rate_over([leg(100, 50.0), leg(10, None)], "p_whole") is None and rate_over([leg(0, None)], "p_core") is None


def test_samples_times_phases_and_energy_add_up() -> None:
    both = over([leg(100, 50.0, 20.0), leg(300, 100.0, 30.0)], "nvml total energy")
    assert (both["samples"], both["e2e_time_s"], both["phases_s"]) == (400, 20.0, {"compute": 8.0, "wall": 20.0})
    assert both["energy"] == {"joules": 50.0, "samples_per_joule": 8.0, "source": "nvml total energy"}
    assert over([leg(100, 50.0, 20.0), leg(300, 100.0)], None)["energy"] is None  # one leg had no counter


def check_totals(record: Record, samples: int) -> None:
    assert record.legs is not None and record.samples == samples
    assert record.e2e_time_s == sum(entry.wall_s or 0 for entry in record.legs)
    wall, whole = record.phases_s["wall"] or 0.0, record.e2e_time_s or 0.0
    assert sum(record.phases_s[name] or 0 for name in PHASES) == pytest.approx(wall)
    assert wall <= whole < 2 * wall
    seconds = sum(entry.samples / entry.p_whole for entry in record.legs if entry.p_whole)
    assert record.p_whole == pytest.approx(samples / seconds)


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a run that was interrupted, in `run`, and gone on with, in `other`."""
    home = tmp_path_factory.mktemp("resumed")
    with pytest.raises(Interrupted):
        train(tiny_mobilenet(home, *TWO, provoked(what="is_interrupted", step=5)))
    last = home / "run" / "checkpoints" / "last.ckpt"
    train(tiny_mobilenet(home, *TWO, f"output_dir={home / 'other'}", f"ckpt_path={last}"))
    return home


@pytest.mark.slow
def test_a_resumed_run_is_one_record_of_two_legs(resumed: Path) -> None:
    first, both = read_record(resumed / "run"), read_record(resumed / "other")
    assert first.run == both.run and first.legs is not None and both.legs is not None
    steps = [(entry.first_step, entry.last_step, entry.status) for entry in both.legs]
    assert steps == [(1, 6, "interrupted"), (7, 16, "done")]
    assert [(entry.last_step, entry.status) for entry in first.legs] == [(6, "interrupted")]
    assert both.legs[0].wall_s == first.e2e_time_s and both.legs[0].began == first.legs[0].began
    assert first.legs[0].samples == 6 * 8 and first.legs[0].p_whole == first.p_whole
    check_totals(both, 16 * 8)


@pytest.mark.slow
def test_a_run_counts_once_in_a_comparison(resumed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = load([resumed / "run", resumed / "other"]).runs
    assert [source for source, _ in runs] == [str(resumed / "other")]
    told = capsys.readouterr().err
    assert told == f"note: {resumed / 'run'} left out: {resumed / 'other'} is the same run and got further\n"


@pytest.mark.slow
def test_a_run_that_ended_normally_stays_beside_a_longer_one(resumed: Path, tmp_path: Path) -> None:
    record = read_record(resumed / "other")
    assert record.legs is not None
    shorter = replace(record, legs=record.legs[:1], status="done")
    longer = replace(record, config={**record.config, "fit": {**record.config["fit"], "max_epochs": 3}})
    write_record(shorter, tmp_path / "a" / "result.json")
    write_record(longer, tmp_path / "b" / "result.json")
    assert len(load([tmp_path / "a", tmp_path / "b"]).runs) == 2
    write_record(replace(shorter, status="interrupted"), tmp_path / "a" / "result.json")
    assert len(load([tmp_path / "a", tmp_path / "b"]).runs) == 1
    write_record(replace(longer, run="another"), tmp_path / "b" / "result.json")
    assert len(load([tmp_path / "a", tmp_path / "b"]).runs) == 2


@pytest.mark.slow
def test_a_leg_without_a_record_was_killed(tmp_path: Path) -> None:
    often = (*TWO, "fit.checkpoint_every_n_steps=1")
    with pytest.raises(ArithmeticError):
        train(tiny_mobilenet(tmp_path, *often, provoked(what="fails", step=7)))
    (tmp_path / "run" / "result.json").unlink()  # which a killed process does not write
    record = train(tiny_mobilenet(tmp_path, *often, "resume=true"))
    assert record.legs is not None
    (first, last) = record.legs
    assert first.status == "killed" and 1 <= first.last_step < 7 and first.samples == first.last_step * 8
    assert first.environment is not None and "cpu" not in first.environment  # as it was
    assert (last.first_step, last.last_step, last.status) == (first.last_step + 1, 16, "done")
    check_totals(record, 16 * 8)
    assert read_record(tmp_path / "run") == record


@pytest.mark.slow
def test_a_run_whose_training_was_done_gets_a_leg_without_steps(tmp_path: Path) -> None:
    overrides = "logger=csv", "fit.max_steps=5"
    with pytest.raises(Interrupted):  # in the final evaluation
        train(tiny_mobilenet(tmp_path, *overrides, provoked(what="is_terminated", hook="on_test_start")))
    record = train(tiny_mobilenet(tmp_path, *overrides, "resume=true"))
    assert record.legs is not None and record.status == "done"
    assert [(entry.first_step, entry.last_step, entry.samples) for entry in record.legs] == [(1, 5, 40), (6, 5, 0)]
    assert len((tmp_path / "run" / "metrics.csv").read_text().splitlines()) == len(record.history) + 1
    check_totals(record, 5 * 8)
    again = train(tiny_mobilenet(tmp_path, *overrides, "resume=true"))
    assert [row["step"] for row in again.history] == [row["step"] for row in record.history]


@pytest.mark.slow
def test_a_leg_that_saved_nothing_is_told_with_its_time_alone(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train(tiny_mobilenet(tmp_path, *TWO, provoked(what="is_interrupted", step=5)))
    with pytest.raises(ArithmeticError):
        train(tiny_mobilenet(tmp_path, *TWO, "resume=true", provoked(what="fails", step=8)))
    record = train(tiny_mobilenet(tmp_path, *TWO, "resume=true"))
    assert record.legs is not None
    told = [(entry.first_step, entry.last_step, entry.status, entry.samples) for entry in record.legs]
    assert told == [(1, 6, "interrupted", 48), (7, 7, "failed", 0), (7, 16, "done", 80)]
    check_totals(record, 16 * 8)
