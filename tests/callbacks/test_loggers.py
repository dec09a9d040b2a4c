"""What W&B gets of a run: its name and place, a row for each step, and at its end the record."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb

from src.callbacks.loggers import settle_loggers
from src.config.complete import complete
from src.errors import UserError
from src.launch.ending import Interrupted
from src.measure.phases import PHASES
from src.models.moflow.task import MoFlowTask
from src.report.job import SweepJob, write_job
from src.report.record import read_record
from src.report.wandb_run import described
from src.run import train
from tests.support.tiny_run import tiny_config
from tests.support.wandb_files import logged_by
from tests.support.wandb_server import wandb_server

pytestmark = pytest.mark.slow

Record = dict[str, Any]


def read(folder: Path) -> Record:
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all runs here, so that the molecules are prepared once."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def offline(home: Path) -> Iterator[Path]:
    """The home of runs whose W&B loggers have no server and say nothing; `wandb.teardown` ends their service."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # nothing answers there
        patch.setenv("WANDB_SILENT", "true")
        yield home
        wandb.teardown()


@pytest.fixture(scope="module")
def done(offline: Path) -> Path:
    """The folder of a run of two epochs."""
    folder = offline / "wandb_done"
    options = "logger=wandb", "fit.max_epochs=2", "measure.window=3", "pictures=true"
    train(tiny_config(offline, f"output_dir={folder}", *options))
    return folder


def test_wandb_has_the_figures_of_the_record(done: Path) -> None:
    logged, record = logged_by(done), read(done)
    summary, settings = logged["summary"], logged["config"]
    for key in ("status", "samples", "p_core", "p_whole", "e2e_time_s"):
        assert summary[key] == record[key]
    assert {key: summary[f"phases_s.{key}"] for key in PHASES if record["phases_s"][key] is not None} == {
        key: value for key, value in record["phases_s"].items() if key in PHASES and value is not None
    }
    assert settings["config"] == record["config"] and settings["case"] == record["case"]
    assert settings["environment"] == record["environment"] and settings["fit"]["max_epochs"] == 2
    assert ("record", ["result.json"]) in logged["artifacts"] and logged["exit_code"] == 0
    tables = {Path(path).name.partition("_")[0] for path in logged["files"] if path.endswith(".table.json")}
    assert tables == {"final figures"} and any("curves" in path for path in logged["files"])


def test_wandb_has_a_row_for_each_step_of_the_history(done: Path) -> None:
    logged, history = logged_by(done), read(done)["history"]
    expected: dict[int, Record] = {}
    for row in history:  # evaluations share the row of their step's losses
        expected.setdefault(row["step"], {}).update(row)
    assert [row["_step"] for row in logged["rows"]] == list(expected) == [3, 6, 8, 9, 12, 15, 16]
    for row in logged["rows"]:
        values = expected[row["_step"]]
        assert {key: row.get(key) for key in values} == values | {"step": None}
        assert row["samples"] == 8 * row["_step"] and 0 < row["seconds"] < values["time_s"]
    assert logged["axes"] == {"*": "samples"}


@pytest.fixture(scope="module")
def resumed(offline: Path) -> tuple[Path, Path]:
    """The folders of a run of one epoch and of the one that goes on with it for another."""
    first, second = offline / "wandb_first", offline / "wandb_second"
    options = "logger=wandb", "measure.window=1"
    train(tiny_config(offline, f"output_dir={first}", *options, "fit.final_evaluation=false"))
    last = first / "checkpoints" / "last.ckpt"
    train(tiny_config(offline, f"output_dir={second}", *options, "fit.max_epochs=2", f"ckpt_path={last}"))
    return first, second


@pytest.mark.slow
def test_a_training_that_goes_on_is_one_run_of_wandb(offline: Path, resumed: tuple[Path, Path]) -> None:
    first, second = resumed
    before, after = logged_by(first), logged_by(second)
    assert before["id"] == after["id"] and after["resume"]
    assert [row["_step"] for row in before["rows"] + after["rows"]] == list(range(1, 17))
    assert [row["samples"] for row in after["rows"]] == [8 * step for step in range(9, 17)]
    seconds = [row["seconds"] for row in before["rows"] + after["rows"]]
    assert seconds == sorted(seconds)
    record = read_record(first)
    assert (
        record.p_whole and record.samples and before["rows"][-1]["seconds"] <= record.samples / record.p_whole
    )  # not of the process
    best = first / "checkpoints" / "best.ckpt"  # the first run has gone on after it, if it is not the last
    train(tiny_config(offline, f"output_dir={offline / 'wandb_best'}", "logger=wandb", "fit.max_epochs=2",
                      f"ckpt_path={best}", "fit.final_evaluation=false"))  # fmt: skip
    assert logged_by(offline / "wandb_best")["id"] != before["id"]


@pytest.mark.slow
def test_the_parts_of_a_training_are_joined_when_they_are_sent(resumed: tuple[Path, Path]) -> None:
    wandb.teardown()
    folders = [str(path) for part in resumed for path in (part / "wandb").glob("offline-run-*")]
    with wandb_server() as server:
        environment = {**os.environ, **server.variables, "WANDB_SILENT": "false"}
        command = [sys.executable, "-m", "wandb", "sync", "--yes", *folders]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    (run,) = server.history
    assert server.steps(run) == list(range(1, 17))
    assert [row["samples"] for _, row in sorted(server.history[run].items())] == [8 * step for step in range(1, 17)]


@pytest.mark.parametrize("how", ["failed", "diverged", "interrupted"])
def test_a_run_that_does_not_end_well_has_failed_in_wandb(
    how: str, offline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss, folder = MoFlowTask.loss, offline / f"wandb_{how}"
    calls = iter(range(100))

    def ending(task: MoFlowTask, batch: Any) -> Any:
        losses = loss(task, batch)
        if next(calls) != 3:
            return losses
        if how == "diverged":
            return {name: value * float("nan") for name, value in losses.items()}
        if how == "interrupted":
            os.kill(os.getpid(), signal.SIGTERM)
            return losses
        raise ValueError("the loss\nbroke")

    monkeypatch.setattr(MoFlowTask, "loss", ending)
    with pytest.raises((ValueError, UserError, Interrupted)):
        train(tiny_config(offline, f"output_dir={folder}", "logger=wandb", "measure.window=1"))
    logged, record = logged_by(folder), read(folder)
    assert logged["exit_code"] == 1
    steps = [row["_step"] for row in logged["rows"] if "loss" in row]
    assert steps == [row["step"] for row in record["history"]] and len(steps) > 2
    assert logged["summary"]["status"] == record["status"] == ("interrupted" if how == "interrupted" else "failed")
    assert logged["summary"]["error"] == f"{record['error']['type']}: {record['error']['message']}"
    expected = {"failed": "the loss\nbroke", "diverged": "NaN", "interrupted": "SIGTERM"}
    assert expected[how] in logged["summary"]["error"] and logged["summary"]["samples"] == record["samples"] > 0


@pytest.mark.parametrize(
    ("variables", "overrides", "expected"),
    [
        ({}, (), {"offline": True, "project": "reprise", "save_dir": "OUT", "group": "moflow"}),
        ({"WANDB_MODE": "online", "WANDB_PROJECT": "mine", "WANDB_DIR": "there"}, (),
         {"offline": False, "project": "mine", "save_dir": "there", "group": "moflow"}),
        ({"WANDB_MODE": "online", "WANDB_PROJECT": "mine"},
         ("logger.wandb.offline=true", "logger.wandb.project=given", "logger.wandb.group=own"),
         {"offline": True, "project": "given", "save_dir": "OUT", "group": "own"}),
    ],
)  # fmt: skip
def test_wandb_follows_its_variables_and_then_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], overrides: tuple[str, ...],
    expected: dict[str, Any],
) -> None:  # fmt: skip
    for name in ("WANDB_MODE", "WANDB_PROJECT", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    config = tiny_config(tmp_path, f"output_dir={tmp_path / 'sweep' / '0'}", "logger=wandb", *overrides)
    wandb = settle_loggers(complete(config)).logger["wandb"]
    where = str(tmp_path / "sweep" / "0")
    assert {key: wandb[key] for key in expected} == {
        key: where if value == "OUT" else value for key, value in expected.items()
    }


def test_jobs_of_a_sweep_are_grouped_by_its_folder(tmp_path: Path) -> None:
    write_job(tmp_path / "lr_sweep" / "3", SweepJob(key="", overrides=[], command=[], cwd="."))
    config = tiny_config(tmp_path, f"output_dir={tmp_path / 'lr_sweep' / '3'}", "logger=wandb")
    assert settle_loggers(complete(config)).logger["wandb"]["group"] == "lr_sweep"


def test_a_logger_that_cannot_send_the_record_does_not_fail_the_run(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise OSError("no space for artifacts")

    monkeypatch.setattr(wandb.Artifact, "add_file", refuse)
    train(tiny_config(home, f"output_dir={home / 'refused'}", "logger=wandb", "fit.max_steps=1"))
    assert read(home / "refused")["status"] == "done"
    assert "note: W&B has not got all of the record (no space for artifacts)" in capfd.readouterr().out


def test_a_key_of_wandb_among_the_settings_is_one_line(home: Path) -> None:
    with pytest.raises(UserError, match="WANDB_API_KEY"):
        train(tiny_config(home, f"output_dir={home / 'key'}", "logger=wandb", "+logger.wandb.api_key=secret-key"))


def test_a_run_is_named_by_its_model_and_what_the_command_changes(tmp_path: Path) -> None:
    typed = [
        "model=moflow", "hp.lr=0.001", "+fix_hp=max_bs", "seed=2", "logger=wandb", "logger.wandb.group=a",
        "~callbacks.energy", "callbacks=bare", "output_root=/tmp/x", "ckpt_path=/tmp/last.ckpt",
        "model.task.temperature=0.5",
    ]  # fmt: skip
    run = described("train", "moflow", ["amp", "1x8", "h200"], typed, tmp_path)
    assert run["name"] == "moflow hp.lr=0.001 fix_hp=max_bs seed=2 model.task.temperature=0.5"
    assert (run["group"], run["job_type"], run["tags"]) == ("moflow", "train", ["amp", "1x8", "h200"])
    long = described("predict", "dlrm", ["amp", "1x1", "h" * 99], ["a=" + "b" * 200], tmp_path)
    assert long["tags"] == ["amp", "1x1", "h" * 64] and len(long["name"]) == 128


def test_a_job_of_a_sweep_is_named_by_what_its_jobs_differ_in(tmp_path: Path) -> None:
    for i, lr in enumerate(("1e-4", "5e-4")):
        overrides = ["model=moflow", "fit.max_steps=" + "1" * 120, f"hp.lr={lr}"]
        write_job(tmp_path / "lrs" / str(i), SweepJob(key=lr, overrides=overrides, command=[], cwd="."))
    run = described("train", "moflow", ["amp", "1x1", "h200"], ["hp.lr=5e-4"], tmp_path / "lrs" / "1")
    assert run == {
        "name": "moflow hp.lr=5e-4", "group": "lrs", "job_type": "train", "tags": ["amp", "1x1", "h200", "sweep"],
    }  # fmt: skip
