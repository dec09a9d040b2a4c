"""A run that ends before it is done names its checkpoint and the command that goes on; that command does."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from src.config.schema import Topology, TrainConfig
from src.launch.going_on import command_with, quoted
from src.report.record import Record, read_record
from tests.support import ROOT
from tests.support.started import LONG, begin, ended, provoked, run
from tests.support.tiny_mobilenet import tiny_overrides

TWO = "fit.max_epochs=2"
ODD = "it's, a=b"  # characters that a shell or Hydra reads as its own
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "HYDRA"))}
ENVIRONMENT |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


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
    """Runs the command of a record, as a person does who copies it into the shell; nothing ends it any more."""
    assert record.go_on is not None and record.go_on.command is not None
    command = re.sub(r"'\+callbacks.at=\S+' ", "", record.go_on.command)
    return subprocess.run(command, shell=True, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False)


def check_gone_on(record: Record, folder: Path | Callable[[], Path]) -> None:
    done = go_on(record)
    assert done.returncode == 0, done.stderr
    whole = read_record(folder() if callable(folder) else folder)
    assert whole.status == "done" and whole.run == record.run and whole.go_on is None
    assert whole.legs is not None and len(whole.legs) == 2 and whole.legs[-1].last_step == 16


@pytest.mark.slow
def test_ctrl_c_names_the_checkpoint_and_the_command_in_its_last_line(tmp_path: Path) -> None:
    folder = tmp_path / ODD
    overrides = TWO, f"output_dir={quoted(folder)}", provoked(what="is_interrupted", step=5)
    code, out, err = run(tmp_path, *overrides)
    assert code == 130, err
    record, last = read_record(folder), folder / "checkpoints" / "last.ckpt"
    assert record.go_on is not None and record.go_on.checkpoint == str(last)
    assert out.rstrip().splitlines()[-1] == f"To go on from {last}: {record.go_on.command}"
    assert record.go_on.command is not None and record.go_on.command.endswith(" resume=true")
    check_gone_on(record, folder)


@pytest.mark.slow
def test_a_run_in_a_folder_of_its_own_is_gone_on_with_by_its_checkpoint(tmp_path: Path) -> None:
    root = tmp_path / ODD
    overrides = [override for override in tiny_overrides(tmp_path) if not override.startswith("output_")]
    overrides += [TWO, f"output_root={quoted(root)}", provoked(what="is_terminated", step=5)]
    command = [sys.executable, "train.py", *overrides]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 143, done.stderr
    (file,) = root.glob("mobilenet_v1/*/result.json")
    check_gone_on(read_record(file), lambda: max(root.glob("mobilenet_v1/*")))


@pytest.mark.slow
def test_the_limit_of_time_is_doubled(tmp_path: Path) -> None:
    code, out, err = run(tmp_path, LONG, "fit.max_time_s=1")
    assert code == 0, err
    record = read_record(tmp_path / "run")
    assert record.status == "done" and record.go_on is not None and record.go_on.command is not None
    assert record.go_on.command.endswith(" resume=true fit.max_time_s=2")
    assert out.rstrip().splitlines()[-1].startswith("To go on from ")
    done = go_on(record)
    whole = read_record(tmp_path / "run")
    assert done.returncode == 0 and whole.legs is not None
    assert whole.legs[1].last_step > whole.legs[0].last_step


@pytest.mark.slow
@pytest.mark.parametrize("what", ["is_interrupted", "dies", "fails"])
def test_ranks_started_by_torchrun(what: str, tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    trainer = "trainer=1x2", TWO, "fit.checkpoint_every_n_steps=1"
    process = begin(tmp_path, *trainer, provoked(what=what, step=5, rank=1), by=torchrun)
    _, out, _ = ended(process)
    record = read_record(tmp_path / "run")
    assert record.go_on is not None and record.go_on.command is not None, out
    assert record.go_on.command.startswith("python -m torch.distributed.run --standalone --nproc-per-node=2 train.py ")
    assert f": {record.go_on.command}\n" in out
    check_gone_on(record, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize(("what", "rank"), [("dies", 0), ("dies", 1), ("fails", 1)])
def test_a_rank_that_dies(what: str, rank: int, tmp_path: Path) -> None:
    trainer = "trainer=1x2", TWO, "fit.checkpoint_every_n_steps=1"
    code, _, err = run(tmp_path, *trainer, provoked(what=what, step=6, rank=rank))
    assert code == 1
    record = read_record(tmp_path / "run")
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
