"""A person's own SMILES: what is kept is the molecule that was written, or the report says what became of it."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rdkit import Chem

from src.datamodules.molecules.datamodule import MoleculeDataModule
from src.datamodules.molecules.encoded import MolecularData
from src.datamodules.molecules.smiles_file import load
from src.datamodules.splits import seeded_split
from src.errors import UserError
from src.measure.reading import Reading, Remark
from src.molecules.build import build_molecule, canonical_smiles
from src.molecules.encode import encode
from src.molecules.score import smiles_of
from src.molecules.standardise import encoded_as
from src.molecules.vocabulary import of_elements

SMILES = [
    "CCO", "CC(N)C(=O)O", "c1ccccc1", "CC#N", "C1CC1", "CC(=O)O", "CN", "CO", "OC=C", "CCF", "c1ccncc1", "CCCCO",
    "Cn1cnc2c1c(=O)n(C)c(=O)n2C", "O=C(C)Oc1ccccc1C(=O)O", "C[N+](C)(C)CC", "O=[N+]([O-])c1ccccc1", "CS(C)(=O)=O",
    "CN=[N+]=[N-]", "[O-][n+]1ccccc1", "C1CCNCC1",
]  # fmt: skip


def loaded(folder: Path, lines: list[str] | str, name: str = "my.smiles", **options: Any) -> MolecularData:
    """Returns what is read of a file with this content."""
    path = folder / name
    path.write_text(lines if isinstance(lines, str) else "\n".join([*lines, ""]), encoding="utf-8")
    return load(folder / "data", file=path, workers=1, **{"rare_below": 1, "held_out_share": 0.3, **options})


def told(data: MolecularData) -> Reading:
    assert data.reading is not None
    return data.reading


def only(remarks: list[Remark]) -> str:
    """Returns how and with which example the one remark is told."""
    (remark,) = remarks
    assert remark.count == 1
    return f"{remark.what} | {remark.examples[0]}"


def written(data: MolecularData) -> dict[str, tuple[bytes, bytes]]:
    """Returns the arrays of each molecule by its canonical SMILES."""
    rows = zip(data.canonical, data.nodes, data.edges, strict=True)
    return {smiles: (nodes.tobytes(), edges.tobytes()) for smiles, nodes, edges in rows}


def test_molecules_are_kept_as_written(tmp_path: Path) -> None:
    data = loaded(tmp_path, SMILES)
    assert data.smiles == SMILES and told(data).as_written == len(SMILES) == told(data).read
    for text, canonical, nodes, edges in zip(SMILES, data.canonical, data.nodes, data.edges, strict=True):
        rebuilt = build_molecule(nodes, edges, data.vocabulary)
        assert rebuilt is not None
        assert canonical_smiles(rebuilt) == canonical == canonical_smiles(Chem.MolFromSmiles(text))
    assert smiles_of(data.nodes, data.edges, data.vocabulary, False) == data.canonical
    assert told(data).splits == {"train": 14, "val": 6} and told(data).shared == 0


DROPPED = {
    "CC[NH3+].[Cl-]": "is a salt or mixture of several fragments (datamodule.source.keep_largest_fragment=true",
    "CCO.CCN": "is a salt or mixture",
    "[C-]#[O+]": "has charges that atoms and bonds alone do not give",
    "CC(=O)[O-]": "has charges that atoms and bonds alone do not give (datamodule.source.neutralise=true",
    "F[B-](F)(F)F": "has charges",
    "C[S+](C)[O-]": "has charges",
    "O=[N+]([O-])[O-]": "has charges",
    "C[P+](C)(C)[CH2-]": "has charges",
    "[SH4]": "has valences that atoms and bonds alone do not give",
    "C[CH2]": "has unpaired electrons (datamodule.source.saturate_radicals=true",
    "[#6]": "has unpaired electrons",
    "[Na]": "has unpaired electrons",
    "CC |^1:0|": "has unpaired electrons",
    "C[2H]": "has isotope labels (datamodule.source.drop_isotopes=true",
    "[13CH4]": "has isotope labels",
    "*CC": "has a wildcard in place of an atom",
    "C* |$;R1$|": "has a wildcard in place of an atom",
    "[H][H]": "has a hydrogen that is no other atom's",
    "C$C": "has a bond that is not single, double or triple",
    "C~C": "has a bond that is not single, double or triple",
    "[NH3]->[Fe]": "has a bond that is not single, double or triple",
    "CC |Sg:n:0,1::ht|": "is a polymer, or has groups without a place",
    "CC>>CO": "is a reaction",
    "C1CC": "does not parse",
    "CN(C)(C)(C)C": "does not parse",
    "InChI=1S/CH4/h1H4": "does not parse",
    "C" * 39: "has too many atoms",
    "C" * 2001: "is too long",
}


def test_what_the_arrays_cannot_hold_is_dropped_with_the_reason(tmp_path: Path) -> None:
    data = loaded(tmp_path, [*SMILES, *DROPPED])
    assert data.smiles == SMILES and told(data).dropped_items == len(DROPPED)
    bad = (data.folder / "bad.txt").read_text().splitlines()
    for number, (text, reason) in enumerate(DROPPED.items(), len(SMILES) + 1):
        (line,) = [line for line in bad if f"my.smiles line {number}: " in line]
        assert reason.split(" (")[0] in line and text[:30] in line
        assert any(remark.what.startswith(reason) for remark in told(data).dropped)
    assert [line for line in bad if "it would become 'C#[O+]'" in line]
    assert [line for line in bad if "Explicit valence for atom # 1 N, 5" in line]
    assert [line for line in bad if "it is an InChI" in line]


CHANGED = {
    "C[C@H](N)C(=O)O": ({}, "stereo removed", "CC(N)C(=O)O"),
    "F/C=C/F": ({}, "stereo removed", "FC=CF"),
    "[CH3:1][OH:2]": ({}, "atom map numbers removed", "CO"),
    "CC(=O)O.[Na]": ({"keep_largest_fragment": True}, "all but the largest fragment removed", "CC(=O)O"),
    "CC(=O)[O-]": ({"neutralise": True}, "charges neutralised", "CC(=O)O"),
    "[NH3+]CC(=O)[O-]": ({"neutralise": True}, "charges neutralised", "NCC(=O)O"),
    "C[2H]": ({"drop_isotopes": True}, "isotope labels removed", "C"),
    "[13CH3]C": ({"drop_isotopes": True}, "isotope labels removed", "CC"),
    "C[CH2]": ({"saturate_radicals": True}, "radicals saturated with hydrogen", "CC"),
}


@pytest.mark.parametrize("text", CHANGED)
def test_what_a_key_allows_is_removed_and_said(text: str, tmp_path: Path) -> None:
    options, how, smiles = CHANGED[text]
    data = loaded(tmp_path, ["CCCO", "CCCN", text], **options)
    assert data.canonical == ["CCCO", "CCCN", smiles]
    assert only(told(data).changed) == f"{how} | line 3: {text!r} -> {smiles!r}"
    assert (told(data).changed_items, told(data).as_written, told(data).dropped) == (1, 2, [])


def test_the_largest_organic_fragment_is_kept_and_each_change_is_said(tmp_path: Path) -> None:
    """A fumarate is a molecule, though a list of salts has it; hexafluorophosphate is larger than acetone."""
    texts = ["CC[NH3+].[Cl-]", "OC(=O)/C=C/C(=O)O", "CC(C)=O.F[P-](F)(F)(F)(F)F.[Na+]", "CCN"]
    data = loaded(tmp_path, texts, keep_largest_fragment=True, neutralise=True)
    assert data.canonical == ["CCN", "O=C(O)C=CC(=O)O", "CC(C)=O", "CCN"] and told(data).changed_items == 3
    counts = {remark.what: remark.count for remark in told(data).changed}
    assert counts == {"all but the largest fragment removed": 2, "charges neutralised": 1, "stereo removed": 1}


def test_stereo_is_refused_where_it_may_not_be_dropped(tmp_path: Path) -> None:
    data = loaded(tmp_path, [*SMILES, "C[C@H](N)O", "C[C@H](C)N"], drop_stereo=False)
    assert only(told(data).dropped).startswith("has stereo (datamodule.source.drop_stereo=true removes it) | line 21")
    assert data.smiles[-1] == "C[C@H](C)N"  # that atom has two equal neighbours and no stereo


def test_the_first_bad_molecule_is_refused_with_the_key_that_accepts_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"line 2: 'CCO\.CCN' is a salt .*\.keep_largest_fragment=true .*skip_bad=true"):
        loaded(tmp_path, ["CCO", "CCO.CCN"], skip_bad=False)


def test_a_file_without_a_usable_molecule_gives_the_reasons(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        loaded(tmp_path, ["[Na+].[Cl-]", "[K+].[Br-]", "xyz"])
    assert str(caught.value).startswith(f"no molecule of {tmp_path / 'my.smiles'} can be used: 2: is a salt or mixture")
    assert "as line 1: '[Na+].[Cl-]'; 1: does not parse, as line 3: 'xyz'" in str(caught.value)


def test_rare_elements_are_dropped_and_listed(tmp_path: Path) -> None:
    common = [f"{'C' * n}O" for n in range(1, 9)] + [f"{'C' * n}[Si](C)(C)C" for n in range(1, 6)]
    lines = [*common, "[U]", "C[SeH]", "C[SeH]", "C[SeH]", "C[SeH]", "[SeH]C", "CC[SeH]", "CBr"]
    data = loaded(tmp_path, lines, rare_below=5)
    assert data.vocabulary.elements == ["C", "O", "Si"] and data.smiles == common
    assert "elements of fewer than 5 different molecules: Se 2, Br 1, U 1" in " ".join(told(data).notes)
    assert [remark.count for remark in told(data).dropped] == [8] and told(data).dropped[0].what.startswith(
        "has a rare element (datamodule.source.rare_below"
    )
    assert loaded(tmp_path, lines, rare_below=2).vocabulary.elements == ["C", "O", "Si", "Se"]
    chosen = loaded(tmp_path, lines, elements=["Se", "C"], rare_below=5)
    assert chosen.vocabulary.elements == ["C", "Se"] and len(chosen.smiles) == 6
    assert "Si" in (chosen.folder / "bad.txt").read_text()


def test_elements_that_are_none_are_refused(tmp_path: Path) -> None:
    for wrong in (["H", "C"], ["Xx"]):
        with pytest.raises(UserError, match="hydrogen is left to the valences"):
            loaded(tmp_path, SMILES, elements=wrong)


def test_ones_own_molecules_of_up_to_so_many_atoms(tmp_path: Path) -> None:
    data = loaded(tmp_path, SMILES, max_atoms=3, elements=list("CNOF"))
    assert data.nodes.shape[1] == 3 and set(data.smiles) == {"CCO", "CC#N", "C1CC1", "CN", "CO", "OC=C", "CCF"}
    with pytest.raises(UserError, match=r"line 2: .* too many atoms: 6, and at most 3 fit \(datamodule"):
        loaded(tmp_path, SMILES, max_atoms=3, skip_bad=False)


def test_every_file_and_setting_has_a_folder(tmp_path: Path) -> None:
    folders = [
        loaded(tmp_path, SMILES).folder, loaded(tmp_path, [*SMILES, "CCCC"]).folder,
        loaded(tmp_path, SMILES, "other.smi").folder, loaded(tmp_path, SMILES, neutralise=True).folder,
        loaded(tmp_path, SMILES, limit=9).folder, loaded(tmp_path, SMILES, split="scaffold").folder,
    ]  # fmt: skip
    assert len(set(folders)) == 6 and all(folder.name.startswith("prepared_") for folder in folders)
    others: list[dict[str, Any]] = [{}, {"seed": 0}, {"split": "random"}, {"held_out_share": 0.4}]
    for options in others:
        assert loaded(tmp_path, SMILES, **options).folder == folders[0]


def test_the_report_is_told_once_and_kept_for_the_record(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    loaded(tmp_path, [*SMILES, "C1CC", "C[C@H](N)F"])
    source = partial(load, file=tmp_path / "my.smiles", workers=1, rare_below=1, held_out_share=0.3)
    datamodule = MoleculeDataModule("smiles_file", source, str(tmp_path / "data"), 2, 0)
    capfd.readouterr()
    datamodule.setup("fit")
    datamodule.setup("test")
    lines = capfd.readouterr().out.splitlines()
    assert lines[:3] == [
        "my.smiles: 22 molecules read, 20 kept as written, 1 kept changed, 1 dropped",
        "  changed 1: stereo removed, as line 22: 'C[C@H](N)F' -> 'CC(N)F'",
        "  dropped 1: does not parse, as line 21: 'C1CC'",
    ]
    assert lines[3].startswith("  split: 15 train, 6 val (by canonical SMILES, seed 0)")
    assert datamodule.reading is not None and datamodule.reading.lines() == lines


def test_a_sample_is_said(tmp_path: Path) -> None:
    data = loaded(tmp_path, SMILES, limit=9, seed=3)
    assert told(data).read == 9 and "a sample of 20 molecules, drawn with seed 3" in told(data).notes


# ---- splits


def sides(data: MolecularData) -> tuple[set[str], set[str]]:
    """Returns the molecules of both splits."""
    train, held_out = ({data.canonical[row] for row in rows} for rows in (data.train_index, data.valid_index))
    return train, held_out


def spellings(text: str, count: int, seed: int = 0) -> list[str]:
    """Returns other SMILES of a molecule: random orders of atoms, Kekule forms, explicit hydrogens."""
    molecule = Chem.MolFromSmiles(text)
    texts = Chem.MolToRandomSmilesVect(molecule, count, randomSeed=seed + 1)
    kekule = Chem.Mol(molecule)
    Chem.Kekulize(kekule, clearAromaticFlags=True)
    others = [Chem.MolToSmiles(kekule, kekuleSmiles=True), Chem.MolToSmiles(Chem.AddHs(molecule))]
    return [*texts, *others, Chem.MolToSmiles(molecule, allHsExplicit=True, canonical=False)]


@pytest.mark.parametrize("seed", range(3))
def test_a_molecule_in_other_spellings_is_on_one_side(seed: int, tmp_path: Path) -> None:
    lines = [text for smiles in SMILES for text in spellings(smiles, 3)]
    data = loaded(tmp_path, lines, seed=seed)
    train, held_out = sides(data)
    assert not train & held_out and told(data).shared == 0 and len(held_out) > 2
    assert len(written(data)) == len(SMILES) and len(data.smiles) == len(lines) and not told(data).dropped
    assert any("100 are the molecule of an earlier line, as line 2" in note for note in told(data).notes)
    one_each = loaded(tmp_path, lines, drop_duplicates=True)
    assert one_each.canonical == [canonical_smiles(Chem.MolFromSmiles(text)) for text in SMILES]
    assert told(one_each).dropped[0].what == "is the molecule of an earlier line" and told(one_each).read == len(lines)


def test_a_random_split_says_what_is_on_both_sides(tmp_path: Path) -> None:
    data = loaded(tmp_path, SMILES * 5, split="random")
    train, held_out = sides(data)
    assert told(data).shared == sum(data.canonical[row] in train for row in data.valid_index) > 9
    assert held_out <= train and "30 val (random, seed 0); " in " ".join(told(data).lines())


def test_a_random_split_is_of_the_rows_of_the_file_as_older_checkpoints_had_it(tmp_path: Path) -> None:
    lines = ["C1CC", "CCO.CCN", *SMILES]
    data = loaded(tmp_path, lines, split="random", seed=4)
    held_out = [lines[row] for row in seeded_split(len(lines), 0.3, 4) if row > 1]
    assert [data.smiles[row] for row in data.valid_index] == held_out


@pytest.mark.parametrize(
    ("text", "encoded"),
    [("CC(C)O", None), ("C[C@H](N)F", "CC(N)F"), ("CC(=O)[O-]", "CC(=O)O"), ("[Na+].[Cl-]", ""),
     ("CN(=O)=O", "C[N+](=O)O")],
)  # fmt: skip
def test_a_molecule_of_a_prediction_that_the_published_encoding_changes(text: str, encoded: str | None) -> None:
    vocabulary = of_elements("any", ["C", "N", "O", "F", "Na", "Cl"], 5)
    assert encoded_as(text, *encode(text, vocabulary), vocabulary) == encoded


def test_a_scaffold_is_on_one_side(tmp_path: Path) -> None:
    rings = "c1ccccc1", "c1ccncc1", "C1CCCC1", "c1ccsc1", "C1CCNCC1", "c1ccoc1", "c1ccc2ccccc2c1", "C1CC1"
    lines = [f"{'C' * n}{ring}" for ring in rings for n in range(6)] + [f"{'C' * n}O" for n in range(1, 9)]
    data = loaded(tmp_path, lines, split="scaffold")
    texts = (data.folder / "groups.txt").read_text().splitlines()
    train, held_out = ({texts[row] for row in rows} for rows in (data.train_index, data.valid_index))
    assert not train & held_out and len(train | held_out) == len(rings) + 8
    assert len(data.valid_index) / len(lines) == pytest.approx(0.3, abs=0.1)
    with pytest.raises(UserError, match=r"no molecule is left for the val split of 6 .*scaffold.*\(1 different\)"):
        loaded(tmp_path, lines[:6], split="scaffold")


def test_a_column_says_the_split(tmp_path: Path) -> None:
    marks = ["train", "test", "train", "valid"] * 5
    table = "".join(f"{text},{mark}\n" for text, mark in zip(SMILES, marks, strict=True))
    by_column = {"name": "my.csv", "split": "column", "split_column": "SPLIT"}
    data = loaded(tmp_path, f"SMILES,SPLIT\n{table}", **by_column)
    assert data.train_index.tolist() == list(range(0, 20, 2)) and told(data).splits == {"train": 10, "val": 10}
    with pytest.raises(UserError, match=r"column 'SPLIT' .*: item 21 has 'odd'; expected train, val, valid, test"):
        loaded(tmp_path, f"SMILES,SPLIT\n{table}CCCl,odd\n", **by_column)
    with pytest.raises(UserError, match=r"there is no column 'SPLIT', only 'SMILES', 'x'; give .*split_column"):
        loaded(tmp_path, "SMILES,x\nCCO,3\n", **by_column)
    with pytest.raises(UserError, match="split=column needs a table"):
        loaded(tmp_path, SMILES, split="column", split_column="SPLIT")
    with pytest.raises(UserError, match="belong together"):
        loaded(tmp_path, SMILES, split="column")


def test_one_molecule_cannot_be_split(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no molecule is left for the val split of 3 .* \(1 different\)"):
        loaded(tmp_path, ["CCO", "OCC", "C(O)C"])


# ---- the same content in other files


def same(tmp_path: Path, content: bytes, name: str, **options: Any) -> MolecularData:
    (tmp_path / name).write_bytes(content)
    return load(tmp_path / "data", file=tmp_path / name, workers=1, rare_below=1, held_out_share=0.3, **options)


LINES = "\n".join(SMILES) + "\n"
TABLE = "smiles,x\n" + "".join(f"{text},1\n" for text in SMILES)
FILES: dict[str, tuple[bytes, str]] = {
    "line ends of Windows": (LINES.replace("\n", "\r\n").encode(), "a.smi"),
    "line ends of old Macs": (LINES.replace("\n", "\r").encode(), "a.smi"),
    "a byte-order mark": (LINES.encode("utf-8-sig"), "a.smi"),
    "no last line end": (LINES.rstrip().encode(), "a.smi"),
    "blank lines": (LINES.replace("\n", "\n\n  \n").encode(), "a.smi"),
    "names": (LINES.replace("\n", " a |name\n").encode(), "a.smi"),
    "names after tabs": (LINES.replace("\n", "\tCCCCC\n").encode(), "a.txt"),
    "blanks around": (("  " + LINES.replace("\n", "  \n ")).encode(), "a.smi"),
    "a header": (f"smiles\n{LINES}".encode(), "a.smi"),
    "a header with names": (f"SMILES zinc_id\n{LINES}".encode(), "a.smi"),
    "another order": ("\n".join(SMILES[::-1]).encode(), "a.smi"),
    "other spellings": ("\n".join(spellings(text, 1)[0] for text in SMILES).encode(), "a.smi"),
    "Kekule forms": ("\n".join(spellings(text, 1)[1] for text in SMILES).encode(), "a.smi"),
    "hydrogens": ("\n".join(spellings(text, 1)[2] for text in SMILES).encode(), "a.smi"),
    "a table": (TABLE.encode(), "a.csv"),
    "a table of Excel": (TABLE.replace("\n", "\r\n").encode("utf-8-sig"), "a.csv"),
    "a quoted table": (TABLE.replace(",1", '",1').replace("\n", '\n"').removesuffix('"').encode(), "a.csv"),
    "a table with tabs": (TABLE.replace(",", "\t").encode(), "a.tsv"),
    "a column in capitals": (TABLE.replace("smiles,x", " SMILES ,smiles_id").encode(), "a.csv"),
    "names in the column": (TABLE.replace(",1", " name,1").encode(), "a.csv"),
}  # fmt: skip


@pytest.mark.parametrize("how", FILES)
def test_the_same_molecules_in_another_file_give_the_same_arrays(how: str, tmp_path: Path) -> None:
    content, name = FILES[how]
    data, expected = same(tmp_path, content, name), loaded(tmp_path, SMILES)
    assert written(data) == written(expected) and told(data).as_written == told(data).read == len(SMILES)
    train, held_out = sides(data)
    assert not train & held_out and len(held_out) == 6
    if how != "another order":
        assert data.canonical == expected.canonical and np.array_equal(data.valid_index, expected.valid_index)


def test_other_molecules_give_other_arrays(tmp_path: Path) -> None:
    """Isomers, tautomers and neighbours in a row of homologues are other molecules."""
    pairs = ["CCO", "COC", "CC=O", "C=CO", "CCCO", "CC(C)O", "Oc1ccccn1", "O=c1cccc[nH]1", "CC#N", "[C-]#[N+]C", "CCN"]
    data = loaded(tmp_path, pairs)
    assert len(written(data)) == len(pairs) - 1 and len(set(data.canonical)) == len(data.canonical)


ALTERNATING = [  # with RDKit 2025.03 the canonical SMILES changed each time that it was parsed and written again
    "O=C=NC1=CC2C3=C(C=C1)C2=C(N=C=O)C=C3",
    "CC(C)(C)c1ccc2c(c1)c1cc3ccc1n2-c1ccc(C#N)cc1-c1ccncc1-n1c2ccc(cc2c2cc(C(C)(C)C)ccc21)-c1ccccc1-c1ccccc1-3",
]


@pytest.mark.parametrize("text", ALTERNATING)
def test_a_molecule_without_a_settled_canonical_smiles_is_on_one_side(text: str, tmp_path: Path) -> None:
    second = canonical_smiles(Chem.MolFromSmiles(text))
    data = loaded(tmp_path, [*SMILES, text, second, *spellings(text, 3)], max_atoms=60)
    assert len(set(data.canonical)) == len(SMILES) + 1


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ("smiles,logp\nCCO,1\n", "a.smi", "line 1 is the header of a table: rename the file to .csv or .tsv"),
        ("id\tsmiles\nx\tCCO\n", "a.txt", "line 1 is the header of a table"),
        ("CCO,ethanol\nCCN,amine\n", "a.smi", "as line 1: 'CCO,ethanol': a table needs the suffix .csv or .tsv"),
        ("id,structure\n1,CCO\n", "a.csv", "no column 'smiles', only 'id', 'structure'; give datamodule.source.column"),
        ("Smiles,SMILES\nCCO,CCN\n", "a.csv", "no column 'smiles'"),
        ("smiles\n", "a.csv", "has no molecule"),
        ("\n\n", "a.smi", "has no molecule"),
        ("CHEMBL1 CCO\nCHEMBL2 CCN\n", "a.smi", "can be used: 2: does not parse, as line 1: 'CHEMBL1'"),
    ],
)
def test_a_file_of_another_form_is_refused(content: str, name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        loaded(tmp_path, content, name)


def test_another_column_holds_the_smiles(tmp_path: Path) -> None:
    table = "smiles,clean\n" + "".join(f"x,{text}\n" for text in SMILES) + "x,\n"
    data = loaded(tmp_path, table, "a.csv", column="clean")
    assert data.smiles == SMILES and only(told(data).dropped) == "has no SMILES | line 22: ''"
