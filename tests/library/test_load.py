"""`load`: a checkpoint's network with its preprocessing gives what predict.py writes."""

import csv
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from PIL import Image
from rdkit import Chem
from rdkit.Chem import rdDistGeom

from src.batches.clicks import Clicks
from src.config.trained import name_model
from src.config.versions import BASE
from src.errors import UserError
from src.run import train
from src.system.home import VERSION
from src.trained import load
from tests.support import tiny_distilbert, tiny_dlrm, tiny_mobilenet, tiny_run, tiny_se3
from tests.support.composing import prediction_of

pytestmark = pytest.mark.slow


def trained(config: DictConfig) -> Path:
    """Returns the checkpoint of a run."""
    train(config)
    return Path(config.output_dir) / "checkpoints" / "last.ckpt"


def predicted(checkpoint: Path, folder: Path, *overrides: str) -> list[dict[str, str]]:
    """Returns the rows that predict.py writes."""
    prediction_of(name_model([f"ckpt_path={checkpoint}", "hardware=cpu", f"output_dir={folder}", *overrides]))
    with next(folder.glob("predictions.csv")).open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def test_sentences(tmp_path: Path) -> None:
    checkpoint = trained(tiny_distilbert.tiny_distilbert(tmp_path, "fit.max_epochs=4"))
    rows = predicted(checkpoint, tmp_path / "csv", f"datamodule.raw={tmp_path / 'raw'}", "batch_size=8")
    (tmp_path / "raw" / "vocab.txt").unlink()  # the checkpoint has it
    state = torch.random.get_rng_state()
    predictor = load(checkpoint, "batch_size=8", device="cpu")
    assert torch.equal(torch.random.get_rng_state(), state)
    answers = predictor([row["sentence"] for row in rows])
    assert answers.labels == [row["label"] for row in rows] and set(answers.labels) <= {"negative", "positive"}
    best = answers.probabilities.max(1)
    np.testing.assert_allclose(best, [float(row["probability"]) for row in rows], atol=2e-6)
    assert predictor("a good one").labels[0] in ("negative", "positive")
    with pytest.raises(UserError, match="the input line 2: the sentence is empty"):
        predictor(["good", " "])


def test_images_from_files_pil_and_pixels(tmp_path: Path) -> None:
    data = tiny_mobilenet.write_folders(tmp_path)
    checkpoint = trained(tiny_mobilenet.tiny_mobilenet(tmp_path, data=data))
    folder = tmp_path / "images" / "val"
    rows = predicted(checkpoint, tmp_path / "csv")
    (tmp_path / "images").rename(tmp_path / "elsewhere")  # the data of the training is not needed
    folder = tmp_path / "elsewhere" / "val"
    predictor = load(checkpoint, device="cpu")
    files = [folder / row["file"] for row in rows]
    answers = predictor(files)
    assert answers.labels == [row["label"] for row in rows] and predictor.label_names == list(tiny_mobilenet.CLASSES)
    best = answers.probabilities.max(1)
    np.testing.assert_allclose(best, [float(row["probability"]) for row in rows], atol=2e-6)
    with Image.open(files[0]) as image:
        opened, pixels = predictor(image), predictor(np.array(image))
    for same in (opened, pixels, predictor(torch.from_numpy(np.array(Image.open(files[0]))))):
        np.testing.assert_allclose(same.probabilities, answers.probabilities[:1], atol=1e-5)
    with pytest.raises(UserError, match=r"image 1 has the shape \(3, 8, 8\) of float32; give a path"):
        predictor([files[0], np.zeros((3, 8, 8), np.float32)])
    with pytest.raises(UserError, match=r"no.jpg"):
        predictor(tmp_path / "no.jpg")


def test_molecules_from_smiles_files_and_objects(tmp_path: Path) -> None:
    checkpoint = trained(tiny_se3.tiny_se3(tmp_path))
    rows = predicted(checkpoint, tmp_path / "csv", "datamodule.predict=all", "batch_size=10")
    smiles = [line.split(",")[0] for line in (tmp_path / "chains.csv").read_text().splitlines()[1:]]
    expected = [float(row["predicted"]) for row in rows]
    predictor = load(checkpoint, "batch_size=10", device="cpu")
    answer = predictor(smiles)
    assert (answer.name, answer.unit) == ("energy", rows[0]["unit"])
    np.testing.assert_allclose(answer.values, expected, atol=2e-5)
    np.testing.assert_allclose(predictor(tmp_path / "chains.csv").values, expected, atol=2e-5)
    molecule = Chem.AddHs(Chem.MolFromSmiles("CCO"))
    rdDistGeom.EmbedMolecule(molecule, randomSeed=1)
    (value,) = predictor([molecule]).values

    numbers = [atom.GetAtomicNum() for atom in molecule.GetAtoms()]
    atoms = SimpleNamespace(numbers=numbers, positions=molecule.GetConformer().GetPositions())  # as ASE's
    np.testing.assert_allclose(predictor(atoms).values, value, rtol=1e-4)
    assert len(predictor([]).values) == 0
    for item, why in (("CC(", "CC\\( does not parse"), ("CCBr", "CCBr has the element Br; known are H, C, N, O, F")):
        with pytest.raises(UserError, match=why):
            predictor([item])


def test_molecules_are_drawn_and_judged(tmp_path: Path) -> None:
    checkpoint = trained(tiny_run.tiny_config(tmp_path, "fit.final_evaluation=false", "fit.eval_every_n_epochs=null"))
    predictor = load(checkpoint, "batch_size=4", device="cpu")
    drawn = predictor.sample(10, generator=torch.Generator().manual_seed(1), correct_validity=True)
    again = predictor.sample(10, generator=torch.Generator().manual_seed(1), correct_validity=True)
    assert drawn == again and len(predictor(3)) == 3
    assert all(text is None or Chem.MolFromSmiles(text) for text in drawn)
    bits = predictor.likelihood(["CCO", "CC#N"])
    assert bits.shape == (2, 2) and np.isfinite(bits).all()
    with pytest.raises(UserError, match="'C1CC' does not parse"):
        predictor.likelihood("C1CC")


def write_clicks(file: Path) -> list[dict[str, object]]:
    """Writes a table of clicks; returns its rows."""
    source = random.Random(0)
    kinds = "red", "green", "blue"
    rows: list[dict[str, object]] = [
        {
            "clicked": row % 2,
            "price": round(source.random() * 9, 2),
            "colour": source.choice(kinds),
            "user": row % 7,
        }
        for row in range(200)
    ]
    file.write_text("\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows), ""]))
    return rows


def test_clicks_from_rows_and_tables(tmp_path: Path) -> None:
    rows = write_clicks(tmp_path / "my.csv")
    source = [f"file={tmp_path / 'my.csv'}", "label=clicked", "numerical=[price]", "categorical=[colour,user]"]
    data = "datamodule=click_file", *(f"datamodule.source.{text}" for text in source)
    checkpoint = trained(tiny_dlrm.tiny_dlrm(tmp_path, "model.task.tables=null", data=data))
    written = predicted(checkpoint, tmp_path / "csv", "datamodule.source.held_out_share=1", "batch_size=64")
    expected = [float(row["probability"]) for row in written]
    predictor = load(checkpoint, "batch_size=64", device="cpu")
    np.testing.assert_allclose(predictor(rows), expected, atol=2e-6)
    np.testing.assert_allclose(predictor(tmp_path / "my.csv"), expected, atol=2e-6)
    without_label = {"price": 1.5, "colour": "red", "user": 3}
    assert predictor(without_label).shape == (1,)
    clicks = Clicks(torch.zeros(2), torch.zeros(2, 1), torch.tensor([1, 2, 3, 4], dtype=torch.int32))
    assert predictor(clicks).shape == (2,)
    with pytest.raises(UserError, match="the rows line 1: price is 'dear'; it must be a number"):
        predictor([without_label | {"price": "dear"}])


def test_a_program_under_hydra_keeps_its_own_configs(tmp_path: Path) -> None:
    checkpoint = trained(tiny_run.tiny_config(tmp_path, "fit.final_evaluation=false", "fit.eval_every_n_epochs=null"))
    named = checkpoint.rename(checkpoint.with_name("a,b=c $x.ckpt"))
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "mine.yaml").write_text("number: 3\n")
    with initialize_config_dir(str(tmp_path / "theirs"), **BASE):
        load(named, device="cpu")
        assert compose("mine").number == 3


def test_a_checkpoint_of_another_version_says_which(tmp_path: Path) -> None:
    checkpoint = trained(tiny_mobilenet.tiny_mobilenet(tmp_path))
    content = torch.load(checkpoint, weights_only=True)
    version, commit = content["written_by"]
    assert version == VERSION and (commit is None or len(commit) == 40)
    content["model_config"]["task"]["newer"] = 1
    torch.save(content, checkpoint)
    with pytest.raises(UserError, match=r"has no key 'newer'; give a checkpoint that train.py of this version wrote$"):
        load(checkpoint, device="cpu")
    torch.save(content | {"written_by": ("9.9", "abcdef0123")}, checkpoint)
    writer = rf"\(it was written by reprise 9.9 \(abcdef01\), this is reprise {VERSION} \("
    with pytest.raises(UserError, match=rf"has no key 'newer'; .* {writer}"):
        load(checkpoint, device="cpu")
    for odd in ("x", ["9.9"], {"version": "9.9"}):
        torch.save(content | {"written_by": odd}, checkpoint)
        with pytest.raises(UserError, match=r"wrote$"):
            load(checkpoint, device="cpu")


def test_what_is_no_checkpoint_of_ours(tmp_path: Path) -> None:
    torch.save({"state_dict": {}}, tmp_path / "no_model.ckpt")
    torch.save({"state_dict": {}, "model_config": {"name": "theirs", "task": {}}}, tmp_path / "theirs.ckpt")
    for name, why in {
        "none.ckpt": "there is no such checkpoint",
        "no_model.ckpt": "does not say which model it is of",
        "theirs.ckpt": "a checkpoint of 'theirs', which is not here",
    }.items():
        with pytest.raises(UserError, match=why):
            load(tmp_path / name, device="cpu")
    with pytest.raises(UserError, match="device=mps is not supported; expected cpu or cuda"):
        load(tmp_path / "theirs.ckpt", device="mps")
