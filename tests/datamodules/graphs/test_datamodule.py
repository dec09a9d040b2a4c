"""The datamodule of graphs: attributes after setup, loaders, configs and errors."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra.utils import instantiate

from src.batches.molecular_graphs import GraphBatch
from src.datamodules.graphs import files as graph_files
from src.datamodules.graphs import qm9
from src.datamodules.graphs.datamodule import GraphDataModule
from src.datamodules.graphs.edges import Edges
from src.errors import UserError
from tests.support.batches import batches_of
from tests.support.composing import composed
from tests.support.qm9_rows import IDS, write_package

CSV = "smiles,gap\n" + "".join(f"{'C' * count}O,{count}\n" for count in range(1, 11))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of ten alcohols, and its prepared arrays."""
    home = tmp_path_factory.mktemp("graphs")
    (home / "my.csv").write_text(CSV)
    return home


def module(
    home: Path,
    file: str = "my.csv",
    skip_bad: bool = False,
    source_options: dict[str, Any] | None = None,
    **options: Any,
) -> GraphDataModule:
    chosen = {"val_share": 0.2, "test_share": 0.1, "skip_bad": skip_bad} | (source_options or {})
    source = partial(graph_files.load, file=home / file, workers=1, **chosen)
    return GraphDataModule(**{
        "name": "mine", "source": source, "data_dir": str(home / "data"), "batch_size": 3, "seed": 5, "task": "gap",
    } | options)  # fmt: skip


def ready(home: Path, **options: Any) -> GraphDataModule:
    datamodule = module(home, **options)
    datamodule.prepare_data()
    datamodule.setup("fit")
    return datamodule


def test_setup_computes_mean_and_std_of_the_training_targets(home: Path) -> None:
    datamodule = ready(home)
    assert datamodule.data is not None
    assert {name: len(rows) for name, rows in datamodule.splits.items()} == {"train": 7, "val": 2, "test": 1, "all": 10}
    values = torch.from_numpy(datamodule.data.targets[datamodule.splits["train"], 0])
    assert datamodule.mean == pytest.approx(values.mean().item()) and datamodule.std == pytest.approx(
        values.std().item()
    )
    assert datamodule.unit == ""


def test_each_loader_covers_its_split(home: Path) -> None:
    datamodule = ready(home, predict="all")
    assert datamodule.data is not None
    for name, loader in (
        ("train", batches_of(datamodule.train_dataloader())), ("val", datamodule.val_dataloader()),
        ("test", datamodule.test_dataloader()), ("all", datamodule.predict_dataloader()),
    ):  # fmt: skip
        batches: list[GraphBatch] = list(loader)
        targets = [float(target) for batch in batches for target in batch.targets[: batch.count]]
        expected = datamodule.data.targets[datamodule.splits[name], 0].tolist()
        assert sorted(targets) == sorted(expected)
        assert (targets == expected) == (name != "train")
        assert {(len(batch.targets), len(batch.positions)) for batch in batches} == {(3, 128)}
    assert datamodule.loader("all", batch_size=10).batch_size == 10
    with pytest.raises(UserError, match=r"datamodule\.predict=valid: .* choose from train, val, test, all"):
        datamodule.loader("valid")


def test_the_position_is_part_of_a_checkpoint(home: Path) -> None:
    uninterrupted, interrupted, resumed = ready(home), ready(home), ready(home)
    batches = [batch.targets.tolist() for batch in batches_of(uninterrupted.train_dataloader())]
    iterator = batches_of(interrupted.train_dataloader())
    next(iterator)
    resumed.load_state_dict(interrupted.state_dict())
    assert [batch.targets[0].item() for batch in batches_of(resumed.train_dataloader())] == [
        batch[0] for batch in batches[1:]
    ]


def test_edges_are_as_configured(home: Path) -> None:
    bonds, full = ready(home), ready(home, edges=Edges("full"))
    few, many = next(iter(bonds.val_dataloader())), next(iter(full.val_dataloader()))
    assert int(many.dst_ptr[-1]) > int(few.dst_ptr[-1]) and torch.equal(few.positions, many.positions)
    assert many.edge_features.sum() == few.edge_features.sum() == int(few.dst_ptr[-1])


def test_molecules_without_targets_are_predicted_but_refused_for_training(home: Path) -> None:
    (home / "bare.smi").write_text("C\nN\nO\nCC\nCN\n")
    datamodule = ready(home, file="bare.smi", task="homo", predict="all")
    (batch, rest) = list(datamodule.predict_dataloader())
    assert batch.count == 3 and rest.count == 2 and batch.targets.isnan().all() and np.isnan(datamodule.mean)
    with pytest.raises(UserError, match=r"5 of 5 molecules have no value of datamodule\.task=homo: bare\.smi line 1 "):
        datamodule.train_dataloader()
    with pytest.raises(UserError, match=r"datamodule\.task is not set; give the target to train on: gap"):
        ready(home, task=None).train_dataloader()
    with pytest.raises(UserError, match=r"datamodule\.task=homo: there is no such target; choose from gap"):
        module(home, task="homo").prepare_data()


def test_constant_targets_and_single_molecules_are_refused(home: Path) -> None:
    (home / "same.csv").write_text("smiles,gap\nC,1\nN,1\nO,1\n")
    with pytest.raises(UserError, match="is the same for every molecule"):
        ready(home, file="same.csv").train_dataloader()
    (home / "one.csv").write_text("smiles,gap\nC,1\n")
    with pytest.raises(UserError, match="has 1 molecules to train on"):
        ready(home, file="one.csv").train_dataloader()


def test_a_molecule_without_bonds_needs_other_edges(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frames = ["2\ngap=1\nH 0 0 0\nH 0 0 3", "2\ngap=2\nH 0 0 0\nH 0 0 0.75", "1\ngap=3\nH 0 0 0"]
    (home / "pairs.xyz").write_text("\n".join(frames) + "\n")
    with pytest.raises(
        UserError, match=r"pairs\.xyz frame 1 has no bonds: give datamodule\.edges\.kind=radius or full"
    ):
        ready(home, file="pairs.xyz")
    near = ready(home, file="pairs.xyz", edges=Edges("radius", 4.0), batch_size=4)
    (batch,) = near.loader("all")
    assert batch.count == 3 and batch.edge_features.tolist()[:4] == [[0.0] * 4] * 2 + [[1.0, 0.0, 0.0, 0.0]] * 2
    skipping = ready(home, file="pairs.xyz", skip_bad=True, batch_size=4)
    assert "dropped 1: has no bonds: give datamodule.edges.kind=radius or full, as pairs.xyz frame 1" in (
        capsys.readouterr().out
    )
    (batch,) = skipping.loader("all")
    assert batch.targets[:2].tolist() == [2.0, 3.0] and batch.count == 2


@pytest.mark.parametrize("name", ["qm9", "qm9_dgl", "molecule_file"])
def test_the_configs_are_complete(name: str, home: Path) -> None:
    file = f"datamodule.source.file={home / 'my.csv'}"
    overrides = [f"datamodule={name}", "datamodule.edges.kind=full", f"data_root={home}", file]
    config = composed("prepare", *overrides[: 4 - (name == "qm9")])
    datamodule = instantiate(config.datamodule)
    assert isinstance(datamodule, GraphDataModule) and datamodule.name == name and datamodule.edges == Edges("full")
    if name == "molecule_file":
        datamodule.prepare_data()
        datamodule.setup("predict")
        assert [batch.count for batch in datamodule.predict_dataloader()] == [1] * 10


def test_qm9_has_the_unit_of_its_target(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qm9, "MEMBERS", write_package(home / "mirror"))
    source = partial(qm9.load, mirror=home / "mirror", workers=1)
    datamodule = ready(home, source=source, data_dir=str(home / "qm9"), task="homo")
    assert datamodule.unit == "eV" and -11 < datamodule.mean < -6
    assert len(datamodule.splits["train"]) == round(len(IDS) * 100_000 / 130_831)
    with pytest.raises(UserError, match=r"datamodule\.unit=kJ/mol: homo of mine is in eV"):
        ready(home, source=source, data_dir=str(home / "qm9"), task="homo", unit="kJ/mol")


def test_the_unit_is_the_given_one_where_the_data_know_none(home: Path) -> None:
    assert ready(home, unit="eV").unit == "eV"


def test_what_was_read_is_told_on_every_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "gaps.csv").write_text(CSV + "CCC,\nC1CC,3\n")
    for _ in range(2):
        ready(home, file="gaps.csv", skip_bad=True, predict="all", task=None)
        assert capsys.readouterr().out.splitlines() == [
            "gaps.csv: 12 molecules read, 0 kept as written, 11 kept changed, 1 dropped",
            "  changed 11: hydrogens and coordinates generated, as gaps.csv line 2 (CO)",
            "  dropped 1: does not parse, as gaps.csv line 13 (C1CC)",
            "  split: 8 train, 2 val, 1 test (grouped: every molecule is there once, seed 0)",
            "  note: targets: gap",
            "  note: not every molecule has a value of gap (11)",
            "  note: the dropped molecules are listed in bad.txt of the prepared folder",
        ]


def test_published_features_are_for_the_elements_of_qm9_alone(home: Path) -> None:
    (home / "silane.csv").write_text(CSV + "C[SiH3],3\n")
    for file, elements, width in (("my.csv", "H C N O F", 6), ("silane.csv", "H C O Si", 4)):
        datamodule = ready(home, file=file)
        assert datamodule.elements == elements.split()
        batch = next(batches_of(datamodule.train_dataloader()))
        assert batch.node_features.shape[1] == width
    wide = ready(home, file="silane.csv", elements=["Si", "H", "O", "C", "Br"])
    assert wide.elements == ["H", "C", "O", "Si", "Br"]
    with pytest.raises(UserError, match=r"silane\.csv line 12 .* has the element Si; known are H, C, O"):
        ready(home, file="silane.csv", elements=["H", "C", "O"])
