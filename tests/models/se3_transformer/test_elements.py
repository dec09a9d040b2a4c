"""The SE(3)-Transformer on molecules of other elements than QM9's, with a unit, and without some true values."""

from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from src.config.complete import complete
from src.datamodules.graphs.data import ELEMENTS
from src.datamodules.graphs.loader import features_of
from src.errors import UserError
from src.gpu.replace import name_of
from src.measure.clock import Clock
from src.models.se3_transformer import SE3TransformerPooled, fast
from src.report.record import Record
from src.run import build, train
from tests.support.composing import prediction_of
from tests.support.se3_small import moved, random_graph
from tests.support.tiny_se3 import tiny_prediction, tiny_se3, write_molecules

pytestmark = pytest.mark.slow

OTHERS = ("[Si](C)(C)C", "Br", "SC", "Cl", "P", "I", "B(O)O", "[Se]C")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with a checkpoint trained on silanes, halides and others, an energy in kJ/mol."""
    home = tmp_path_factory.mktemp("elements")
    file = write_molecules(home / "chains.csv")
    rows = [f"{'C' * length}{tail},{0.3 * length + i:.2f}" for length in (1, 2, 3) for i, tail in enumerate(OTHERS)]
    file.write_text(file.read_text() + "\n".join([*rows, ""]))
    train(tiny_se3(home, "fit.max_epochs=2", "datamodule.unit=kJ/mol"))
    return home


def predicted(home: Path, folder: Path, file: Path, *overrides: str) -> Record:
    checkpoint = f"ckpt_path={home / 'run' / 'checkpoints' / 'last.ckpt'}"
    paths = [f"output_dir={folder}", f"datamodule.source.file={file}", f"data_root={folder / 'data'}"]
    return prediction_of([*tiny_prediction(home), checkpoint, *paths, *overrides])


def test_published_features_are_those_of_qm9_and_others_are_one_hot() -> None:
    table = features_of(tuple(ELEMENTS.values()))
    assert table.tolist() == [
        [1, 0, 0, 0, 0, 1], [0, 1, 0, 0, 0, 6], [0, 0, 1, 0, 0, 7], [0, 0, 0, 1, 0, 8], [0, 0, 0, 0, 1, 9],
        [0, 0, 0, 0, 0, 0],
    ]  # fmt: skip
    assert features_of((1, 6, 14)).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]]


def test_the_checkpoint_keeps_elements_and_unit(home: Path) -> None:
    task = torch.load(home / "run" / "checkpoints" / "last.ckpt", weights_only=True)["model_config"]["task"]
    assert task["elements"] == ["H", "B", "C", "N", "O", "F", "Si", "P", "S", "Cl", "Se", "Br", "I"]
    assert (task["network"]["node_features"], task["unit_of_quantity"]) == (13, "kJ/mol")


def test_the_network_of_other_elements_has_the_same_fast_modules(home: Path) -> None:
    """`bind_data` makes another one for these elements, with more node features."""
    for kernels, names in (("auto", {*fast.REPLACEMENTS}), ("[norm]", {"norm"}), ("off", set[str]())):
        job = build(complete(tiny_se3(home, f"execution.kernels={kernels}")), Clock())
        before = job.task.network
        job.task.bind_data(job.datamodule)
        used = {name_of(module) for module in job.task.network.modules()}
        assert job.task.network is not before
        assert {name for name, classes in fast.REPLACEMENTS.items() if used & {*classes.values()}} == names


def test_a_prediction_has_the_unit_of_the_training(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file = tmp_path / "new.csv"
    file.write_text("smiles,energy\nCCBr,1.5\nC[Si](C)(C)C,\nCCO,0.5\n")
    record = predicted(home, tmp_path, file)
    lines = (tmp_path / "predictions.csv").read_text().splitlines()
    assert [line.split(",")[4] for line in lines[1:]] == ["kJ/mol"] * 3
    assert record.final_metric is not None and record.final_metric.name == "energy_mae_kj_mol"
    assert record.quality is not None and record.quality[0].unit == "kJ/mol" and "2 molecules" in record.quality[0].of
    assert "1 of 3 molecules have no value of energy, and the errors are of the others" in capsys.readouterr().out
    assert record.reading is not None and (record.reading.source, record.reading.read) == ("new.csv", 3)
    file.write_text("smiles\nCCBr\n")
    assert predicted(home, tmp_path / "none", file).quality == []
    assert "1 of 1 molecules have no value of energy, so no error is given" in capsys.readouterr().out


def test_an_element_that_the_checkpoint_does_not_know(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "new.csv"
    file.write_text("smiles\nCCO\nC[Ge](C)(C)C\n")
    with pytest.raises(
        UserError, match=r"new\.csv line 3 \(C\[Ge\].* has the element Ge; known are H, B, C, .*, I: leave"
    ):
        predicted(home, tmp_path, file)


def test_an_unknown_symbol_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"element 'Xx' is unknown"):
        train(tiny_se3(tmp_path, "datamodule.elements=[H,Xx]"))


@pytest.mark.parametrize("sharing", ["full", "pairwise"])
def test_predictions_with_other_elements_do_not_turn_with_the_molecule(sharing: str) -> None:
    torch.manual_seed(0)
    make = {"num_layers": 2, "num_degrees": 3, "num_channels": 8, "num_heads": 2, "sharing": sharing}
    network = SE3TransformerPooled(**make).with_node_features(13).double()  # type: ignore[arg-type]
    graph = random_graph()
    elements = features_of(tuple(range(1, 14)))[torch.randint(13, (len(graph.positions),))].double()
    bonds = torch.eye(4, dtype=torch.float64)[torch.randint(4, (len(graph.src),))]
    output = network(graph, elements, bonds)
    assert_close(network(moved(graph), elements, bonds), output, rtol=0, atol=1e-10)
    assert_close(fast.accelerate(network)(graph, elements, bonds), output, rtol=0, atol=1e-10)
