"""The events of MLPerf's logging: what a run writes, in which order, and how it says that it ended."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from src.callbacks.mllog import MLLog
from src.errors import UserError
from src.models.moflow.task import MoFlowTask
from src.run import train
from tests.support.stand_ins import StandInTrainer, stand_in_task
from tests.support.tiny_run import SMILES, tiny_config

Event = dict[str, Any]


class RankTrainer(StandInTrainer):
    """A trainer of the given rank, with a datamodule of batches of 8."""

    rank = 0
    datamodule = SimpleNamespace(accumulate=1, batch_size=8)
    is_global_zero = property(lambda self: self.rank == 0)


def events(folder: Path) -> list[Event]:
    lines = (folder / "mllog.txt").read_text(encoding="utf-8").splitlines()
    assert all(line.startswith(":::MLLOG {") for line in lines)
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]


def of(log: list[Event], key: str) -> list[Event]:
    return [event for event in log if event["key"] == key]


@pytest.mark.slow
def test_a_run_writes_its_events_in_order_and_its_metric(tmp_path: Path) -> None:
    wanted = "callbacks=mllog", "fit.max_epochs=2", "model.task.target=0", "seed=7", "hp.accumulate=2"
    record = train(tiny_config(tmp_path, *wanted))
    log = events(tmp_path / "outputs" / "moflow" / "run")
    epoch = ["epoch_start", "eval_start", "eval_stop", "eval_accuracy", "epoch_stop"]
    assert [event["key"] for event in log if event["key"] != "train_samples"] == [
        "submission_benchmark", "seed", "global_batch_size", "run_start", *epoch, *epoch, *epoch[1:4], "run_stop",
    ]  # fmt: skip
    values = {event["key"]: event["value"] for event in log}
    assert (values["submission_benchmark"], values["seed"], values["global_batch_size"]) == ("moflow", 7, 16)
    assert 0 < values["train_samples"] < len(SMILES)
    assert record.final_metric is not None and values["eval_accuracy"] == record.final_metric.value
    assert [event["metadata"]["epoch_num"] for event in of(log, "epoch_start")] == [1, 2]
    assert {event["event_type"] for event in of(log, "epoch_start") + of(log, "run_start")} == {"INTERVAL_START"}
    assert of(log, "run_stop")[0]["metadata"] == {"status": "success"}
    times = [event["time_ms"] for event in log]
    assert times == sorted(times) and all(event["namespace"] == "" for event in log)


@pytest.mark.slow
def test_a_run_that_fails_or_misses_its_target_is_aborted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = "callbacks=mllog", "fit.max_steps=2", "fit.eval_every_n_epochs=null"
    train(tiny_config(tmp_path, *short, f"output_dir={tmp_path / 'missed'}", "model.task.target=100"))
    assert of(events(tmp_path / "missed"), "run_stop")[0]["metadata"] == {"status": "aborted"}

    def failing(task: MoFlowTask, batch: Any) -> Any:
        raise ValueError("broken")

    monkeypatch.setattr(MoFlowTask, "loss", failing)
    with pytest.raises(ValueError, match="broken"):
        train(tiny_config(tmp_path, *short, f"output_dir={tmp_path / 'failed'}", "model.task.target=null"))
    log = events(tmp_path / "failed")
    assert log[-1]["key"] == "run_stop" and log[-1]["metadata"] == {"status": "aborted"}


def test_the_first_rank_alone_writes_and_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    trainer, task = RankTrainer(), stand_in_task()
    trainer.rank = 1
    log = MLLog(str(tmp_path / "mllog.txt"), "moflow", 1)
    log.on_train_start(trainer, task)
    log.figures(task)
    assert not (tmp_path / "mllog.txt").exists()
    trainer.rank = 0
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write .*mllog\.txt"):
        MLLog(str(tmp_path / "file" / "mllog.txt"), "moflow", 1).on_train_start(trainer, task)
