"""The events of MLPerf's logging: what a run writes, in which order, and how it says that it ended."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from src.callbacks.mllog import MLLog
from src.errors import UserError
from src.models.moflow.task import MoFlowTask
from src.run import train
from tests.support.stand_ins import StandInTrainer, stand_in_task
from tests.support.tiny_dlrm import tiny_dlrm
from tests.support.tiny_run import SMILES, tiny_config

Event = dict[str, Any]

# Of github.com/mlcommons/logging, commit 7bbf792, mlperf_logging/compliance_checker/training_5.0.0: common.yaml,
# closed_common.yaml and closed_dlrm_dcnv2.yaml; and the submission_* keys of mllog/constants.py that name a result.
EXACTLY_ONE = (
    "submission_benchmark", "submission_division", "submission_org", "submission_platform", "submission_status",
    "init_stop", "run_start", "run_stop", "train_samples", "eval_samples", "global_batch_size",
    "gradient_accumulation_steps", "opt_base_learning_rate", "opt_name", "opt_adagrad_learning_rate_decay",
    "opt_weight_decay", "opt_adagrad_initial_accumulator_value", "opt_adagrad_epsilon",
    "opt_learning_rate_warmup_steps", "opt_learning_rate_decay_start_step", "opt_learning_rate_decay_steps",
)  # fmt: skip
AT_LEAST_ONE = (
    "cache_clear", "init_start", "epoch_start", "epoch_stop", "eval_start", "eval_stop", "eval_accuracy",
)  # fmt: skip
OF_DCNV2 = {
    "submission_benchmark": "dlrm_dcnv2", "opt_name": "adagrad", "opt_adagrad_learning_rate_decay": 0,
    "opt_weight_decay": 0, "opt_adagrad_initial_accumulator_value": 0, "opt_adagrad_epsilon": 1e-8,
    "opt_learning_rate_warmup_steps": 0, "opt_learning_rate_decay_start_step": 0, "opt_learning_rate_decay_steps": 0,
}  # fmt: skip


class RankTrainer(StandInTrainer):
    """A trainer of the given rank, with a datamodule of batches of 8."""

    rank = 0
    datamodule = SimpleNamespace(accumulate=1, batch_size=8, splits={"train": range(16), "val": 8}, val_split="val")
    optimizers = (torch.optim.SGD([torch.zeros(1)], lr=0.1),)  # type: ignore[assignment]
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
    keys = [event["key"] for event in log]
    assert keys[keys.index("run_start") :] == ["run_start", *epoch, *epoch, *epoch[1:4], "run_stop"]
    values = {event["key"]: event["value"] for event in log}
    assert (values["submission_benchmark"], values["seed"], values["global_batch_size"]) == ("moflow", 7, 16)
    assert (values["gradient_accumulation_steps"], values["opt_name"], values["opt_base_learning_rate"]) == (
        2, "adam", 1e-3,
    )  # fmt: skip
    trained = [(event["metadata"]["epoch_num"], event["metadata"]["samples_count"]) for event in of(log, "eval_start")]
    samples = record.samples or 0
    assert trained[-1] == trained[1] == (2.0, samples) and trained[0] == (1.0, samples // 2) and samples > 0
    assert 0 < values["train_samples"] < len(SMILES)
    assert record.final_metric is not None and values["eval_accuracy"] == record.final_metric.value
    assert [event["metadata"]["epoch_num"] for event in of(log, "epoch_start")] == [1, 2]
    assert {event["event_type"] for event in of(log, "epoch_start") + of(log, "run_start")} == {"INTERVAL_START"}
    assert of(log, "run_stop")[0]["metadata"] == {"status": "success"}
    times = [event["time_ms"] for event in log]
    assert times == sorted(times) and all(event["namespace"] == "" for event in log)


@pytest.fixture(scope="module")
def dcnv2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of a short run of DLRM-DCNv2 with MLPerf's own optimiser, in the open division."""
    home = tmp_path_factory.mktemp("dcnv2")
    train(tiny_dlrm(home, "callbacks=mllog", "hp.lr=0.005", "fit.eval_every_n_steps=4", model="dlrm_dcnv2"))
    return home / "run"


@pytest.mark.slow
def test_dlrm_dcnv2_has_the_keys_of_mlperf_in_their_order(dcnv2: Path) -> None:
    log = events(dcnv2)
    keys = [event["key"] for event in log]
    assert {key: keys.count(key) for key in EXACTLY_ONE} == dict.fromkeys(EXACTLY_ONE, 1)
    assert set(AT_LEAST_ONE) <= set(keys)
    order = [keys.index(key) for key in ("init_start", "cache_clear", "init_stop", "run_start", "epoch_start")]
    assert order == sorted(order) and keys[0] == "init_start" and keys[-1] == "run_stop"
    assert all(keys.index(key) < keys.index("init_stop") for key in EXACTLY_ONE if key.startswith(("opt_", "subm")))
    values = {event["key"]: event["value"] for event in log}
    assert {key: values[key] for key in OF_DCNV2} == OF_DCNV2
    assert (values["train_samples"], values["eval_samples"], values["opt_base_learning_rate"]) == (512, 128, 0.005)
    assert [event["metadata"]["epoch_num"] for event in of(log, "eval_accuracy")] == [0.5, 1.0, 1.0]


@pytest.mark.slow
@pytest.mark.parametrize("division", ["open", "closed"])
def test_mlcommons_checker_passes_the_log_but_for_what_a_short_run_cannot_have(
    division: str, dcnv2: Path, tmp_path: Path
) -> None:
    """The closed division wants all evaluation samples and the target, nothing else that is not there."""
    pytest.importorskip("mlperf_logging", reason="needs MLCommons' logging: github.com/mlcommons/logging")
    file = tmp_path / "mllog.txt"
    file.write_text((dcnv2 / "mllog.txt").read_text().replace('"value": "open"', f'"value": "{division}"'))
    options = "--usage", "training", "--ruleset", "5.0.0", "--log_output", str(tmp_path / "checked.log")
    command = [sys.executable, "-m", "mlperf_logging.compliance_checker", *options, str(file)]
    checked = subprocess.run(command, capture_output=True, text=True)
    complaints = [line for line in checked.stderr.splitlines() if line.startswith(("WARNING", "Failed", "Required"))]
    if division == "open":
        assert (checked.returncode, complaints) == (0, []), checked.stderr
        assert "training_5.0.0/open_dlrm_dcnv2.yaml" in checked.stderr
    else:
        assert [line.partition("for ")[2].split()[0].strip("'") for line in complaints] == [
            "eval_samples", "eval_accuracy",
        ]  # fmt: skip


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
    log = MLLog(str(tmp_path / "mllog.txt"), "moflow", 1, platform="none")
    log.on_train_start(trainer, task)
    log.figures(task)
    assert not (tmp_path / "mllog.txt").exists()
    trainer.rank = 0
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write .*mllog\.txt"):
        MLLog(str(tmp_path / "file" / "mllog.txt"), "moflow", 1).on_train_start(trainer, task)
