"""`train.py trainer=1x2` by itself: what its ranks leave, and how all of them end when one does."""

import csv
import json
import signal
from collections import Counter
from pathlib import Path

import pytest
import torch

from src.errors import UserError
from src.report.record import read_record
from src.train import train_here_or_on_ranks
from tests.launch.test_two_nodes import run_on_two_nodes
from tests.support import warm
from tests.support.noting import noted
from tests.support.started import ANEW, LONG, begin, ended, provoked, run
from tests.support.tiny_mobilenet import tiny_mobilenet

pytestmark = pytest.mark.slow
WINDOW = "measure.window=1"


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run on two ranks of one node, and what it printed."""
    home = tmp_path_factory.mktemp("two_ranks")
    noting = f"+callbacks.noting={{_target_:tests.support.noting.Noting,folder:{home}}}"
    code, out, err = run(home, "trainer=1x2", "logger=csv", WINDOW, noting, "note='a note, with ${trainer.name}'")
    assert code == 0, err
    return home, out + err


def test_one_command_trains_on_its_ranks_and_leaves_one_record(two_ranks: tuple[Path, str]) -> None:
    home, printed = two_ranks
    assert printed.count("train done: mobilenet_v1 on image_synthetic, cpu 1x2") == 1
    assert printed.count("note: a note, with 1x2") == 1
    record = read_record(home / "run")
    assert (record.status, record.ranks, record.samples) == ("done", 2, 2 * 8 * 8)
    assert record.case.trainer == record.config["trainer"]["name"] == "1x2"
    assert {"trainer=1x2", "note='a note, with ${trainer.name}'"} <= set(record.environment["overrides"])


def test_every_line_is_printed_once(two_ranks: tuple[Path, str]) -> None:
    printed = [line for line in two_ranks[1].splitlines() if line.strip()]
    assert not [line for line, times in Counter(printed).items() if times > 1]
    assert not [line for line in printed if "[INFO]" in line or "Warning" in line]


def test_the_record_has_the_rates_and_the_communication_of_all_ranks(two_ranks: tuple[Path, str]) -> None:
    record = json.loads((two_ranks[0] / "run" / "result.json").read_text())
    for rate in ("p_whole", "p_train", "p_core"):
        spread = record["rates_over_ranks"][rate]
        assert 0 < spread["min"] <= spread["mean"] <= spread["max"]
        assert record[rate] == pytest.approx(2 * spread["mean"])
    exposed = record["communication"]["exposed_s"]
    assert 0 < exposed["min"] <= exposed["mean"] <= exposed["max"]
    assert 0 < record["communication"]["share"] < 1
    assert record["phases_s"]["communication"] > 0


def test_the_history_and_metrics_csv_are_of_all_ranks(two_ranks: tuple[Path, str]) -> None:
    home, _ = two_ranks
    ranks = [noted(home, rank) for rank in range(2)]
    history = [row for row in read_record(home / "run").history if "loss" in row]
    losses = [(one["loss"] + other["loss"]) / 2 for one, other in zip(*ranks, strict=True)]  # of 8 images each
    assert [row["loss"] for row in history] == pytest.approx(losses, rel=1e-12)
    assert [row["samples"] for row in history] == [16 * step for step in range(1, 9)]
    with (home / "run" / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["loss"]]
    assert [float(row["loss"]) for row in rows] == [row["loss"] for row in history]
    assert any(one["loss"] != other["loss"] for one, other in zip(*ranks, strict=True))


def test_two_nodes_train_as_one_with_as_many_ranks(tmp_path: Path, two_ranks: tuple[Path, str]) -> None:
    for code, _, err in run_on_two_nodes(tmp_path, WINDOW):
        assert code == 0, err
    one, two = (read_record(home / "run") for home in (two_ranks[0], tmp_path))
    assert one.ranks == two.ranks == 2 and one.samples == two.samples
    losses = [[row["loss"] for row in record.history if "loss" in row] for record in (one, two)]
    assert losses[0] == losses[1] and len(losses[0]) == 8
    torch.testing.assert_close(final_weights(tmp_path), final_weights(two_ranks[0]), rtol=0, atol=0)


def final_weights(home: Path) -> dict[str, torch.Tensor]:
    return torch.load(home / "run" / "checkpoints" / "last.ckpt", weights_only=False)["state_dict"]


def test_ranks_that_begin_anew_train_as_forks_of_the_launcher_do(tmp_path: Path, two_ranks: tuple[Path, str]) -> None:
    code, _, err = ended(begin(tmp_path, "trainer=1x2", WINDOW, by=ANEW))
    assert code == 0, err
    forked, anew = (read_record(home / "run") for home in (two_ranks[0], tmp_path))
    losses = [[row["loss"] for row in record.history if "loss" in row] for record in (forked, anew)]
    assert losses[0] == losses[1] and len(losses[0]) == 8
    torch.testing.assert_close(final_weights(tmp_path), final_weights(two_ranks[0]), rtol=0, atol=0)
    assert forked.start is not None and anew.start is not None
    assert tuple(forked.start.parts_s)[:3] == ("interpreter", "config", "imports")  # its launcher's
    assert next(iter(anew.start.parts_s)) == "launcher"


def test_a_rank_that_is_stopped_ends_the_run_with_a_record(tmp_path: Path) -> None:
    stopped = provoked(what="stops", step=3, rank=1)
    code, _, err = run(tmp_path, "trainer=1x2", "trainer.patience_s=1", LONG, stopped)
    assert code == 1
    why = "ended because it was stopped for 1 s (SIGSTOP or a debugger; trainer.patience_s)"
    assert f"rank 1 of 2 failed and ended the others\n{why}" in err
    record = read_record(tmp_path / "run")
    assert record.status == "failed" and record.error is not None
    assert (record.error.type, record.error.message) == ("RankDied", f"rank 1: {why}")


def test_a_users_mistake_is_refused_before_ranks_are_started(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^nowhere.ckpt: there is no such checkpoint; give the path of a last.ckpt"):
        train_here_or_on_ranks(tiny_mobilenet(tmp_path, "trainer=1x2", "ckpt_path=nowhere.ckpt"))


def test_a_mistake_that_only_rank_0_finds_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    """It prepares the data; the other rank loses its connection."""
    data = ("datamodule=smiles_file", f"datamodule.source.file={tmp_path}/none.smi", f"output_root={tmp_path}/outputs")
    done = warm.run("train.py", "experiment=quickstart", *data, "trainer=1x2", "hardware=cpu", "logger=none")
    told = f"error: datamodule.source.file={tmp_path}/none.smi does not exist; give a file with one SMILES a line\n"
    assert (done.returncode, done.stderr) == (2, told)
    assert not list(tmp_path.rglob("*.*")) and not list(tmp_path.glob("outputs/*"))


def test_ctrl_c_ends_all_ranks_after_one_step_with_a_checkpoint(tmp_path: Path) -> None:
    code, out, err = run(tmp_path, "trainer=1x2", LONG, provoked(what="interrupts_its_launcher", step=3))
    assert code == 130, err
    assert "Traceback" not in err
    assert out.count("train interrupted") == 1
    record = json.loads((tmp_path / "run" / "result.json").read_text())
    step = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=False)["global_step"]
    assert (record["status"], record["error"]["message"]) == ("interrupted", f"SIGINT after step {step}")
    assert step >= 3 and record["samples"] == step * 2 * 8


def test_a_rank_that_is_asked_again_while_all_end_together_is_not_waited_for(tmp_path: Path) -> None:
    """It takes no part in the step, the checkpoint and the figures that the other has begun."""
    once = provoked(what="is_interrupted", step=3, same_s=0)
    again = provoked(what="'is_interrupted is_interrupted'", stopping=True, rank=1).replace(".at=", ".again=")
    code, _, err = run(tmp_path, "trainer=1x2", LONG, once, again)
    assert code == 130, err
    record = read_record(tmp_path / "run")
    assert record.status == "interrupted" and record.error is not None
    assert (record.error.type, record.error.message) == ("Interrupted", "SIGINT as another rank had ended at once")
    assert "Traceback" not in err


def test_a_rank_that_fails_after_training_is_no_error_of_the_other(tmp_path: Path) -> None:
    """Which waits for its figures, and says only that it has lost it."""
    after = provoked(what="fails", hook="on_test_end", rank=1)
    code, _, err = run(tmp_path, "trainer=1x2", "fit.max_steps=2", after)
    assert code == 1 and "peer" not in err and err.count("Traceback") == 1
    _, _, told = err.partition("rank 1 of 2 failed and ended the others")
    assert "in fails" in told and "ArithmeticError: this rank is broken" in told
    record = read_record(tmp_path / "run")
    assert record.status == "failed" and record.error is not None
    assert (record.error.type, record.error.message) == ("ArithmeticError", "rank 1: this rank is broken")


def test_ranks_whose_launcher_is_killed_end_by_themselves_with_a_checkpoint(tmp_path: Path) -> None:
    code, _, _ = run(tmp_path, "trainer=1x2", LONG, provoked(what="kills_its_launcher", step=3, rank=1))
    assert code == -signal.SIGKILL
    record = read_record(tmp_path / "run")
    step = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=False)["global_step"]
    assert record.status == "interrupted" and record.error is not None
    assert record.error.message == f"SIGTERM after step {step}"


def test_ranks_that_begin_anew_end_where_their_launcher_died_meanwhile(
    tmp_path: Path,
) -> None:
    """They kill it in the first line that they run, so that they never see it alive."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os\nif 'RANK' in os.environ and os.getppid() == int(os.environ['REPRISE_ANSWERED_FOR']):\n"
        "    os.kill(os.getppid(), 9)\n"
        "while 'RANK' in os.environ and os.getppid() == int(os.environ['REPRISE_ANSWERED_FOR']):\n    pass\n"
    )
    process = begin(tmp_path, "trainer=1x2", LONG, path=(tmp_path,), by=ANEW)
    code, _, _ = ended(process)  # when nothing that could print is left
    assert code == -signal.SIGKILL
    assert not (tmp_path / "run" / "checkpoints").exists()
