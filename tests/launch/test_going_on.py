"""A run that ends before it is done names its checkpoint and the command that goes on; that command does."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from src.config.schema import Topology, TrainConfig
from src.launch.going_on import command_with, quoted
from src.report.record import Record, read_record
from src.run import train
from tests.support import warm
from tests.support.composing import composed
from tests.support.started import LONG, provoked, run
from tests.support.tiny_mobilenet import tiny_overrides

TWO = "fit.max_epochs=2"
ODD = "it's, a=b"  # characters that a shell or Hydra reads as its own


def test_a_command_is_as_it_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainConfig(trainer=Topology(num_nodes=2, devices=4))
    monkeypatch.setattr(sys, "argv", [str(Path("train.py").resolve()), "seed=1"])
    assert command_with(["note=a b", "seed=1"], config) == "python train.py 'note=a b' seed=1"
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    words = shlex.split(command_with(["note=a b", "seed=1"], config))
    assert words[:3] == ["sbatch", "--nodes=2", "--ntasks-per-node=4"] and words[-2] == "--wrap"
    assert shlex.split(words[-1]) == ["srun", "--kill-on-bad-exit=1", "python", "train.py", "note=a b", "seed=1"]


def test_a_path_is_quoted_where_hydra_needs_it() -> None:
    assert quoted(Path("outputs/moflow/2026-11-27_10-00-00/checkpoints/last.ckpt")).startswith("outputs/")
    assert quoted(Path("a b/it's,=.ckpt")) == r"'a b/it\'s,=.ckpt'"
    assert quoted(Path("a\\b.ckpt")) == r"'a\\b.ckpt'"


def go_on(record: Record) -> subprocess.CompletedProcess[str]:
    """Runs the command of a record, as a person does who copies it; nothing ends it any more."""
    assert record.go_on is not None and record.go_on.command is not None
    command = re.sub(r"'\+callbacks.at=\S+' ", "", record.go_on.command)
    words = subprocess.check_output(["sh", "-c", f"python() {{ printf '%s\\0' \"$@\"; }}; {command}"], text=True)
    return warm.run(*words.split("\0")[:-1])


@pytest.mark.slow
def test_ctrl_c_names_the_checkpoint_and_the_command_in_its_last_line(tmp_path: Path) -> None:
    """Of a run in a folder of its own, which is gone on with by its checkpoint in another one."""
    root = tmp_path / ODD
    overrides = [override for override in tiny_overrides(tmp_path) if not override.startswith("output_")]
    overrides += [TWO, f"output_root={quoted(root)}", provoked(what="is_interrupted", step=5)]
    done = warm.run("train.py", *overrides)
    assert done.returncode == 130, done.stderr
    (file,) = root.glob("mobilenet_v1/*/result.json")
    record, last = read_record(file), file.parent / "checkpoints" / "last.ckpt"
    assert record.go_on is not None and record.go_on.checkpoint == str(last)
    assert done.stdout.rstrip().splitlines()[-1] == f"To go on from {last}: {record.go_on.command}"
    assert shlex.split(record.go_on.command or "") == ["python", "train.py", *overrides, f"ckpt_path={quoted(last)}"]
    again = go_on(record)
    assert again.returncode == 0, again.stderr
    whole = read_record(max(root.glob("mobilenet_v1/*")))
    assert whole.status == "done" and whole.run == record.run and whole.go_on is None and whole.legs is not None
    assert [leg.last_step for leg in whole.legs] == [6, 16]


@pytest.mark.slow
def test_the_limit_of_time_is_doubled(tmp_path: Path) -> None:
    home = tmp_path / ODD
    overrides = LONG, f"output_dir={quoted(home)}", "fit.max_time_s=0.3"
    code, out, err = run(tmp_path, *overrides)
    assert code == 0, err
    record = read_record(home)
    assert record.status == "done" and record.go_on is not None and record.go_on.command is not None
    more = [*tiny_overrides(tmp_path), *overrides[:2], "resume=true", "fit.max_time_s=0.6"]
    assert shlex.split(record.go_on.command) == ["python", "train.py", *more]
    assert out.rstrip().splitlines()[-1].startswith("To go on from ")
    whole = train(composed("train", *more))
    assert whole.legs is not None and whole.legs[1].last_step > whole.legs[0].last_step


@pytest.mark.slow
def test_a_rank_that_dies(tmp_path: Path) -> None:
    """It is rank 0, for which the launcher answers."""
    trainer = "trainer=1x2", TWO, "fit.checkpoint_every_n_steps=1"
    code, _, err = run(tmp_path, *trainer, provoked(what="dies", step=6))
    assert code == 1
    assert "rank 0 of 2 failed and ended the others\nended by SIGKILL" in err
    record = read_record(tmp_path / "run")
    assert record.status == "failed" and record.error is not None
    assert (record.error.type, record.error.message) == ("RankDied", "rank 0: ended by SIGKILL (lack of memory?)")
    assert record.go_on is not None and record.go_on.command is not None
    assert err.splitlines()[-1] == f"To go on from {record.go_on.checkpoint}: {record.go_on.command}"
    assert record.go_on.command.startswith("python train.py ") and "hydra.run.dir" not in record.go_on.command
    done = go_on(record)
    assert done.returncode == 0, done.stderr
    assert read_record(tmp_path / "run").status == "done"


@pytest.mark.slow
def test_a_run_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    code, out, _ = run(tmp_path, provoked(what="fails", step=2))
    assert code == 1
    last = out.rstrip().splitlines()[-1]
    assert last.startswith("No checkpoint was written; to start anew: python train.py model=mobilenet_v1 ")
    assert "resume" not in last and "ckpt_path" not in last
