"""MoFlow on molecules of other elements than ZINC-250k's: classes from the data, kept in the checkpoint."""

from pathlib import Path

import pytest
import torch

from src.errors import UserError
from src.molecules.vocabulary import number_of
from src.run import train
from tests.support.composing import prediction_of
from tests.support.tiny_run import tiny_config, write_smiles

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run on silanes, boronic acids and selenides."""
    home = tmp_path_factory.mktemp("trained")
    file = write_smiles(home / "my.smiles")
    others = ["C[Si](C)(C)C", "CO[Si](C)(C)C", "OB(O)c1ccccc1", "C[Se]C", "CC[Se]CC"]
    file.write_text(file.read_text() + "".join(f"{text}\n" for text in others))
    train(tiny_config(home, "fit.eval_every_n_epochs=null", "fit.final_evaluation=false"))
    return home


def predicted(home: Path, folder: Path, *overrides: str) -> object:
    checkpoint = home / "outputs" / "moflow" / "run" / "checkpoints" / "last.ckpt"
    mine = [f"ckpt_path={checkpoint}", "hardware=cpu", f"output_dir={folder}", "num_samples=20", "batch_size=20"]
    return prediction_of([*mine, *overrides])


def test_the_checkpoint_knows_the_elements_of_its_data(home: Path) -> None:
    file = home / "outputs" / "moflow" / "run" / "checkpoints" / "last.ckpt"
    checkpoint = torch.load(file, weights_only=True)
    task = checkpoint["model_config"]["task"]
    assert task["elements"] == sorted(task["elements"], key=number_of)
    assert {"B", "Si", "Se"} < set(task["elements"])
    assert task["network"]["num_atom_classes"] == len(task["elements"]) + 1


def test_molecules_are_generated_and_interpolated_with_the_checkpoints_elements(home: Path, tmp_path: Path) -> None:
    way = 'model.predict.interpolate=["C[Si](C)(C)C","C[Se]C"]'
    predicted(home, tmp_path, "model.predict.correct_validity=true", way)
    lines = (tmp_path / "molecules_interpolation.csv").read_text().splitlines()
    assert lines[1].endswith(",C[Si](C)(C)C") and lines[-1].endswith(",C[Se]C")


def test_a_molecule_with_an_element_that_the_checkpoint_does_not_know(home: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'C\[Ge\]\(C\)C' has an atom outside the vocabulary of the checkpoint: Ge"):
        predicted(home, tmp_path, 'model.predict.interpolate=["C[Ge](C)C","CC"]')


def test_an_evaluation_on_data_of_other_elements_names_both(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "other.smiles"
    file.write_text("".join(f"{'C' * n}O\n{'C' * n}N\n" for n in range(1, 11)))
    overrides = [f"datamodule.source.file={file}", f"data_root={tmp_path / 'data'}", "evaluate=true"]
    with pytest.raises(UserError, match=r"elements C, N, O, the network was trained with .*Se"):
        predicted(home, tmp_path, "datamodule=smiles_file", *overrides)
    predicted(home, tmp_path, f"data_root={home / 'data'}", "evaluate=true")


def test_sizes_that_do_not_fit_are_told_before_training(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"up to 20 atoms, the network is for 38; give datamodule.source.max_atoms"):
        train(tiny_config(tmp_path, "datamodule.source.max_atoms=20"))
