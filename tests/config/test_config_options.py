"""Configs of one's own: a folder and a name reach the ranks, the jobs of a sweep and the command that goes on."""

import json
from pathlib import Path

import pytest

from src.report.record import read_record
from tests.support.refusing import Command
from tests.support.started import provoked, run
from tests.support.tiny_mobilenet import tiny_overrides

pytestmark = pytest.mark.slow


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    folder = tmp_path / "my configs"
    (folder / "experiment").mkdir(parents=True)
    (folder / "experiment" / "mine.yaml").write_text("# @package _global_\nnote: mine\nhp: {lr: 0.01}\n")
    (folder / "another.yaml").write_text("defaults: [train, _self_]\nseed: 7\n")
    return ["--config-dir", str(folder), "--config-name", "another", "experiment=mine"]


def test_a_run_of_two_ranks_has_them(options: list[str], tmp_path: Path) -> None:
    code, _, err = run(tmp_path, *options, "trainer=1x2", provoked(what="is_interrupted", step=2))
    assert code == 130, err
    record = read_record(tmp_path / "run")
    assert (record.config["note"], record.config["seed"], record.ranks) == ("mine", 7, 2)
    assert record.go_on is not None and record.go_on.command is not None
    assert "--config-dir" in record.go_on.command and record.go_on.command.endswith("--config-name another")


def test_a_job_of_a_sweep_has_them(options: list[str], tmp_path: Path, command: Command) -> None:
    sweep = tmp_path / "sweep"
    overrides = [word for word in tiny_overrides(tmp_path) if not word.startswith("output_dir=")]
    ended = command("train.py", *options, *overrides, "-m", f"hydra.sweep.dir={sweep}", "fit.max_steps=1")
    assert ended.code == 0, ended.err
    config = read_record(sweep / "0").config
    assert (config["note"], config["seed"]) == ("mine", 7)
    assert json.loads((sweep / "0" / "job.json").read_text())["command"][-1] == "another"
