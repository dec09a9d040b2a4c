"""What files of own molecules say is read, converted or refused; other spellings give the same molecule."""

from pathlib import Path

import numpy as np
import pytest
from rdkit import Chem

from src.datamodules.graphs.data import Molecule, MoleculeError
from src.datamodules.graphs.files import Choices, entries_of
from src.datamodules.graphs.parse import parse
from src.datamodules.graphs.periodic import image_neighbours
from src.datamodules.graphs.prepare import Entries, Outcome
from src.errors import UserError
from tests.datamodules.graphs.test_files import SDF, WATER, frame

BOHR = 0.529177210903
GEOMETRY = np.array([line.split()[1:] for line in WATER], float)
CUBE, THIN = np.eye(3) * 6, np.eye(3) * 3
SKEWED = np.array([[6, 0, 0], [3, 5.5, 0], [1, 2, 6]])
BLOCK = SDF[: SDF.index("M  END") + 7]  # of ethanol


def entries(tmp_path: Path, text: str | bytes, name: str = "a.xyz", **choices: object) -> Entries:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return entries_of(path, Choices(**choices))  # type: ignore[arg-type]


def outcomes(tmp_path: Path, text: str | bytes, name: str = "a.xyz", **choices: object) -> list[Outcome]:
    return [parse(content) for content in entries(tmp_path, text, name, **choices).contents]


def water(positions: np.ndarray, comment: str = "", symbols: str = "OHH") -> str:
    rows = [f"{symbol} {x:.7f} {y:.7f} {z:.7f}" for symbol, (x, y, z) in zip(symbols, positions, strict=True)]
    return frame(rows, comment)


def lattice(box: np.ndarray, pbc: str = "T T T") -> str:
    return f'Lattice="{" ".join(map(str, box.ravel()))}" Properties=species:S:1:pos:R:3 pbc="{pbc}" energy=-1.5'


def distances(molecule: Molecule) -> np.ndarray:
    return np.linalg.norm(molecule.positions[:, None] - molecule.positions, axis=-1)


@pytest.mark.parametrize("box", [CUBE, SKEWED, THIN], ids=["cube", "skewed", "thin"])
def test_wrapped_molecules_are_made_whole(tmp_path: Path, box: np.ndarray) -> None:
    rng, text = np.random.default_rng(0), ""
    for _ in range(12):
        turned = GEOMETRY @ np.linalg.qr(rng.normal(size=(3, 3)))[0] + rng.uniform(-6, 12, 3)
        fractions = turned @ np.linalg.inv(box)
        text += water((fractions - np.floor(fractions)) @ box, lattice(box))
    parsed = outcomes(tmp_path, text)
    moved = ["made whole across the border of its periodic box" in outcome.changes for outcome in parsed]
    assert 2 < sum(moved) < 12 and entries(tmp_path, text).units == {"energy": ""}
    for outcome in parsed:
        assert outcome.molecule.bonds.tolist() == [[0, 1], [0, 2]] and outcome.group == parsed[0].group
        np.testing.assert_allclose(
            distances(outcome.molecule), distances(parse(("xyz", _frame(tmp_path))).molecule), atol=1e-5
        )


def _frame(tmp_path: Path) -> object:
    return entries(tmp_path, water(GEOMETRY), "plain.xyz").contents[0][1]


def test_molecules_of_one_box_are_whole_and_beside_each_other(tmp_path: Path) -> None:
    pair = np.concatenate([GEOMETRY, GEOMETRY + np.array([0, 0, 3])]) + np.array([3, 3, 5.5])
    (apart,) = outcomes(tmp_path, water(np.mod(pair, 9), lattice(np.eye(3) * 9), "OHHOHH"))
    np.testing.assert_allclose(distances(apart.molecule), np.linalg.norm(pair[:, None] - pair, axis=-1), atol=1e-5)
    assert apart.box is not None and len(apart.molecule.bonds) == 4
    assert image_neighbours(apart.molecule.positions, apart.box, 3.0) is None
    assert image_neighbours(apart.molecule.positions, apart.box, 6.0) is not None


def test_what_is_not_periodic_is_read_as_written(tmp_path: Path) -> None:
    apart = np.array([[1, 1, 0.3], [1, 1, 5.4]])
    wide = lattice(CUBE).replace("6.0", "60")
    for comment in ("", lattice(CUBE, "F F F"), 'pbc="F F F"', "pbc=[F,F,F]", lattice(CUBE, "T T F"), wide):
        (outcome,) = outcomes(tmp_path, water(apart, comment, "HF"))
        np.testing.assert_allclose(outcome.molecule.positions, apart, atol=1e-6)
    without_flags = lattice(CUBE).replace(' pbc="T T T"', "")
    for comment in (lattice(CUBE), lattice(CUBE, "F F T"), lattice(CUBE, "T"), without_flags, without_flags.lower()):
        (outcome,) = outcomes(tmp_path, water(apart, comment, "HF"))
        assert np.isclose(distances(outcome.molecule)[0, 1], 0.9) and outcome.molecule.bonds.tolist() == [[0, 1]]


@pytest.mark.parametrize(
    ("comment", "message"),
    [
        ('pbc="T T T"', "line 2: pbc='T T T' without a Lattice of 9 numbers; write pbc=\"F F F\""),
        ('Lattice="6 0 0 0 6 0"', "line 2: Lattice='6 0 0 0 6 0' is no box: expected 9 numbers"),
        ('Lattice="0 0 0 0 0 0 0 0 0"', "has no length along a periodic direction"),
        (lattice(CUBE, "T maybe T"), "line 2: pbc='T maybe T' is not allowed; expected three of T and F"),
        ("units=furlong", "line 2: units=furlong is no unit of length; give datamodule.source.length_unit=angstrom"),
        ("length_unit=nm units=bohr", "line 2 has the lengths in bohr and in nm"),
        ("water, coordinates in Bohr", "line 2 says 'Bohr', but not that coordinates are in it"),
        ("energy=-1 energy=-2", "line 2: energy stands there twice, as '-1' and '-2'"),
        ("charge=1 total_charge=-1", "line 2: charge=-1 and 1 is not allowed"),
    ],
)
def test_a_comment_that_cannot_be_used_is_refused(tmp_path: Path, comment: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        entries(tmp_path, water(GEOMETRY, comment))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("box", "message"),
    [
        ([[1.4, 0, 0], [0, 9, 0], [0, 0, 9]], "is bonded to its own periodic images, as a crystal"),
        ([[6, 0, 0], [12, 0, 0], [0, 0, 6]], "has a periodic box without volume"),
        (np.eye(3) * 1e-3, "has a periodic box only 0.001 angstrom wide"),
    ],
)
def test_crystals_and_boxes_without_volume_are_refused(tmp_path: Path, box: object, message: str) -> None:
    with pytest.raises(MoleculeError, match=message):
        outcomes(tmp_path, water(GEOMETRY[:1], lattice(np.array(box, float)), "C"))


@pytest.mark.parametrize(
    ("comment", "scale"),
    [("units=bohr", BOHR), ('length_unit="a.u."', BOHR), ("Units=nm", 10), ("pos_unit=pm", 0.01), ("unit=Angstrom", 1),
     ("units=eV", 1), ("polarizability in bohr^3", 1)],
)  # fmt: skip
def test_lengths_in_other_units_give_the_same_molecule(tmp_path: Path, comment: str, scale: float) -> None:
    (outcome,) = outcomes(tmp_path, water(GEOMETRY / scale, comment))
    np.testing.assert_allclose(outcome.molecule.positions, GEOMETRY, atol=1e-5)
    assert any("converted from" in change for change in outcome.changes) == (scale != 1)
    (chosen,) = outcomes(tmp_path, water(GEOMETRY / BOHR, comment), length_unit="bohr")
    np.testing.assert_allclose(chosen.molecule.positions, GEOMETRY, atol=1e-5)


def test_a_box_has_the_unit_of_the_coordinates(tmp_path: Path) -> None:
    wrapped = np.mod(GEOMETRY, 6) / BOHR
    (outcome,) = outcomes(tmp_path, water(wrapped, lattice(CUBE / BOHR) + " units=bohr"))
    assert outcome.molecule.bonds.tolist() == [[0, 1], [0, 2]] and outcome.box is not None
    np.testing.assert_allclose(outcome.box, CUBE)


def test_single_plain_numbers_alone_are_targets(tmp_path: Path) -> None:
    comment = (
        'energy = -76.4, gap=1.5D-3 dipole="1 2 3" ok=T name="a x=3" stress={b=3 4} virial=[[1, 2], [3, c=4]] '
        "big=1_000 alpha=nan E/N=2 energy_unit=eV empty="
    )
    data = entries(tmp_path, water(GEOMETRY, comment) + water(GEOMETRY, "energy=-7 eV gap=-"))
    assert dict(data.units) == {"energy": "eV", "gap": "", "E/N": ""}
    np.testing.assert_array_equal(data.targets, [[-76.4, 0.0015, 2], [-7, np.nan, np.nan]])
    assert data.notes[:2] == ["targets: energy, gap, E/N", "not every molecule has a value of gap (1), E/N (1)"]
    assert "dipole '1 2 3' (frame 1), ok 'T' (frame 1), name 'a x=3' (frame 1), stress 'b=3 4'" in data.notes[2]


def test_a_target_with_a_unit_counts_as_missing_and_is_said(tmp_path: Path) -> None:
    data = entries(tmp_path, "smiles,gap\nC,1\nN,2 eV\nO,high\n", "a.csv")
    assert np.isnan(data.targets[1:]).all() and any(
        note == "gap: 2 values are no plain number and count as missing, as '2 eV' (line 3 (N))" for note in data.notes
    )


def test_every_property_of_a_record_is_read(tmp_path: Path) -> None:
    properties = (
        "> <several>\n1.0\n2.0\n\n>  <PUBCHEM_MMFF94_PARTIAL_CHARGES>  (1)\n3\n1 -0.5\n\n> <ok>\ntrue\n\n"
        "> <blank>\n 5.5 \n \n> <next>\n4\n> <last>\n7\n"
    )
    data = entries(tmp_path, BLOCK + properties, "a.sdf")
    assert dict(zip(data.units, data.targets[0], strict=True)) == {"blank": 5.5, "next": 4, "last": 7}
    (note,) = (note for note in data.notes if note.startswith("no target"))
    assert (
        "several '1.0\\n2.0'" in note and "PUBCHEM_MMFF94_PARTIAL_CHARGES '3\\n1 -0.5'" in note and "ok 'true'" in note
    )
    for text, message in (
        (BLOCK * 2, "record 1 (line 1) has a second molecule, which ends in line 20: write a line $$$$"),
        (f"{BLOCK}$$$$\n{BLOCK}> <a>\n1\n\n> <a>\n2\n", "record 2 (line 12) has the property a twice"),
        (f"{BLOCK}> <>\n1\n", "record 1 (line 1) has a property without a name"),
    ):
        with pytest.raises(UserError) as caught:
            entries(tmp_path, text, "a.sdf")
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("  3  2  0", "  4  2  0"), "do not fit its counts line .* line 4 is '4  2  0"),
        (("  3  2  0", " x3  2  0"), "do not fit its counts line .* line 4 is 'x3  2  0"),
        (("3D", "  "), "has 2D coordinates"),
        (("2  3  1", "2  3  8"), "bond"),
        (("1  2  1", "1  2  3"), None),
        (("0.0000 O", "0.0000 F"), None),
        (("  1  2  1  0", "  1  3  3  0"), "valence for atom # 2 O, 4, is greater than permitted"),
    ],
)  # fmt: skip
def test_a_damaged_record_has_a_reason(tmp_path: Path, change: tuple[str, str], message: str | None) -> None:
    text = BLOCK.replace(*change)
    assert text != BLOCK
    if message is None:
        assert outcomes(tmp_path, text, "a.sdf")[0].group != outcomes(tmp_path, BLOCK, "b.sdf")[0].group
        return
    with pytest.raises(MoleculeError, match=message):
        outcomes(tmp_path, text, "a.sdf")


def test_the_same_molecule_in_any_form_is_the_same_graph(tmp_path: Path) -> None:
    full = Chem.AddHs(Chem.MolFromMolBlock(BLOCK, removeHs=False), addCoords=True)
    shuffled = Chem.RenumberAtoms(full, np.random.default_rng(0).permutation(full.GetNumAtoms()).tolist())
    block, xyz = Chem.MolToMolBlock(full), Chem.MolToXYZBlock(full)
    forms: list[tuple[str, str | bytes]] = [
        ("a.sdf", block), ("a.mol", block), ("v3000.sdf", Chem.MolToV3KMolBlock(full)),
        ("dos.sdf", block.replace("\n", "\r\n")),
        ("bom.sdf", b"\xef\xbb\xbf" + block.encode()), ("bare.sdf", BLOCK), ("marked.sdf", f"{block}$$$$\n"),
        ("order.sdf", Chem.MolToMolBlock(shuffled)), ("a.xyz", xyz), ("dos.xyz", xyz.replace("\n", "\r\n")),
        ("tabs.xyz", "\n".join("\t".join(line.split()) for line in xyz.split("\n"))),
        ("a.extxyz", xyz.replace("\n\n", "\nProperties=species:S:1:pos:R:3 pbc=\"F F F\"\n", 1)),
    ]  # fmt: skip
    parsed = {name: outcomes(tmp_path, text, name)[0] for name, text in forms}
    sizes = {name: np.sort(distances(outcome.molecule), axis=None) for name, outcome in parsed.items()}
    for name, outcome in parsed.items():
        assert outcome.group == parsed["a.sdf"].group, name
        assert sorted(outcome.molecule.orders) == [1] * 8, name
        np.testing.assert_allclose(sizes[name], sizes["a.sdf"], atol=1e-3)
    other = outcomes(tmp_path, block.replace(" O ", " S "), "other.sdf")[0]
    assert other.group != parsed["a.sdf"].group


def test_isotopes_of_hydrogen_are_read_as_hydrogen_and_said(tmp_path: Path) -> None:
    (outcome,) = outcomes(tmp_path, water(GEOMETRY, "", "ODD"))
    assert outcome.molecule.numbers.tolist() == [8, 1, 1] and "isotopes of hydrogen read as H" in outcome.changes


def test_fragments_of_a_smiles_are_refused_or_the_largest_is_kept(tmp_path: Path) -> None:
    with pytest.raises(MoleculeError, match=r"has 2 fragments, .* datamodule\.source\.keep_largest_fragment=true"):
        outcomes(tmp_path, "CC(=O)[O-].[Na+]\n", "a.smi")
    (kept,) = outcomes(tmp_path, "CC(=O)[O-].[Na+]\n", "a.smi", keep_largest_fragment=True)
    (acetate,) = outcomes(tmp_path, "CC(=O)[O-]\n", "b.smi")
    assert kept.changes[1:] == ("largest fragment kept",) and kept.group == acetate.group
    np.testing.assert_array_equal(kept.molecule.positions, acetate.molecule.positions)


@pytest.mark.parametrize("symbol", ["CL", "h", "Xx", "119", "C1", "\u0661"])
def test_an_unknown_element_is_named(tmp_path: Path, symbol: str) -> None:
    with pytest.raises(
        MoleculeError, match=rf"for atom 1: '{symbol} 0 0 0' \('{symbol}' is no element: write Cl, not CL"
    ):
        outcomes(tmp_path, frame([f"{symbol} 0 0 0"]))
