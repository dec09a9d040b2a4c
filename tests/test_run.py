"""Runs end to end, from config to record: what they write, how they end, and how they go on."""

import csv
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from src.callbacks.throughput import Throughput
from src.config.complete import complete
from src.errors import UserError
from src.measure.clock import Clock
from src.measure.phases import PHASES
from src.models.moflow.task import MoFlowTask
from src.run import build, train
from src.system import group
from tests.support import warm
from tests.support.tiny_run import tiny_config, tiny_overrides

pytestmark = pytest.mark.slow

KEYS = {
    "kind", "case", "status", "e2e_time_s", "p_whole", "p_train", "p_core", "steady", "unit", "final_metric", "mem",
    "phases_s", "utilisation", "energy", "samples", "ranks", "config", "environment", "history",
}  # fmt: skip
Record = dict[str, Any]


def read(folder: Path) -> Record:
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


def run_train(home: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    """`python train.py` with the overrides of a tiny run, then these."""
    return warm.run("train.py", *tiny_overrides(home), *overrides)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all runs here, so that the molecules are prepared once."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def folder(home: Path) -> Path:
    """Of a run of two epochs."""
    folder = home / "done"
    train(tiny_config(home, f"output_dir={folder}", "fit.max_epochs=2", "logger=[csv,tensorboard]", "pictures=true"))
    return folder


@pytest.fixture(scope="module")
def record(folder: Path) -> Record:
    return read(folder)


def test_the_record_says_what_was_run_and_how_it_ended(record: Record) -> None:
    assert set(record) >= KEYS
    assert (record["kind"], record["status"], record["error"]) == ("train", "done", None)
    assert record["case"] == {
        "model": "moflow", "datamodule": "smiles_file", "trainer": "1x1", "precision": "fp32",
        "fix_hp": "bs=8,lr=0.001", "hardware": "cpu", "batch_size": 8, "batch_per": "device",
    }  # fmt: skip
    assert record["config"]["fit"]["max_epochs"] == 2 and "${" not in json.dumps(record["config"])
    assert record["environment"]["libraries"]["torch"] == torch.__version__
    assert record["environment"]["cpu_cores"] >= 1
    assert record["environment"]["cpu_threads"] == torch.get_num_threads()


def test_the_record_of_a_batch_that_was_reduced_has_the_reduced_one(home: Path, record: Record) -> None:
    few = ("fit.max_steps=1", "fit.final_evaluation=false", "hp.batch_size=1000")
    train(tiny_config(home, f"output_dir={home / 'reduced'}", *few))
    reduced = read(home / "reduced")
    assert reduced["samples"] == reduced["case"]["batch_size"] < 100
    assert reduced["case"]["fix_hp"] == f"bs={reduced['samples']},lr=0.001"


def test_the_figures_of_the_record_fit_together(record: Record) -> None:
    assert (record["unit"], record["samples"], record["ranks"]) == ("molecules", 2 * 8 * 8, 1)
    assert 0 < record["p_whole"] < record["p_train"] < record["p_core"]
    steady, times = record["steady"], record["steady"]["step_time_s"]
    assert 0 < steady["p_train"] < steady["p_core"]
    assert 0 < times["p50"] <= times["p90"] <= times["p95"] <= times["p99"] < record["e2e_time_s"]
    used = record["utilisation"]
    assert used["peak_source"] == "measured" and 0 < used["of_peak_flops"] < 1 and 0 < used["of_peak_bandwidth"] < 1
    assert used["of_peak_flops"] == pytest.approx(used["flops_per_s"] / used["peak_flops_per_s"])
    assert 0.1 < record["mem"]["peak_reserved_gib"] < record["mem"]["total_gib"]
    assert record["energy"] is None  # a CPU has no counter
    metric = record["final_metric"]
    assert metric["name"] == "nuv" and 0 <= metric["value"] <= 100
    assert metric["target"] == 87.9 and metric["reached"] == (metric["value"] >= 87.9)


def test_the_phases_of_the_record_add_up(record: Record) -> None:
    phases = dict(record["phases_s"])
    wall = phases.pop("wall")
    assert set(phases) == set(PHASES)
    assert abs(sum(phases.values()) - wall) <= 0.01 * wall
    # config and environment are noted after the phases are summed up: on a loaded machine half a second was seen
    assert 0 <= record["e2e_time_s"] - wall < 0.1 * wall + 1
    assert all(phases[name] > 0 for name in ("startup", "fetch", "compute", "evaluation", "checkpoint", "other"))
    assert phases["compute"] * record["p_core"] == pytest.approx(record["samples"])


def test_the_history_has_losses_and_evaluations(record: Record) -> None:
    windows = [row for row in record["history"] if "loss" in row]
    evaluations = [row for row in record["history"] if "val_bits_atom" in row]
    assert [row["step"] for row in windows] == list(range(2, 17, 2))
    assert [(row["step"], row["epoch"]) for row in evaluations] == [(8, 0), (16, 1), (16, 2)]  # the last one is final
    assert all(row["loss"] == pytest.approx(row["bits_atom"] + row["bits_bond"]) for row in windows)
    assert windows[-1]["loss"] < windows[0]["loss"]
    assert all(row["molecules_per_s"] > 0 and row["grad_norm"] > 0 for row in windows)


def test_a_run_leaves_its_files_and_nothing_else(folder: Path) -> None:
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    events = {name for name in files if name.startswith("tensorboard/events.out.tfevents.")}
    hparams = {"hparams.yaml", "tensorboard/hparams.yaml"}
    pictures = {f"{name}.{ending}" for name in ("phases", "curves", "properties") for ending in ("png", "svg")}
    pictures.add("molecules.png")  # it and properties where something valid was generated
    always = {"result.json", "metrics.csv", "checkpoints/last.ckpt", "checkpoints/best.ckpt"}
    assert events and files - events - hparams - pictures == always
    assert {"phases.png", "curves.png", "phases.svg", "curves.svg"} <= files


def test_the_csv_logger_has_the_curves(folder: Path, record: Record) -> None:
    with (folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    losses = {int(row["step"]): float(row["loss"]) for row in rows if row["loss"]}
    assert losses == pytest.approx({row["step"]: row["loss"] for row in record["history"] if "loss" in row})
    assert {int(row["step"]) for row in rows if row["validity"]} == {8, 16}


def test_every_logger_has_the_hyper_parameters(folder: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for file in (folder / "hparams.yaml", folder / "tensorboard" / "hparams.yaml"):
        settings = yaml.safe_load(file.read_text(encoding="utf-8"))
        assert (settings["model"], settings["hp"]["batch_size"], settings["fit"]["max_epochs"]) == ("moflow", 8, 2)
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    assert "_hparams_/session_start_info" in events.PluginTagToContent("hparams")
    assert "hyper_parameters" not in torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)


def test_a_run_ends_on_a_plateau(home: Path) -> None:
    record = train(tiny_config(home, f"output_dir={home / 'plateau'}", "fit.max_epochs=9", "fit.stop_after_plateau=2",
                               "hp.lr=1e-12"))  # fmt: skip
    evaluations = [row for row in record.history if "val_bits_atom" in row]
    assert record.status == "done" and evaluations[-1]["epoch"] < 9


def test_tensorboard_has_the_curves(folder: Path, record: Record) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    losses = {event.step: event.value for event in events.Scalars("loss")}
    assert losses == pytest.approx({row["step"]: row["loss"] for row in record["history"] if "loss" in row})
    assert "val_bits_bond" in events.Tags()["scalars"] and "hp_metric" not in events.Tags()["scalars"]


def test_tensorboard_compares_runs_by_their_final_figures_and_shows_their_pictures(
    folder: Path, record: Record
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.metadata import parse_experiment_plugin_data, parse_session_start_info_plugin_data

    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    last = {name: events.Scalars(f"final/{name}")[0].value for name in ("nuv", "p_train", "p_steady", "e2e_time_s")}
    assert last == pytest.approx({
        "nuv": record["final_metric"]["value"], "p_train": record["p_train"],
        "p_steady": record["steady"]["p_train"], "e2e_time_s": record["e2e_time_s"],
    })  # fmt: skip
    of = events.PluginTagToContent("hparams")
    columns = {info.name.tag for info in parse_experiment_plugin_data(of["_hparams_/experiment"]).metric_infos}
    assert {f"final/{name}" for name in last} <= columns
    session = parse_session_start_info_plugin_data(of["_hparams_/session_start_info"]).hparams
    assert session["hp/lr"].number_value == 1e-3 and session["status"].string_value == "done"
    assert {"curves", "where the time went"} <= set(events.Tags()["images"])
    assert events.Images("curves")[0].width > 100


@pytest.mark.parametrize(
    ("raised", "status"),
    [(ValueError("the loss\nbroke"), "failed"), (torch.OutOfMemoryError("out of memory"), "oom")],
)
def test_a_failing_step_leaves_a_record(
    home: Path, raised: Exception, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter([False, False, True])
    loss = MoFlowTask.loss

    def failing(task: MoFlowTask, batch: Any) -> Any:
        if next(calls):
            raise raised
        return loss(task, batch)

    monkeypatch.setattr(MoFlowTask, "loss", failing)
    with pytest.raises(type(raised)):
        train(tiny_config(home, f"output_dir={home / status}"))
    record = read(home / status)
    assert record["status"] == status
    assert record["error"]["type"] == type(raised).__name__ and record["error"]["message"] == str(raised)
    assert record["error"]["where"].startswith("src/training/step.py:")
    assert record["samples"] == 16 and record["p_core"] > 0
    assert sum(record["phases_s"][name] for name in PHASES) == pytest.approx(record["phases_s"]["wall"])


def test_a_device_that_gives_no_figures_any_more_leaves_a_record(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    for owner, name in ((MoFlowTask, "loss"), (Throughput, "figures"), (MoFlowTask, "teardown")):
        monkeypatch.setattr(owner, name, broken)
    with pytest.raises(RuntimeError, match="illegal"):
        train(tiny_config(home, f"output_dir={home / 'broken'}"))
    record = read(home / "broken")
    assert record["status"] == "failed" and "illegal" in record["error"]["message"] and record["p_core"] is None


def test_a_run_that_could_not_begin_leaves_a_record(home: Path) -> None:
    with pytest.raises(UserError, match="norm_batch=3 does not divide a device's batch of 8"):
        train(tiny_config(home, f"output_dir={home / 'unbegun'}", "model.task.network.norm_batch=3"))
    record = read(home / "unbegun")
    assert record["status"] == "failed" and record["error"]["type"] == "UserError"
    assert record["p_whole"] is None and record["samples"] == 0


def test_a_note_is_printed_once_above_the_figures(home: Path) -> None:
    ended = run_train(
        home, f"output_dir={home / 'noted'}", "note=a try", "fit.max_steps=1", "fit.final_evaluation=false"
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("note: a try") == 1
    assert "note: a try\ntrain done" in ended.stdout


@pytest.mark.slow
def test_ctrl_c_leaves_a_record(home: Path) -> None:
    folder = home / "interrupted"
    ended = run_train(
        home, f"output_dir={folder}", "+callbacks.ctrl_c={_target_:tests.support.interrupting.CtrlC,step:4}"
    )
    assert ended.returncode == 130 and "Traceback" not in ended.stderr, ended.stderr
    record = read(folder)
    assert record["status"] == "interrupted" and record["error"]["type"] == "Interrupted"
    assert record["samples"] == 5 * 8 and record["p_whole"] > 0
    assert sum(record["phases_s"][name] for name in PHASES) == pytest.approx(record["phases_s"]["wall"])


def test_a_sweep_in_one_process_makes_a_record_of_every_combination(home: Path) -> None:
    short = "fit.max_steps=2", "fit.eval_every_n_epochs=null", "fit.final_evaluation=false"
    swept = "hp.batch_size=8,16", "hp.lr=1e-4,5e-4", f"hydra.sweep.dir={home / 'sweep'}", "hydra/launcher=basic"
    ended = run_train(home, *short, *swept, "-m")
    assert ended.returncode == 0, ended.stderr
    records = [read(home / "sweep" / str(job)) for job in range(4)]
    pairs = [(record["case"]["batch_size"], record["config"]["hp"]["lr"]) for record in records]
    assert pairs == [(8, 1e-4), (8, 5e-4), (16, 1e-4), (16, 5e-4)]
    assert [record["samples"] for record in records] == [16, 16, 32, 32]
    assert {record["status"] for record in records} == {"done"}
    assert "hp.lr=5e-4" in records[1]["environment"]["overrides"]
    # The first job pays for the process; the later ones are not charged for the earlier ones.
    assert max(record["e2e_time_s"] for record in records[1:]) < records[0]["e2e_time_s"]


class TestResume:
    """`resume=true` finds the newest checkpoint of the model."""

    @pytest.fixture
    def outputs(self, home: Path, tmp_path: Path, folder: Path) -> Path:
        """Three old runs: of this model at step 16 and, later, at step 8; and of another model, later still."""
        one = home / "one_epoch"
        if not one.exists():
            train(tiny_config(home, f"output_dir={one}"))
        for when, (name, source) in enumerate({"moflow/a": folder, "moflow/b": one, "dlrm/c": folder}.items()):
            checkpoint = tmp_path / name / "checkpoints" / "last.ckpt"
            checkpoint.parent.mkdir(parents=True)
            checkpoint.write_bytes((source / "checkpoints" / "last.ckpt").read_bytes())
            os.utime(checkpoint, (when, when))
        return tmp_path

    def test_the_newest_of_the_model_is_taken(
        self, home: Path, outputs: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        new = outputs / "moflow" / "new"
        train(tiny_config(home, f"output_root={outputs}", f"output_dir={new}", "resume=true", "fit.max_epochs=2"))
        assert f"going on from {outputs / 'moflow' / 'b' / 'checkpoints' / 'last.ckpt'}" in capsys.readouterr().out
        assert read(new)["samples"] == 2 * 8 * 8  # of both legs
        assert [row["step"] for row in read(new)["history"] if "loss" in row] == [*range(2, 17, 2)]

    def test_a_command_given_again_goes_on_in_its_folder(
        self, home: Path, outputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        elsewhere = tmp_path / "elsewhere"
        again = tiny_config(
            home, f"output_root={outputs}", f"output_dir={elsewhere}", "resume=true", "fit.max_epochs=2"
        )
        (elsewhere / "checkpoints").mkdir(parents=True)
        (elsewhere / "checkpoints" / "last.ckpt").write_bytes((outputs / "moflow/b/checkpoints/last.ckpt").read_bytes())
        train(again)
        assert f"going on from {elsewhere / 'checkpoints' / 'last.ckpt'}" in capsys.readouterr().out
        assert read(elsewhere)["samples"] == 2 * 8 * 8

    def test_a_run_without_predecessor_starts_fresh(
        self, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        new = tmp_path / "moflow" / "new"
        train(tiny_config(home, f"output_root={tmp_path}", f"output_dir={new}", "resume=true", "fit.max_steps=1"))
        assert "starting fresh" in capsys.readouterr().out
        assert read(new)["samples"] == 8


def test_rank_1_draws_other_numbers_than_rank_0_of_the_next_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of seeds 1 and 2 would be half the same otherwise."""

    def drawn(seed: int, rank: int) -> torch.Tensor:
        home = tmp_path / f"{seed}_{rank}"
        home.mkdir(exist_ok=True)
        monkeypatch.setattr(group, "rank", lambda: rank)
        network = build(complete(tiny_config(home, f"seed={seed}")), Clock()).task.network
        return torch.cat([value.flatten() for value in network.parameters()])

    assert torch.equal(drawn(2, 0), drawn(2, 0))
    assert not torch.equal(drawn(1, 1), drawn(2, 0))
