"""Of 60 forms of secrets in five places none is in any file, on the screen or sent to a logger."""

import json
from pathlib import Path

import pytest

from src.system.masking import MASK
from tests.reliability.secrets import run

pytestmark = pytest.mark.slow


def test_an_error_holds_no_planted_secret(tmp_path: Path) -> None:
    ended = run(tmp_path, fails=True)
    assert ended.code == 1 and "Refused: all is wrong:" in ended.printed
    assert ended.leaks() == []
    record = json.loads((tmp_path / "run" / "result.json").read_text())
    assert record["status"] == "failed" and record["error"]["message"].startswith("all is wrong:")
    assert ended.printed.count("printed") > 100


def test_a_sweep_and_what_the_loggers_of_its_run_get_hold_no_planted_secret(tmp_path: Path) -> None:
    ended = run(tmp_path, sweep=True)
    assert ended.code == 0, ended.printed
    assert ended.leaks() == [] and (tmp_path / "sweep" / "0" / "job.json").exists()
    names = {name for name, _ in ended.contents()}
    expected = {"result.json", "train.log", "metrics.csv", "last.ckpt", "/data.pkl", ".wandb", "output.log",
                ".hydra/config.yaml", ".hydra/overrides.yaml", ".hydra/hydra.yaml"}  # fmt: skip
    assert {word for word in expected if any(name.endswith(word) for name in names)} == expected
    assert any("tfevents" in name for name in names)
    assert b'{"hyperparameters": {' in ended.sent
    record = json.loads((tmp_path / "sweep" / "0" / "result.json").read_text())
    assert record["config"]["model"]["keys"] == dict.fromkeys(record["config"]["model"]["keys"], MASK)
    assert record["config"]["model"]["of_environment"][0] == "${oc.env:PLANTED_0}"
