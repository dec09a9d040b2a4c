"""predict.py: what it reads from a checkpoint, what it writes, and what it measures."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from rdkit import Chem
from rdkit.Chem.QED import qed

from src.errors import UserError
from src.models.moflow.network import MoFlow
from src.predict import predict
from src.report.record import Record, read_record
from src.run import train
from tests.support.composing import composed
from tests.support.tiny_run import NETWORK, tiny_config
from tests.support.wandb_files import logged_by

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last checkpoint of a tiny run."""
    home = tmp_path_factory.mktemp("trained")
    train(tiny_config(home, "fit.final_evaluation=false", "fit.eval_every_n_epochs=null"))
    return home / "outputs" / "moflow" / "run" / "checkpoints" / "last.ckpt"


def predicted(folder: Path, *overrides: str) -> Record:
    """Returns the record of 10 corrected molecules in batches of 4, with no word about the network."""
    mine = ["hardware=cpu", f"output_dir={folder}", "num_samples=10", "batch_size=4"]
    arguments = [*mine, "model.predict.correct_validity=true", *overrides]
    return predict(composed("predict", *arguments), arguments)


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def test_the_molecules_have_their_properties_beside_them(checkpoint: Path, tmp_path: Path) -> None:
    predicted(tmp_path, f"ckpt_path={checkpoint}")
    rows = rows_of(tmp_path / "molecules.csv")
    assert len(rows) == 10
    assert list(rows[0]) == ["smiles", "qed", "logp", "sas", "plogp"]
    for row in rows:
        molecule = Chem.MolFromSmiles(row["smiles"])
        assert float(row["qed"]) == pytest.approx(qed(molecule), abs=1e-4)
        assert 1 <= float(row["sas"]) <= 10
    assert (tmp_path / "molecules.png").stat().st_size > 1000


def test_a_list_of_smiles_alone(checkpoint: Path, tmp_path: Path) -> None:
    predicted(tmp_path, f"ckpt_path={checkpoint}", f"output={tmp_path / 'mine' / 'list.smi'}")
    predicted(tmp_path / "csv", f"ckpt_path={checkpoint}")
    lines = (tmp_path / "mine" / "list.smi").read_text().splitlines()
    assert lines == [row["smiles"] for row in rows_of(tmp_path / "csv" / "molecules.csv")]


def test_every_batch_is_whole_and_only_those_after_the_warm_up_count(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    sample = MoFlow.sample

    def counted(self: MoFlow, batch_size: int, *rest: Any) -> Any:
        sizes.append(batch_size)
        return sample(self, batch_size, *rest)

    monkeypatch.setattr(MoFlow, "sample", counted)
    record = predicted(tmp_path, f"ckpt_path={checkpoint}", "benchmark=true", "warmup_batches=2")
    assert sizes == [4] * (2 + 3 + 3)  # warm-up, timed, timed once more together with the building
    assert record.samples == 12
    assert len(rows_of(tmp_path / "molecules.csv")) == 10


@pytest.mark.parametrize(("batch", "made"), [(4, [4] * 3), (9, [5] * 2), (512, [10])])
def test_without_a_benchmark_nothing_is_made_that_is_not_needed(
    batch: int,
    made: list[int],
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sizes: list[int] = []
    sample = MoFlow.sample
    monkeypatch.setattr(MoFlow, "sample", lambda net, size, *rest: (sizes.append(size), sample(net, size, *rest))[1])
    record = predicted(tmp_path, f"ckpt_path={checkpoint}", f"batch_size={batch}")
    assert sizes == made
    assert record.samples == 10 and len(rows_of(tmp_path / "molecules.csv")) == 10
    assert (record.throughput, record.latency_s, record.utilisation) == (None, None, None)
    out = capsys.readouterr().out
    assert "10 molecules in " in out and "latency" not in out and "Result" not in out


def test_the_record(checkpoint: Path, tmp_path: Path) -> None:
    record = predicted(tmp_path, f"ckpt_path={checkpoint}", "benchmark=true", "warmup_batches=2")
    assert read_record(tmp_path).to_dict() == record.to_dict()
    assert (record.kind, record.status, record.unit) == ("predict", "done", "molecules")
    assert record.case.model == "moflow"
    assert (record.case.batch_size, record.case.batch_per) == (4, "device")
    latency, throughput = record.latency_s, record.throughput
    assert latency is not None and throughput is not None and latency.mean is not None
    assert throughput == pytest.approx(4 / latency.mean)
    order = [latency.p50, latency.p90, latency.p95, latency.p99]
    assert order == sorted(order, key=float)  # type: ignore[arg-type]
    assert record.final_metric is not None and record.final_metric.value == 100
    assert record.quality is not None
    validity, uniqueness, made = record.quality
    assert (made.name, made.unit) == ("from noise to SMILES", "/s") and (made.value or 0) > 0
    assert (validity.value, validity.of) == (
        100,
        "10 of 10 molecules are valid after correction; molecules.csv holds these",
    )
    distinct = {row["smiles"] for row in rows_of(tmp_path / "molecules.csv")}
    assert uniqueness.value == pytest.approx(10 * len(distinct))
    wall = record.phases_s.pop("wall")
    assert wall is not None
    assert sum(seconds or 0 for seconds in record.phases_s.values()) == pytest.approx(wall)


def test_the_likelihoods_of_the_splits_are_compared(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = predicted(tmp_path, f"ckpt_path={checkpoint}", "evaluate=true", f"output={tmp_path / 'own.csv'}")
    assert f"{tmp_path / 'own.csv'} was not written: moflow gives figures alone" in capsys.readouterr().out
    assert record.quality is not None and record.samples is not None
    by_split = {(figure.group, figure.name): figure for figure in record.quality}
    names = ["bits_atom", "bits_bond", "reconstruction"]
    assert list(by_split) == [(split, name) for split in ("train", "val") for name in names]
    assert by_split["train", "bits_atom"].of.endswith(", 10 molecules of the train split, all trained on")
    assert all(figure.value is not None and figure.value > 0 for figure in record.quality if figure.unit == "bits")
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.slow
def test_the_seed_decides(checkpoint: Path, tmp_path: Path) -> None:
    for folder, seed in (("a", 1), ("again", 1), ("b", 2)):
        predicted(tmp_path / folder, f"ckpt_path={checkpoint}", f"seed={seed}")
    a, again, b = ((tmp_path / folder / "molecules.csv").read_text() for folder in ("a", "again", "b"))
    assert a == again
    assert a != b


def test_a_checkpoint_decides_more_than_the_command(checkpoint: Path, tmp_path: Path) -> None:
    record = predicted(tmp_path, f"ckpt_path={checkpoint}", "model.task.network.gnn_channels=5")
    assert record.config["model"]["task"]["network"]["gnn_channels"] == 8


def test_random_weights_serve_for_timing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = predicted(tmp_path, *(f"model.task.network.{size}" for size in NETWORK), "benchmark=true")
    assert record.samples == 12
    assert "the weights are random" in capsys.readouterr().out


def test_another_ending_is_refused_before_any_work(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(MoFlow, "sample")
    with pytest.raises(UserError, match=r"output=.*molecules\.txt: the ending must be \.csv"):
        predicted(tmp_path, f"ckpt_path={checkpoint}", f"output={tmp_path / 'molecules.txt'}")
    record = read_record(tmp_path)
    assert record.status == "failed"
    assert record.error is not None and record.error.type == "UserError"


def test_the_way_from_one_molecule_to_another(checkpoint: Path, tmp_path: Path) -> None:
    ends = ["CC(=O)Nc1ccc(O)cc1", "NCCc1ccc(O)c(O)c1"]
    overrides = [f"model.predict.interpolate=['{ends[0]}','{ends[1]}']", "model.predict.interpolate_steps=5"]
    predicted(tmp_path, f"ckpt_path={checkpoint}", *overrides)
    rows = rows_of(tmp_path / "molecules_interpolation.csv")
    assert [float(row["share"]) for row in rows] == [0, 0.25, 0.5, 0.75, 1]
    canonical = [Chem.MolToSmiles(Chem.MolFromSmiles(text)) for text in ends]
    assert [rows[0]["smiles"], rows[-1]["smiles"]] == canonical
    assert (tmp_path / "molecules_interpolation.png").stat().st_size > 1000


def test_quality_over_temperatures(checkpoint: Path, tmp_path: Path) -> None:
    predicted(tmp_path, f"ckpt_path={checkpoint}", "model.predict.temperatures=[0.01,1.5,[1.5,0.01]]")
    cold, hot, mixed = (
        {k: float(v) for k, v in row.items()} for row in rows_of(tmp_path / "molecules_temperatures.csv")
    )
    assert (cold["temperature"], hot["temperature"]) == (0.01, 1.5)
    assert cold["validity"] == hot["validity"] == 100  # corrected
    assert cold["uniqueness"] == cold["valid_unique"] == 10  # one molecule ten times
    assert (mixed["temperature"], mixed["bond_temperature"]) == (1.5, 0.01)
    assert hot["uniqueness"] > 50 and hot["median_qed"] != cold["median_qed"]
    assert (tmp_path / "molecules_temperatures.png").stat().st_size > 1000


@pytest.mark.slow
def test_molecules_are_judged_by_those_of_the_training(checkpoint: Path, tmp_path: Path) -> None:
    """A molecule repeats within its batch of four only; of ten molecules here, none of which is in the training set."""
    overrides = f"ckpt_path={checkpoint}", "model.predict.judge=true", "model.predict.temperatures=[0.01,1.5]"
    record = predicted(tmp_path, *overrides)
    figures = {(figure.group, figure.name): figure.value for figure in record.quality or []}
    corrected = [row["smiles"] for row in rows_of(tmp_path / "molecules.csv")]  # as the training has it
    batches = corrected[:4], corrected[4:8], corrected[8:]
    nuv = sum(len(set(batch)) for batch in batches) / 10
    assert figures["corrected", "validity"] == 100
    assert figures["corrected", "nuv"] == figures["corrected", "canonical_nuv"] == pytest.approx(100 * nuv)
    assert (figures["drawn", "validity"] or 0) < 100
    assert figures["at 0.01", "pool_uniqueness"] == 10  # one molecule ten times
    assert figures["at 0.01", "nuv"] == pytest.approx(30)
    assert min(figures[group, "fcd"] or 0 for group in ("corrected", "training", "at 1.5")) > 0
    for name in ("properties", "temperatures"):
        assert (tmp_path / f"molecules_{name}.png").stat().st_size > 1000
    header = (tmp_path / "molecules_temperatures.csv").read_text().splitlines()[0]
    assert header.endswith("median_plogp,nuv,canonical_nuv,fcd,nspdk")


def test_judging_needs_the_molecules_of_the_training(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model\.predict\.judge needs the molecules of the training, and .* has none"):
        predicted(tmp_path, f"ckpt_path={checkpoint}", "model.predict.judge=true", f"data_root={tmp_path / 'none'}")


@pytest.mark.slow
def test_a_prediction_is_a_run_of_wandb_with_its_tables(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setattr("src.report.wandb_run.MOST_ROWS", 7)
    overrides = f"ckpt_path={checkpoint}", "logger=wandb"
    record = predicted(tmp_path / "whole", *overrides, "model.predict.temperatures=[0.01,1.5]")
    logged = logged_by(tmp_path / "whole")
    assert (logged["job_type"], logged["tags"], logged["exit_code"]) == ("predict", ["fp32", "1x1", "cpu"], 0)
    assert logged["config"]["case"]["model"] == logged["name"] == "moflow"
    assert logged["summary"]["quality.0.name"] == (record.quality or [])[0].name
    (run,) = (tmp_path / "whole" / "wandb").glob("offline-run-*")
    tables = [json.loads(path.read_text()) for path in sorted((run / "files/media/table").glob("*.json"))]
    of = {tuple(table["columns"][:2]): table["data"] for table in tables}
    written = rows_of(tmp_path / "whole" / "molecules.csv")
    assert [row[:2] for row in of["smiles", "qed"]] == [[row["smiles"], float(row["qed"])] for row in written[:7]]
    assert ["e2e_time", record.e2e_time_s, "s"] in of["figure", "value"] and len(tables) == 3
    with pytest.raises(UserError):
        predicted(tmp_path / "refused", *overrides, "model.predict.temperature=[0.3,0.2,0.1]")
    refused = logged_by(tmp_path / "refused")
    assert refused["exit_code"] == 1 and "give a number, or two" in refused["summary"]["error"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["model.predict.temperature=[0.3,0.2,0.1]"], r"temperature \[0.3, 0.2, 0.1\]: give a number, or two"),
        (
            ["model.predict.interpolate=['CCO','C1CC']"],
            "model.predict.interpolate: 'C1CC' does not parse; give another",
        ),
        (
            ["model.predict.interpolate=['C[SiH3]','CC']"],
            r"'C\[SiH3\]' has an atom outside the vocabulary of the checkpoint: Si",
        ),
        (["model.predict.interpolate=['CCO']"], "names 1 molecule.*; give two"),
    ],
)
def test_options_that_cannot_be_followed(overrides: list[str], words: str, checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        predicted(tmp_path, f"ckpt_path={checkpoint}", *overrides)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["result.json"]
