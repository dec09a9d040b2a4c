"""The ASE calculator of a checkpoint: its energies are predict.py's, its forces their gradient."""

import csv
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import src
from src.config.trained import name_model
from src.errors import UserError
from src.run import train
from src.trained import load
from tests.support import ROOT
from tests.support.composing import prediction_of
from tests.support.tiny_se3 import tiny_se3

pytestmark = pytest.mark.slow
GUIDE = ROOT / "docs" / "guides" / "library.md"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("ase")
    train(tiny_se3(home := tmp_path_factory.mktemp("energies"), "datamodule.unit=hartree"))
    return home / "run" / "checkpoints" / "best.ckpt"


def ethanol() -> Any:
    from ase.build import molecule  # type: ignore[import-not-found]

    atoms = molecule("CH3CH2OH")
    atoms.rattle(0.05, seed=1)  # a molecule with mirror symmetry has forces of zero that say nothing
    return atoms


def test_energies_are_those_of_predict(checkpoint: Path, tmp_path: Path) -> None:
    atoms = ethanol()
    atoms.write(tmp_path / "ethanol.xyz", format="xyz")
    words = f"ckpt_path={checkpoint}", "hardware=cpu", f"output_dir={tmp_path}", f"data_root={tmp_path / 'data'}"
    prediction_of(name_model([*words, f"datamodule.source.file={tmp_path / 'ethanol.xyz'}", "datamodule.predict=all"]))
    with (tmp_path / "predictions.csv").open(newline="", encoding="utf-8") as lines:
        (row,) = csv.DictReader(lines)
    predictor = load(checkpoint, device="cpu")
    atoms.calc = predictor.calculator(atoms)
    in_hartree = atoms.get_potential_energy() / 27.2113862
    assert row["unit"] == "hartree" and in_hartree == pytest.approx(float(row["predicted"]), abs=2e-6, rel=1e-5)
    assert in_hartree == pytest.approx(predictor(atoms).values[0], rel=1e-5)


@pytest.mark.parametrize("edges", ["bonds", "full"])
def test_forces_are_minus_the_numerical_gradient(edges: str, checkpoint: Path) -> None:
    predictor, atoms = load(checkpoint, f"datamodule.edges.kind={edges}", device="cpu"), ethanol()
    predictor(atoms)  # without gradients, as predictions are
    predictor.network.double()
    atoms.calc = predictor.calculator(atoms)
    forces, step = atoms.get_forces(), 1e-4
    numerical = np.zeros_like(forces)
    for place in np.ndindex(forces.shape):
        ends = []
        for sign in (1, -1):
            moved = atoms.copy()
            moved.positions[place] += sign * step
            moved.calc = atoms.calc
            ends.append(moved.get_potential_energy())
        numerical[place] = (ends[1] - ends[0]) / (2 * step)
    largest = np.abs(forces).max()
    assert largest > 1e-4
    np.testing.assert_allclose(forces, numerical, rtol=0, atol=1e-6 * largest)
    np.testing.assert_allclose(forces.sum(0), 0, atol=1e-12)


def test_the_relaxation_of_the_guide_lowers_the_energy(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = GUIDE.read_text(encoding="utf-8").partition("## ASE calculator\n")[2].partition("\n## ")[0]
    (script,) = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert len(section.split()) <= 160
    (tmp_path / "RUN").symlink_to(checkpoint.parent.parent)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "reprise", src)  # its name in a wheel
    names: dict[str, Any] = {}
    exec(compile(script, str(GUIDE), "exec"), names)
    untouched = names["molecule"]("CH3CH2OH")
    untouched.calc = names["atoms"].calc
    energy = names["atoms"].get_potential_energy()
    assert energy < untouched.get_potential_energy() - 0.01


def test_molecules_that_the_network_does_not_know(checkpoint: Path) -> None:
    from ase.build import molecule  # type: ignore[import-not-found]

    predictor = load(checkpoint, device="cpu")
    chloride, periodic = molecule("CH3Cl"), molecule("CH4", pbc=True, vacuum=5)
    across = "CH4 is periodic, and neighbours across the border of its cell would be missed: set pbc = False"
    for atoms, why in (chloride, "CClH3 has the element Cl; known are H, C, N, O, F"), (periodic, across):
        with pytest.raises(UserError, match=f"^{why}"):
            predictor.calculator(atoms)
    with pytest.raises(UserError, match=across.removeprefix("CH4 ")):
        predictor(periodic)
    periodic = ethanol()
    periodic.pbc = True
    why = "COH4 is not the calculator's molecule", "C2OH6 is periodic, which its calculator is not; set pbc = False"
    for atoms, reason in zip((molecule("CH3OH"), periodic), why, strict=True):
        atoms.calc = predictor.calculator(ethanol())
        with pytest.raises(UserError, match=f"^{reason}"):
            atoms.get_forces()


@pytest.mark.parametrize(
    ("quantity", "edges", "unit", "why"),
    [
        (("homo", "eV"), "bonds", None, "homo is not the energy of a molecule: its gradient is no force"),
        (("mu", "D"), "bonds", None, "mu is in D, which is no unit of energy; expected one of eV, meV, hartree, "),
        (("energy", ""), "bonds", None, r"energy is of no unit that is known; give .*unit=UNIT\); expected one of eV"),
        (("energy", ""), "bonds", "K", "energy is in K, which is no unit of energy"),
        (("energy", "eV"), "bonds", "hartree", r"energy is in eV; leave out unit=hartree"),
        (("U0", "eV"), "radius", None, "edges.kind=radius, and its energy jumps .* train it with bonds or full"),
    ],
)
def test_what_has_no_forces(
    quantity: tuple[str, str], edges: str, unit: str | None, why: str, checkpoint: Path
) -> None:
    predictor = load(checkpoint, f"datamodule.edges.kind={edges}", device="cpu")
    predictor.quantity = quantity
    with pytest.raises(UserError, match=why):
        predictor.calculator("CCO", unit)
