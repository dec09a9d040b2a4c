"""Configs of one's own: a folder and a name reach the ranks, the jobs of a sweep and the command that goes on."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from src.report.record import read_record
from tests.support import ROOT
from tests.support.started import LIMIT_S, provoked, run
from tests.support.tiny_mobilenet import tiny_overrides

pytestmark = pytest.mark.slow


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    folder = tmp_path / "my configs"
    (folder / "experiment").mkdir(parents=True)
    (folder / "experiment" / "mine.yaml").write_text("# @package _global_\nnote: mine\nhp: {lr: 0.01}\n")
    (folder / "another.yaml").write_text("defaults: [train, _self_]\nseed: 7\n")
    return ["--config-dir", str(folder), "--config-name", "another", "experiment=mine"]


@pytest.mark.parametrize("trainer", ["1x1", "1x2"])
def test_a_run_has_them(trainer: str, options: list[str], tmp_path: Path) -> None:
    code, _, err = run(tmp_path, *options, f"trainer={trainer}", provoked(what="is_interrupted", step=2))
    assert code == 130, err
    record = read_record(tmp_path / "run")
    assert (record.config["note"], record.config["seed"], record.ranks) == ("mine", 7, int(trainer[2:]))
    assert record.go_on is not None and record.go_on.command is not None
    assert "--config-dir" in record.go_on.command and record.go_on.command.endswith("--config-name another")


def test_the_jobs_of_a_sweep_have_them(options: list[str], tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    overrides = [word for word in tiny_overrides(tmp_path) if not word.startswith("output_dir=")]
    command = [sys.executable, "train.py", *options, *overrides, "-m", f"hydra.sweep.dir={sweep}", "fit.max_steps=1,2"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.returncode == 0, ended.stderr
    assert [read_record(sweep / str(number)).config["seed"] for number in (0, 1)] == [7, 7]
    assert json.loads((sweep / "0" / "job.json").read_text())["command"][-1] == "another"
