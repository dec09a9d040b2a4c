"""The guides of own data: their commands, run on small generated data."""

import csv
import random
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rdkit import Chem
from rdkit.Chem import Crippen, rdDistGeom

from tests.support import ROOT
from tests.support.refusing import Command
from tests.test_docs import commands

WORDS = {"sport": ["match", "goal", "team"], "food": ["bread", "soup", "cheese"], "music": ["song", "piano", "tune"]}
OTHERS = [f"word{number}" for number in range(40)]


@pytest.fixture
def followed(tmp_path: Path, command: Command) -> Callable[..., list[str]]:
    """Runs a page's first `count` commands in tmp_path, train.py with `training` too; returns what each printed."""

    def run(page: str, count: int, *training: str) -> list[str]:
        printed = []
        for script, *words in commands(ROOT / "docs" / "guides" / page)[:count]:
            ended = command(script, *words, "hardware=cpu", *(training if script == "train.py" else ()), cwd=tmp_path)
            assert ended.code == 0, f"{script} {shlex.join(words)}\n{ended.out}{ended.err}"
            printed.append(ended.out)
        return printed

    return run


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


@pytest.mark.slow
def test_own_sentences(tmp_path: Path, followed: Callable[..., list[str]]) -> None:
    source = random.Random(0)
    for name, count in (("reviews", 300), ("new", 20)):
        lines = ["comment,topic"]
        for row in range(count):
            topic = source.choice(list(WORDS))
            text = source.choices(OTHERS, k=source.randint(2, 10)) + source.choices(WORDS[topic], k=2)
            lines.append(f"{' '.join(text) if row % 50 or count < 50 else ' '},{topic if (row + 1) % 61 else ''}")
        (tmp_path / f"{name}.csv").write_text("\n".join([*lines, ""]))
    trained, held_out, new = followed("own_sentences.md", 3)
    assert "300 rows read, 290 kept as written, 10 dropped" in trained
    assert "dropped 6: no text in column comment" in trained and "dropped 4: no label in column topic" in trained
    assert "accuracy" in held_out and "accuracy" in new
    rows = rows_of(tmp_path / "labels.csv")
    assert len(rows) == 20 and set(rows[0]) >= {"sentence", "label", "probability", "true"}
    assert sum(row["label"] == row["true"] for row in rows) >= 15
    for name in ("held_out", "labels"):
        assert (tmp_path / f"{name}.png").stat().st_size > 5000


@pytest.mark.slow
def test_own_molecules(tmp_path: Path, followed: Callable[..., list[str]]) -> None:
    rings = "c1ccccc1", "c1ccncc1", "C1CCCC1", "c1ccsc1", "C1CCNCC1", "c1ccoc1"
    links = "C", "CC", "O", "N", "C(=O)", "[Si](C)(C)", "S", "CO", "CN", "C(=O)N"
    ends = "C", "CO", "N", "F", "Cl", "C#N", "CC", "OC", "B(O)O", "C(C)C"
    smiles = [ring + link + end for ring in rings for link in links for end in ends]
    (tmp_path / "my.smiles").write_text("\n".join([*smiles, "C1CC", 30 * "C", ""]))
    trained, new, _, judged = followed("own_molecules.md", 4, "fit.max_time_s=2")
    assert (
        "my.smiles: 602 molecules read, 600 kept as written, 2 dropped" in trained
        and "small MoFlow on smiles_file" in trained
    )
    assert "200 of 200 molecules are valid after correction" in new
    assert len(rows_of(tmp_path / "molecules.csv")) == 200
    way = rows_of(tmp_path / "way_interpolation.csv")
    assert way[-1]["smiles"] == "CCOC(C)=O"
    assert "reconstruction" in judged and "300 molecules of the train split, all trained on" in judged
    for name in ("molecules", "way_interpolation"):
        assert (tmp_path / f"{name}.png").stat().st_size > 5000 and (tmp_path / f"{name}.svg").exists()


def write_in_space(home: Path) -> int:
    """Writes my.sdf and new.xyz with generated coordinates and a logP; returns the frames of new.xyz."""
    rings = "c1ccccc1", "C1CCCC1", "c1ccoc1", "C", "CC", "CCC"
    links, ends = ("C", "O", "N", "[Si](C)(C)", "S", "C(=O)"), ("C", "CO", "N", "F", "Cl", "Br", "CC", "C#N")
    writer, frames = Chem.SDWriter(str(home / "my.sdf")), []
    smiles = [ring + link + end for ring in rings for link in links for end in ends]
    for row, text in enumerate(smiles):
        molecule = Chem.AddHs(Chem.MolFromSmiles(text))
        assert rdDistGeom.EmbedMolecule(molecule, randomSeed=1) == 0
        logp = f"{Crippen.MolLogP(molecule):.4f}"  # type: ignore[attr-defined]
        if row % 12:
            molecule.SetProp("logp", logp)
            writer.write(molecule)
            continue
        atoms = zip(molecule.GetAtoms(), molecule.GetConformer().GetPositions(), strict=True)
        lines = [f"{atom.GetSymbol()} {x:.4f} {y:.4f} {z:.4f}" for atom, (x, y, z) in atoms]
        frames.append("\n".join([str(len(lines)), f"logp={logp}" if row else "", *lines, ""]))
    writer.close()
    (home / "new.xyz").write_text("".join(frames))
    return len(frames)


@pytest.mark.slow
def test_own_molecules_in_space(tmp_path: Path, followed: Callable[..., list[str]]) -> None:
    count = write_in_space(tmp_path)
    trained, held_out, new = followed("own_3d_molecules.md", 3, "datamodule.unit=log10", "fit.max_epochs=8")
    assert "my.sdf: 264 molecules read, 264 kept" in trained and "on molecule_file, at most 4000 molecules" in trained
    assert re.search(r"MAE +[\d.]+ +log10 +mean absolute error, 26 molecules of the test split", held_out)
    assert f"1 of {count} molecules have no value of logp, and the errors are of the others" in new
    rows = rows_of(tmp_path / "new.csv")
    assert len(rows) == count == 24 and {row["unit"] for row in rows} == {"log10"}
    labelled = [row for row in rows if row["true"]]
    errors = [abs(float(row["true"]) - float(row["predicted"])) for row in labelled]
    spread = [abs(float(row["true"]) - np.mean([float(other["true"]) for other in labelled])) for row in labelled]
    assert sum(errors) < 0.7 * sum(spread)
    for name in ("held_out", "new"):
        assert (tmp_path / f"{name}.png").stat().st_size > 5000 and (tmp_path / f"{name}.svg").exists()


@pytest.mark.slow
def test_own_clicks(tmp_path: Path, followed: Callable[..., list[str]]) -> None:
    source = random.Random(0)
    for name, count in (("clicks", 2000), ("new", 200)):
        lines = ["clicked,age,price,site,device"]
        for row in range(count):
            site, device = source.choice("abcdef"), source.choice(["phone", "desk"])
            clicked = int(source.random() < (0.9 if site in "abc" else 0.1))
            age = source.randint(18, 80) if row % 10 else ""
            is_labelled = (row + 1) % 500 if name == "clicks" else row % 2 == 0
            lines.append(f"{clicked if is_labelled else ''},{age},{source.random():.3f},{site},{device}")
        (tmp_path / f"{name}.csv").write_text("\n".join([*lines, ""]))
    trained, _, new = followed("own_clicks.md", 3)
    assert "2,000 rows read, 1,996 kept as written, 4 dropped" in trained
    assert "dropped 4: no label in column clicked" in trained and "age 10.0%" in trained
    assert "AUC" in new
    rows = rows_of(tmp_path / "new_clicks.csv")
    assert len(rows) == 200 and "100 of 200 rows have no label, and the figures are of the others" in new
    assert [row["label"] != "" for row in rows] == [row % 2 == 0 for row in range(200)]
    rows = rows[::2]
    assert sum((float(row["probability"]) > 0.5) == (row["label"] == "1") for row in rows) >= 75


@pytest.mark.slow
def test_own_images(tmp_path: Path, followed: Callable[..., list[str]]) -> None:
    source = np.random.default_rng(0)
    for folder, count in (("photos/train", 12), ("photos/val", 4), ("new", 2)):
        for number, colour in enumerate(("blue", "green", "red")):
            target = tmp_path / folder / colour
            target.mkdir(parents=True)
            for row in range(count):
                pixels = source.integers(0, 80, (70, 80, 3), dtype=np.uint8)
                pixels[..., 2 - number] += 170
                Image.fromarray(pixels).save(target / f"{row}.png")
    trained, judged, _ = followed("own_images.md", 3)
    assert "on image_folder" in trained and "synthetic" not in trained
    assert "photos: 48 files read, 48 kept as written\n  split: 36 train, 12 val" in trained
    assert "classes of val: blue 4, green 4, red 4" in trained
    assert "top-1" in judged
    assert len(rows_of(tmp_path / "classes.csv")) == 12 and len(rows_of(tmp_path / "new.csv")) == 6
