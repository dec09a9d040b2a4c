"""Files of molecules: formats, targets, splits and errors."""

import re
from pathlib import Path

import numpy as np
import pytest

from src.datamodules.graphs.data import GraphData
from src.datamodules.graphs.files import entries_of, load
from src.datamodules.graphs.own_splits import shared_split
from src.datamodules.graphs.parse import from_sdf, from_smiles
from src.errors import UserError

WATER = ["O 0.0 0.0 0.1173", "H 0.0 0.7572 -0.4692", "H 0.0 -0.7572 -0.4692"]
HCN = ["H 0 0 -1.0659", "C 0 0 0", "N 0 0 1.1532"]
AMMONIUM = ["N 0 0 0", "H 0.6 0.6 0.6", "H -0.6 -0.6 0.6", "H 0.6 -0.6 -0.6", "H -0.6 0.6 -0.6"]
# Ethanol without hydrogens, and carbon monoxide with charges.
SDF = """ethanol
  program           3D

  3  2  0  0  0  0  0  0  0  0999 V2000
    0.0000    0.0000    0.0000 C   0  0
    1.5200    0.0000    0.0000 C   0  0
    2.0000    1.3300    0.0000 O   0  0
  1  2  1  0
  2  3  1  0
M  END
> <homo>
-7.5

> <source> (1)
a book

$$$$

  program           3D

  2  1  0  0  0  0  0  0  0  0999 V2000
    0.0000    0.0000    0.0000 C   0  5
    1.1300    0.0000    0.0000 O   0  3
  1  2  3  0
M  END
$$$$
"""
UNREADABLE = "has no element and coordinates for atom"


def frame(atoms: list[str], comment: str = "") -> str:
    return "\n".join([str(len(atoms)), comment, *atoms, ""])


def made(tmp_path: Path, name: str, text: str, **options: object) -> GraphData:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return load(tmp_path / "data", file=path, **{"workers": 1, **options})  # type: ignore[arg-type]


def refused(tmp_path: Path, name: str, text: str, **options: object) -> str:
    with pytest.raises(UserError) as caught:
        made(tmp_path, name, text, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_frames_of_an_xyz_file_have_their_numbers_as_targets(tmp_path: Path) -> None:
    extended = "Properties=species:S:1:pos:R:3:forces:R:3 gap='1.25' pbc=\"F F F\" energy=-93.4"
    text = frame(WATER, "energy=-76.4 note=cold") + "\n" + frame([f"{line} 0 0 0" for line in HCN], extended)
    data = made(tmp_path, "my.xyz", text + frame(AMMONIUM, "charge=1") + frame(["7 0 0 0"]))
    assert data.names == [f"my.xyz frame {number}" for number in (1, 2, 3, 4)]
    assert dict(data.units) == {"energy": "", "gap": ""}
    np.testing.assert_array_equal(data.targets, [[-76.4, np.nan], [-93.4, 1.25], [np.nan, np.nan], [np.nan, np.nan]])
    hcn = data.arrays.molecule(1)
    assert (
        hcn.numbers.tolist() == [1, 6, 7] and hcn.bonds.tolist() == [[0, 1], [1, 2]] and hcn.orders.tolist() == [1, 3]
    )
    np.testing.assert_allclose(hcn.positions[2], [0, 0, 1.1532])
    assert data.arrays.num_atoms.tolist() == [3, 3, 5, 1] and data.arrays.num_bonds.tolist() == [2, 2, 4, 0]


def test_an_extended_xyz_file_names_its_columns(tmp_path: Path) -> None:
    lines = [f"0.5 {x} {y} {z} {symbol}" for symbol, x, y, z in (line.split() for line in WATER)]
    numbers = [line.replace("O", "8").replace("H", "1") for line in lines]
    for atoms, columns in (
        (lines, "q:R:1:pos:R:3:species:S:1"),
        (lines, "q:R:1:positions:R:3:element:S:1"),
        (numbers, "charges:R:1:Pos:R:3:Z:I:1"),
    ):
        molecule = made(tmp_path, "a.xyz", frame(atoms, f"Properties={columns}")).arrays.molecule(0)
        assert molecule.numbers.tolist() == [8, 1, 1]
        np.testing.assert_allclose(molecule.positions[1], [0, 0.7572, -0.4692], rtol=1e-6)
    for columns in ("q:R:1", "species:S:1:pos:R:2", "species:S:1:pos:R:3:x"):
        line = refused(tmp_path, "a.xyz", frame(lines, f"Properties={columns}"))
        assert "a.xyz line 2: Properties=" in line


def test_records_of_an_sdf_file_get_missing_hydrogens(tmp_path: Path) -> None:
    data = made(tmp_path, "my.sdf", SDF)
    assert data.names == ["my.sdf record 1 (ethanol)", "my.sdf record 2"]
    assert dict(data.units) == {"homo": ""} and data.targets[0] == -7.5 and np.isnan(data.targets[1])
    ethanol, monoxide = (data.arrays.molecule(row) for row in (0, 1))
    assert ethanol.numbers.tolist() == [6, 6, 8, 1, 1, 1, 1, 1, 1] and len(ethanol.bonds) == 8
    lengths = np.linalg.norm(np.diff(ethanol.positions[ethanol.bonds], axis=1)[:, 0], axis=1)
    assert 0.9 < lengths.min() < lengths.max() < 1.6
    assert monoxide.numbers.tolist() == [6, 8] and monoxide.orders.tolist() == [3]


def test_smiles_get_the_same_coordinates_every_time(tmp_path: Path) -> None:
    data = made(tmp_path, "my.smi", "CCO ethanol\n\nc1ccccc1\nC[NH2+]CC([O-])=O\n")
    assert data.names == ["my.smi line 1 (CCO)", "my.smi line 3 (c1ccccc1)", "my.smi line 4 (C[NH2+]CC([O-])=O)"]
    assert data.arrays.num_atoms.tolist() == [9, 12, 13] and data.units == {}
    benzene = data.arrays.molecule(1)
    assert sorted(benzene.orders.tolist()) == [1] * 9 + [2] * 3
    np.testing.assert_array_equal(from_smiles("c1ccccc1").molecule.positions.astype(np.float32), benzene.positions)
    lengths = np.linalg.norm(np.diff(benzene.positions[benzene.bonds], axis=1)[:, 0], axis=1)
    assert 1.0 < lengths.min() < 1.15 and 1.35 < lengths.max() < 1.45


def test_columns_of_a_csv_file_are_targets(tmp_path: Path) -> None:
    data = made(tmp_path, "my.csv", "id,SMILES,gap\na,C,3.5\nb,N,\n")
    assert dict(data.units) == {"gap": ""} and data.names == ["my.csv line 2 (C)", "my.csv line 3 (N)"]
    np.testing.assert_array_equal(data.target("gap"), [3.5, np.nan])
    assert np.isnan(data.target(None)).all()
    with pytest.raises(UserError, match=r"datamodule\.task=gpa: there is no such target; choose from gap, or null"):
        data.target("gpa")


def test_a_file_without_numbers_has_no_targets(tmp_path: Path) -> None:
    data = made(tmp_path, "my.smiles", "C\n")
    assert data.target("homo").tolist() != [0] and np.isnan(data.target("homo")).all()


BAD = [
    ("a.xyz", frame(WATER) + frame(["Xx 0 0 0"]), "a.xyz frame 2 has no element and coordinates for atom 1: 'Xx 0"),
    ("a.xyz", frame([*WATER[:2], "H 0 nan 0"]), "a.xyz frame 1 has no finite coordinates for atom 3; "),
    ("a.xyz", frame([*WATER, WATER[1]]), "a.xyz frame 1 has atoms 2 and 4 at the same position; "),
    ("a.xyz", frame([*WATER[:2], "H 0 1"]), f"a.xyz frame 1 {UNREADABLE} 3: 'H 0 1'; "),
    ("a.xyz", frame([*WATER[:2], "Xx 0 1 1"]), f"a.xyz frame 1 {UNREADABLE} 3: 'Xx 0 1 1' ('Xx' is no element"),
    ("a.xyz", frame(AMMONIUM), "a.xyz frame 1 has no bond orders that fit its coordinates and a charge of 0 ("),
    ("a.sdf", SDF.replace(" C   0  0", " *   0  0"), "a.sdf record 1 (ethanol) has an atom of no element: atom 1"),
    ("a.sdf", SDF.replace("3D", "2D"), "a.sdf record 1 (ethanol) has 2D coordinates"),
    ("a.sdf", SDF.replace("1  2  3  0", "1  7  3  0"), "a.sdf record 2 cannot be read as a molecule"),
    ("a.smi", "C\nC1CC\n", "a.smi line 2 (C1CC) does not parse; "),
    ("a.smi", "C*\n", "a.smi line 1 (C*) has an atom of no element: atom 2 has atomic number 0; "),
    ("a.csv", "smiles,x\n,1\n", "a.csv line 2 () does not parse; "),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [case if number % 2 else pytest.param(*case, marks=pytest.mark.slow) for number, case in enumerate(BAD)],
)
def test_a_bad_molecule_is_named_and_leaves_no_file(tmp_path: Path, name: str, text: str, message: str) -> None:
    line = refused(tmp_path, name, text)
    assert line.startswith(message), line
    assert line.endswith("; correct the file, or leave such molecules out: datamodule.source.skip_bad=true")
    assert [names(folder) for folder in (tmp_path / "data").iterdir()] == [[]]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.xyz", frame(WATER) + frame(HCN)[:-20], r"a.xyz is truncated: frame 2 \(line 6\) has fewer than 3 atoms"),
        ("a.xyz", frame(WATER) + "O 0 0 0\n", "a.xyz line 6: expected a number of atoms, found 'O 0 0 0'"),
        ("a.xyz", "", "no molecule can be used: a.xyz is empty"),
        ("a.sdf", SDF[:200], "a.sdf is truncated: record 1 has no line 'M  END'"),
        ("a.csv", "name,x\nC,1\n", "a.csv line 1: there is no column 'smiles', only 'name', 'x'; call a column smiles"),
        ("a.pdb", "", r"a.pdb: the suffix is none of \.xyz, \.extxyz, \.sdf"),
    ],
)
def test_skip_bad_does_not_skip_damaged_files(tmp_path: Path, name: str, text: str, message: str) -> None:
    assert re.search(message, refused(tmp_path, name, text, skip_bad=True))


def test_missing_and_binary_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"datamodule\.source\.file=.*no\.xyz does not exist; give a file"):
        load(tmp_path, file=tmp_path / "no.xyz")
    (tmp_path / "a.xyz").write_bytes(b"\xff1")
    with pytest.raises(UserError, match=r"a\.xyz line 1 is not UTF-8 \(byte 0xff\): save the file as UTF-8"):
        load(tmp_path, file=tmp_path / "a.xyz")


def test_skip_bad_leaves_out_bad_molecules_and_lists_them(tmp_path: Path) -> None:
    data = made(tmp_path, "a.smi", "C\nC1CC\nN\nC*\nO\n", skip_bad=True)
    assert data.names == ["a.smi line 1 (C)", "a.smi line 3 (N)", "a.smi line 5 (O)"] and data.skip_bad
    bad = (data.folder / "bad.txt").read_text().splitlines()
    assert [line.split(" (")[0] for line in bad] == ["a.smi line 2", "a.smi line 4"]
    line = refused(tmp_path, "a.smi", "*\n\nC1\n*C\n", skip_bad=True)
    assert line.startswith(
        "no molecule can be used of the 3 in a.smi: 2 has an atom of no element, as a.smi line 1 (*) has an atom of no "
        "element: atom 1 has atomic number 0; 1 does not parse, as a.smi line 3 (C1)"
    )


def test_another_content_is_prepared_in_another_folder(tmp_path: Path) -> None:
    first, second, again = (made(tmp_path, "a.smi", text) for text in ("C\n", "N\n", "C\n"))
    assert first.folder == again.folder != second.folder
    assert (first.arrays.numbers[0], second.arrays.numbers[0]) == (6, 7)


def test_a_split_has_the_shares_and_depends_on_the_seed(tmp_path: Path) -> None:
    split = shared_split(100, 0.1, 0.2, 3)
    assert [len(split[name]) for name in ("train", "val", "test")] == [70, 10, 20]
    assert sorted(np.concatenate(list(split.values())).tolist()) == list(range(100))
    assert not np.array_equal(split["test"], shared_split(100, 0.1, 0.2, 4)["test"])
    assert [len(rows) for rows in shared_split(1, 0.1, 0.1, 0).values()] == [1, 0, 0]
    line = refused(tmp_path, "a.smi", "C\n", val_share=0.5, test_share=0.5)
    assert line == "val_share=0.5 and test_share=0.5: give shares of 0 or more with a sum below 1"


def test_a_sample_is_drawn_with_its_seed(tmp_path: Path) -> None:
    text = "".join("C" * count + "\n" for count in range(1, 9))
    few, same = (made(tmp_path, "a.smi", text, limit=3, seed=seed) for seed in (1, 1))
    assert len(few.names) == 3 and few.names == same.names


def test_a_planar_molecule_marked_as_3d_is_accepted() -> None:
    planar = (
        "water\n  program           3D\n\n  1  0  0  0  0  0  0  0  0  0999 V2000\n    0.0 0.0 0.0 O   0  0\nM  END\n"
    )
    planar = planar.replace("    0.0 0.0 0.0", "    0.0000    0.0000    0.0000")
    assert from_sdf(planar).molecule.numbers.tolist() == [8, 1, 1]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "a.smi",
            "C" * 150,
            "has 452 atoms, and coordinates are generated for at most 200: give",
        ),
        ("a.smi", "C" * 2_000_000, "is longer than 2,000 characters"),
        ("a.xyz", "1001\n\n" + "H 0 0 0\n" * 1001, "has 1,001 atoms; at most 1,000 are read"),
        ("a.xyz", "2\n\nH 0 0 0\nH 1e20 0 0\n", "has atom 2 more than 100,000 angstrom from the origin"),
        (
            "a.xyz",
            "1\ncharge=inf\nH 0 0 0\n",
            "a.xyz line 2: charge=inf is not allowed; expected a whole number of -100 to 100",
        ),
        ("a.xyz", "1\ncharge=0.4\nH 0 0 0\n", "a.xyz line 2: charge=0.4 is not allowed; expected a whole number"),
        ("a.xyz", "9" * 5000 + "\n\nH 0 0 0\n", "a.xyz line 1: expected a number of atoms, found '999"),
    ],
    ids=lambda text: text[:30],  # pytest keeps it in an environment variable, whose size is limited
)
def test_limits_of_size_are_said(name: str, text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError) as raised:
        load(tmp_path / "data", file=tmp_path / name, workers=1)
    assert words in str(raised.value) and len(str(raised.value)) < 1000


def test_a_value_without_bounds_is_no_target(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("smiles,energy\nC,1\nCC,inf\nCCC,1e300\nO,nan\n")
    assert np.isnan(entries_of(tmp_path / "a.csv").targets[1:]).all()
