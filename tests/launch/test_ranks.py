"""`train.py trainer=1x2` by itself: what its ranks leave, and how all of them end when one does."""

import csv
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from src.report.record import read_record
from tests.support import ROOT
from tests.support.noting import noted
from tests.support.started import LONG, begin, ended, provoked, run

pytestmark = pytest.mark.slow


@pytest.mark.slow
def test_the_history_and_metrics_csv_are_of_all_ranks(tmp_path: Path) -> None:
    noting = f"+callbacks.noting={{_target_:tests.support.noting.Noting,folder:{tmp_path}}}"
    code, _, err = run(tmp_path, "trainer=1x2", "logger=csv", "measure.window=1", noting)
    assert code == 0, err
    ranks = [noted(tmp_path, rank) for rank in range(2)]
    history = [row for row in read_record(tmp_path / "run").history if "loss" in row]
    losses = [(one["loss"] + other["loss"]) / 2 for one, other in zip(*ranks, strict=True)]  # of 8 images each
    assert [row["loss"] for row in history] == pytest.approx(losses, rel=1e-12)
    assert [row["samples"] for row in history] == [16 * step for step in range(1, 9)]
    with (tmp_path / "run" / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["loss"]]
    assert [float(row["loss"]) for row in rows] == [row["loss"] for row in history]
    assert any(one["loss"] != other["loss"] for one, other in zip(*ranks, strict=True))


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_run_with_its_traceback_and_a_record(tmp_path: Path) -> None:
    code, _, err = run(tmp_path, "trainer=1x2", LONG, provoked(what="fails", step=3, rank=1))
    assert code == 1
    _, _, told = err.partition("rank 1 of 2 failed and ended the others")
    assert "in fails" in told and "ArithmeticError: this rank is broken" in told
    record = read_record(tmp_path / "run")
    assert record.status == "failed" and record.error is not None
    assert (record.error.type, record.error.message) == ("ArithmeticError", "rank 1: this rank is broken")


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "rank"), [(2, 0), (4, 3)])
def test_a_rank_that_is_killed_ends_the_run_with_a_record(ranks: int, rank: int, tmp_path: Path) -> None:
    code, _, err = run(tmp_path, f"trainer=1x{ranks}", LONG, provoked(what="dies", step=3, rank=rank))
    assert code == 1
    assert f"rank {rank} of {ranks} failed and ended the others\nended by SIGKILL" in err
    record = read_record(tmp_path / "run")
    assert record.status == "failed" and record.error is not None
    assert (record.error.type, record.error.message) == ("RankDied", f"rank {rank}: ended by SIGKILL (lack of memory?)")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_is_stopped_ends_the_run_with_a_record(ranks: int, tmp_path: Path) -> None:
    stopped = provoked(what="stops", step=3, rank=1)
    code, _, err = run(tmp_path, f"trainer=1x{ranks}", "trainer.patience_s=3", LONG, stopped)
    assert code == 1
    why = "ended because it was stopped for 3 s (SIGSTOP or a debugger; trainer.patience_s)"
    assert f"rank 1 of {ranks} failed and ended the others\n{why}" in err
    record = read_record(tmp_path / "run")
    assert record.status == "failed" and record.error is not None
    assert (record.error.type, record.error.message) == ("RankDied", f"rank 1: {why}")


@pytest.mark.slow
def test_a_rank_that_is_slow_is_waited_for(tmp_path: Path) -> None:
    paused = provoked(what="pauses", step=3, rank=1)
    code, _, err = run(tmp_path, "trainer=1x4", "trainer.patience_s=30", paused)
    assert code == 0, err
    assert read_record(tmp_path / "run").status == "done"


def test_a_users_mistake_is_one_line(tmp_path: Path) -> None:
    code, _, err = run(tmp_path, "trainer=1x2", "ckpt_path=nowhere.ckpt")
    assert code == 2
    assert [line for line in err.splitlines() if line.startswith("error:")] == [
        "error: nowhere.ckpt: there is no such checkpoint; give the path of a last.ckpt or best.ckpt"
    ]
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_mistake_that_only_rank_0_finds_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    """It prepares the data; the other rank loses its connection."""
    data = ("datamodule=smiles_file", f"datamodule.source.file={tmp_path}/none.smi", f"output_root={tmp_path}/outputs")
    command = [sys.executable, "train.py", "experiment=quickstart", *data, "trainer=1x2", "hardware=cpu", "logger=none"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    told = f"error: datamodule.source.file={tmp_path}/none.smi does not exist; give a file with one SMILES a line\n"
    assert (done.returncode, done.stderr) == (2, told)
    assert not list(tmp_path.rglob("*.*")) and not list(tmp_path.glob("outputs/*"))


@pytest.mark.parametrize(("what", "name"), [("interrupts_its_launcher", "SIGINT"), ("warns_its_launcher", "SIGUSR1")])
def test_a_signal_ends_all_ranks_after_one_step_with_a_checkpoint(what: str, name: str, tmp_path: Path) -> None:
    code, out, err = run(tmp_path, "trainer=1x2", LONG, provoked(what=what, step=3))
    assert code == 128 + signal.Signals[name], err
    assert "Traceback" not in err
    assert out.count("train interrupted") == 1
    check_interrupted(tmp_path, name)


@pytest.mark.slow
def test_a_rank_that_was_asked_once_is_interrupted_where_another_ends_at_once(tmp_path: Path) -> None:
    """Its next collective fails, as the other rank was asked twice."""
    once = provoked(what="is_terminated", step=3, same_s=0)
    twice = provoked(what="'is_terminated is_terminated'", step=3, rank=1, same_s=0).replace(".at=", ".other=")
    code, _, err = run(tmp_path, "trainer=1x2", LONG, once, twice)
    assert code == 143, err
    record = read_record(tmp_path / "run")
    assert record.status == "interrupted" and record.error is not None
    assert (record.error.type, record.error.message) == ("Interrupted", "SIGTERM as another rank had ended at once")


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_asked_again_while_all_end_together_is_not_waited_for(rank: int, tmp_path: Path) -> None:
    """It takes no part in the step, the checkpoint and the figures that the other has begun."""
    once = provoked(what="is_interrupted", step=3, same_s=0)
    again = provoked(what="'is_interrupted is_interrupted'", stopping=True, rank=rank).replace(".at=", ".again=")
    code, _, err = run(tmp_path, "trainer=1x2", LONG, once, again)
    assert code == 130, err
    record = read_record(tmp_path / "run")
    assert record.status == "interrupted" and record.error is not None
    when = "before the next step" if rank == 0 else "as another rank had ended at once"
    assert (record.error.type, record.error.message) == ("Interrupted", f"SIGINT {when}")


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_ends_after_training_alone_is_no_error_of_the_other(rank: int, tmp_path: Path) -> None:
    """Which waits for its figures, and says only that it has lost it."""
    what = "is_terminated" if rank == 0 else "fails"
    after = provoked(what=what, hook="on_test_end", rank=rank)
    code, _, err = run(tmp_path, "trainer=1x2", "fit.max_steps=5", after)
    record = read_record(tmp_path / "run")
    assert record.error is not None and "peer" not in err
    if rank == 0:
        assert (code, record.status, record.error.message) == (143, "interrupted", "SIGTERM outside of training")
        assert "Traceback" not in err
    else:
        assert (code, record.status, record.error.message) == (1, "failed", "rank 1: this rank is broken")
        assert err.count("Traceback") == 1


@pytest.mark.slow
def test_ranks_whose_launcher_is_killed_end_by_themselves_with_a_checkpoint(tmp_path: Path) -> None:
    code, _, _ = run(tmp_path, "trainer=1x2", LONG, provoked(what="kills_its_launcher", step=3, rank=1))
    assert code == -9
    check_interrupted(tmp_path, "SIGTERM")


@pytest.mark.slow
def test_ranks_whose_launcher_died_while_they_started_end(tmp_path: Path) -> None:
    """They kill it in the first line that they run, so that they never see it alive."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os\nif 'RANK' in os.environ and os.getppid() == int(os.environ['REPRISE_ANSWERED_FOR']):\n"
        "    os.kill(os.getppid(), 9)\n"
        "while 'RANK' in os.environ and os.getppid() == int(os.environ['REPRISE_ANSWERED_FOR']):\n    pass\n"
    )
    process = begin(tmp_path, "trainer=1x2", LONG, path=(tmp_path,))
    code, _, _ = ended(process)  # when nothing that could print is left
    assert code == -signal.SIGKILL
    assert not (tmp_path / "run" / "checkpoints").exists()


def check_interrupted(home: Path, name: str) -> None:
    """Both ranks ended after the step of the checkpoint."""
    record = json.loads((home / "run" / "result.json").read_text())
    step = torch.load(home / "run" / "checkpoints" / "last.ckpt", weights_only=False)["global_step"]
    assert (record["status"], record["error"]["message"]) == ("interrupted", f"{name} after step {step}")
    assert step >= 3 and record["samples"] == step * 2 * 8
