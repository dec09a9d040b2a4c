"""Records are read as they were written, and errors name the faulty file and key."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src.errors import UserError
from src.report.record import (
    Case,
    Latency,
    Record,
    Steady,
    WithLoading,
    from_figures,
    read_record,
    write_record,
)

KEYS = {
    *("schema_version", "kind", "case", "status", "error", "e2e_time_s", "unit", "final_metric", "mem", "phases_s"),
    *(
        "utilisation",
        "energy",
        "samples",
        "ranks",
        "tokens",
        "communication",
        "rates_over_ranks",
        "times",
        "reading",
        "start",
        "classes",
        "config",
        "environment",
    ),
    "history",
}


def test_round_trip_is_exact(tmp_path: Path, trained: Record, predicted: Record, out_of_memory: Record) -> None:
    for record in (trained, predicted, out_of_memory):
        write_record(record, tmp_path / "new" / "folder" / "result.json")
        assert read_record(tmp_path / "new" / "folder") == record
        assert read_record(tmp_path / "new" / "folder" / "result.json") == record


def test_keys_of_result_json(trained: Record, predicted: Record) -> None:
    assert set(trained.to_dict()) == KEYS | {"p_whole", "p_train", "p_core", "steady", "run", "legs", "go_on"}
    assert set(predicted.to_dict()) == KEYS | {"throughput", "latency_s", "with_loading", "quality", "calibration"}
    assert set(trained.to_dict()["steady"]["step_time_s"]) == {"p50", "p90", "p95", "p99"}
    assert set(predicted.to_dict()["latency_s"]) == {"mean", "p50", "p90", "p95", "p99"}


def test_a_figure_that_is_not_finite_becomes_null(tmp_path: Path, trained: Record) -> None:
    strange = replace(trained, p_core=float("inf"), history=[{"step": 1, "loss": float("nan")}], config={"a": (1, 2)})
    write_record(strange, tmp_path / "result.json")
    data = json.loads((tmp_path / "result.json").read_text())
    assert (data["p_core"], data["history"], data["config"]) == (None, [{"step": 1, "loss": None}], {"a": [1, 2]})


@pytest.mark.parametrize(("value", "kept"), [(1e70, None), (-1e70, None), (1e-70, 0.0), (-1e-70, 0.0), (-1e9, -1e9)])
def test_a_figure_beyond_use_becomes_null_and_one_next_to_nothing_0(
    value: float, kept: float | None, trained: Record
) -> None:
    assert replace(trained, p_core=value).to_dict()["p_core"] == kept


def test_numpy_scalars_become_numbers(tmp_path: Path, trained: Record) -> None:
    figures = {key: value for key, value in trained.to_dict().items() if key != "schema_version"}
    history = [{"step": np.int64(3), "loss": np.float32(0.5)}]
    write_record(from_figures(figures | {"history": history}), tmp_path / "r.json")
    assert read_record(tmp_path / "r.json").history == [{"step": 3, "loss": 0.5}]


def test_figures_by_key_make_the_same_record(trained: Record, predicted: Record, case: Case) -> None:
    for record in (trained, predicted):
        figures = record.to_dict()
        del figures["schema_version"]
        assert from_figures(figures) == record
    few = {"kind": "train", "case": asdict(case), "status": "failed", "unit": "molecules"}
    made = from_figures({**few, "p_core": np.float64(3.5), "p_train": float("nan"), "samples": np.int64(4)})
    assert made == Record(kind="train", case=case, status="failed", unit="molecules", p_core=3.5, samples=4)
    with pytest.raises(ValueError, match="unknown key 'p_hole'"):
        from_figures({**few, "p_hole": 1.0})


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    run_folder: Path, trained: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Any, target: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(UserError, match=r"cannot write .*result\.json \(No space left on device\)"):
        write_record(replace(trained, samples=1), run_folder / "result.json")
    assert [path.name for path in run_folder.iterdir()] == ["result.json"]
    assert read_record(run_folder) == trained


def test_a_record_that_is_not_serialisable_leaves_no_file(tmp_path: Path, trained: Record) -> None:
    with pytest.raises(TypeError):
        write_record(replace(trained, config={"a": object()}), tmp_path / "result.json")
    assert list(tmp_path.iterdir()) == []


def test_writing_into_a_file_as_folder_names_the_path(run_folder: Path, trained: Record) -> None:
    with pytest.raises(UserError, match=r"cannot write .*inner\.json"):
        write_record(trained, run_folder / "result.json" / "inner.json")


def test_figures_of_the_other_kind_and_unknown_phases_are_refused(case: Case) -> None:
    with pytest.raises(ValueError, match="predict record has no steady"):
        Record(kind="predict", case=case, status="done", unit="molecules", steady=Steady())
    with pytest.raises(ValueError, match="unknown phase 'coffee'"):
        Record(kind="train", case=case, status="done", unit="molecules", phases_s={"coffee": 3.0})


def _altered(path: Path, where: list[str], value: Any) -> Path:
    """Replaces the value at `where` in a record file, or removes it if `value` is `...`; returns the path."""
    data = json.loads(path.read_text())
    node = data
    for key in where[:-1]:
        node = node[key]
    if value is ...:
        del node[where[-1]]
    else:
        node[where[-1]] = value
    path.write_text(json.dumps(data))
    return path


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (["p_whole"], ..., "missing key 'p_whole'"),
        (["case", "trainer"], ..., "missing key 'case.trainer'"),
        (["p_hole"], 3.0, "unknown key 'p_hole': did you mean 'p_whole'"),
        (["steady", "step_time_s", "p51"], 3.0, "unknown key 'steady.step_time_s.p51'"),
        (["p_core"], "fast", "key 'p_core' is 'fast', expected a number, or null"),
        (["samples"], True, "key 'samples' is True, expected a whole number, or null"),
        (["case", "model"], None, "key 'case.model' is None, expected a text"),
        (["status"], "fine", "key 'status' is 'fine', expected done, failed, oom or interrupted"),
        (["history"], {}, "key 'history' is {}, expected a list"),
        (["mem"], 8.0, "key 'mem' is 8.0, expected an object, or null"),
        (["phases_s", "compute"], [], r"key 'phases_s.compute' is \[\], expected a number, or null"),
        (["phases_s", "coffee"], 1.0, "unknown phase 'coffee'"),
        (["throughput"], 3.0, "a train record has no throughput"),
        (["history"], [5], r"key 'history\[0\]' is 5, expected {NAME: VALUE}, each a value"),
        (["history"], [{"loss": "low"}], r"key 'history\[0\].loss' is 'low', expected a number, or null"),
        (["config", "hp"], 3, "key 'config.hp' is 3, expected an object"),
        (["config", "seed"], [1], r"key 'config.seed' is \[1\], expected a whole number"),
        (["config", "model"], {"task": "x"}, "key 'config.model.task' is 'x', expected an object"),
        (["environment", "git"], "abc", "key 'environment.git' is 'abc', expected an object"),
        (["environment", "gpus"], [2], r"key 'environment.gpus\[0\]' is 2, expected a text"),
        (["e2e_time_s"], 1e300, r"1e\+300 is too large"),
        (["e2e_time_s"], 5e-324, "5e-324 is too small"),
        (["schema_version"], 2, "key 'schema_version' is 2, this code reads 1"),
        (["schema_version"], ..., "key 'schema_version' is None"),
    ],
)
def test_a_wrong_key_is_named(run_folder: Path, where: list[str], value: Any, message: str) -> None:
    path = _altered(run_folder / "result.json", where, value)
    with pytest.raises(UserError, match=f"result.json:? .*{message}") as caught:
        read_record(path)
    assert "\n" not in str(caught.value)


def test_with_loading_may_be_none_or_absent(run_folder: Path, predicted: Record) -> None:
    assert predicted.with_loading is None
    latency = Latency(mean=0.05, p50=0.05, p90=0.05, p95=0.05, p99=0.05)
    loaded = replace(predicted, with_loading=WithLoading(throughput=10240.0, latency_s=latency))
    write_record(loaded, run_folder / "loaded.json")
    assert read_record(run_folder / "loaded.json") == loaded
    older = loaded.to_dict()
    del older["with_loading"]
    (run_folder / "older.json").write_text(json.dumps(older))
    assert read_record(run_folder / "older.json") == predicted


@pytest.mark.parametrize("key", ["rates_over_ranks", "tokens", "communication"])
def test_keys_that_older_records_lack_are_optional(key: str, run_folder: Path) -> None:
    assert getattr(read_record(_altered(run_folder / "result.json", [key], ...)), key) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{\n"kind": "train",\n"case": ', "line 3 is not JSON"),
        (b"", "line 1 is not JSON"),
        (b"\xff\xfe", "line 1 is not UTF-8"),
        (b'{"p_core": NaN}', "NaN is not a JSON number"),
        (b"[1]", "a record is a JSON object, this is a list"),
    ],
)
def test_a_file_that_is_not_a_record_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "result.json").write_bytes(content)
    with pytest.raises(UserError, match=f"result.json:? .*{message}"):
        read_record(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*result\.json \(No such file or directory\): give a run folder"):
        read_record(tmp_path)
    with pytest.raises(UserError, match=r"cannot read .*absent"):
        read_record(tmp_path / "absent")
