import json
import threading
from typing import Any

import numpy as np
import pytest
import torch

from src.datamodules.download import sha256_of
from src.datamodules.molecules import qm9 as qm9_molecules
from src.datamodules.molecules import zinc250k
from src.datamodules.molecules.datamodule import MoleculeDataModule, MoleculeLoader
from src.datamodules.molecules.encoded import Row, load, prepare
from src.datamodules.prepared import Selection
from src.datamodules.splits import read_split, seeded_split
from src.errors import UserError
from src.molecules.encode import encode
from src.molecules.vocabulary import QM9, ZINC250K

SMILES = ["CCO", "C[C@H](N)C(=O)O", "c1ccccc1", "CC#N", "C1CC1", "CC(=O)[O-]", "CN", "CO", "OC=C", "CCF"]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def raw(tmp_path):
    path = tmp_path / "raw.smiles"
    path.write_text("\n".join(SMILES) + "\n")
    return path


def prepared_from(raw, selection=None, smiles=None):
    if smiles is not None:
        raw.write_text("\n".join(smiles) + "\n")

    def read():
        return [Row(text, raw, number) for number, text in enumerate(raw.read_text().splitlines(), 1)]

    return prepare([raw], read, QM9, raw.parent / "data", selection or Selection(), workers=1)


def first_half(total):
    return np.arange(total // 2)


@pytest.mark.parametrize("is_prepared", [False, True])
def test_prepared_molecules_are_read_once_and_in_a_thread(is_prepared, raw):
    loads = []

    def source(_folder):
        prepared = prepared_from(raw)
        loads.append(threading.current_thread())
        return load(prepared, QM9, first_half)

    if is_prepared:
        prepared_from(raw)
    datamodule = MoleculeDataModule("own", source, str(raw.parent), batch_size=2, seed=0)
    datamodule.read_ahead()
    datamodule.prepare_data()
    datamodule.setup("fit")
    assert datamodule.tensors is not None and datamodule.data is not None
    assert [thread is threading.main_thread() for thread in loads] == [not is_prepared]
    expected = load(prepared_from(raw), QM9, first_half)
    assert np.array_equal(datamodule.tensors[0], expected.nodes) and np.array_equal(
        datamodule.tensors[1], expected.edges
    )
    assert datamodule.data.smiles == SMILES


def test_prepared_molecules_equal_encoded_molecules(raw):
    prepared = prepared_from(raw)
    data = load(prepared, QM9, first_half)
    assert data.smiles == SMILES
    for position, text in enumerate(SMILES):
        nodes, edges = encode(text, QM9)
        assert np.array_equal(data.nodes[position], nodes) and np.array_equal(data.edges[position], edges)
    assert data.valid_index.tolist() == [0, 1, 2, 3, 4] and data.train_index.tolist() == [5, 6, 7, 8, 9]
    assert data.canonical[:3] == ["CCO", "CC(N)C(=O)O", "c1ccccc1"] and data.published[2] == "C1=CC=CC=C1"
    assert data.train_canonical == {"CC(=O)O", "CN", "CO", "C=CO", "CCF"}
    assert data.train_published == {"CC(=O)O", "CN", "CO", "C=CO", "CCF"}
    assert names(raw.parent / "data") == ["prepared_all"] and data.reading is None


def test_the_most_bonds_of_a_class_leave_out_rare_atoms_and_other_molecules(raw, monkeypatch):
    """Of those for training, so not of fluorine; of 82 carbons one has four bonds."""
    smiles = ["FC", *["CC=O"] * 20, "CC#N", *["CC=O"] * 20]
    data = load(prepared_from(raw, smiles=smiles), QM9, lambda total: np.array([0]))
    carbon, nitrogen = (QM9.atomic_numbers.index(number) for number in (6, 7))
    assert dict(zip(QM9.atomic_numbers, data.most_bonds().tolist(), strict=True)) == {0: 0, 6: 4, 7: 3, 8: 2, 9: 0}
    for rare, most in ((0.01, 4), (0.02, 3)):
        monkeypatch.setattr("src.datamodules.molecules.encoded.RARE", rare)
        assert data.most_bonds()[carbon] == most
    monkeypatch.setattr("src.datamodules.molecules.encoded.COUNTED", 20)
    assert data.most_bonds()[nitrogen] == 0


def test_a_prepared_folder_is_not_prepared_again(raw):
    prepared = prepared_from(raw)
    assert prepare([raw], pytest.fail, QM9, raw.parent / "data", Selection()) == prepared


def test_a_limit_draws_a_sample_that_keeps_its_split(raw):
    data = load(prepared_from(raw, Selection(limit=6, seed=3)), QM9, lambda total: np.array([0, 2, 4, 6, 8]))
    assert len(data.nodes) == 6 and data.smiles == [text for text in SMILES if text in data.smiles]
    for i in data.valid_index:
        assert SMILES.index(data.smiles[i]) % 2 == 0
    for i in data.train_index:
        assert SMILES.index(data.smiles[i]) % 2 == 1
    other = load(prepared_from(raw, Selection(limit=6, seed=4)), QM9, first_half)
    assert other.smiles != data.smiles
    assert load(prepared_from(raw, Selection(limit=99)), QM9, first_half).smiles == SMILES
    with pytest.raises(UserError, match="limit=0"):
        Selection(limit=0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("C1CC", "raw.smiles line 3: 'C1CC' does not parse"),
        ("", "raw.smiles line 3: '' does not parse"),
        ("C[Si]", "raw.smiles line 3: .* outside the vocabulary of qm9_molecules: Si"),
        ("C" * 10, "raw.smiles line 3: .* too many atoms: 10, and at most 9 fit"),
    ],
)
def test_a_bad_molecule_is_refused_and_leaves_no_file(raw, bad, message):
    with pytest.raises(UserError, match=message) as caught:
        prepared_from(raw, smiles=[*SMILES[:2], bad, *SMILES[2:]])
    assert "\n" not in str(caught.value) and "skip_bad=true" in str(caught.value)
    assert names(raw.parent / "data") == []


def test_leaving_out_bad_molecules_keeps_the_others_in_their_split(raw):
    prepared = prepared_from(raw, Selection(skip_bad=True), ["C1CC", *SMILES[:5], "[Na]", *SMILES[5:]])
    data = load(prepared, QM9, lambda total: np.arange(6))
    assert data.smiles == SMILES
    assert [data.smiles[i] for i in data.valid_index] == SMILES[:5]
    assert np.array_equal(data.nodes[9], encode("CCF", QM9)[0])
    bad = (prepared / "bad.txt").read_text().splitlines()
    assert len(bad) == 2 and "line 1:" in bad[0] and "line 7:" in bad[1]
    assert json.loads((prepared / "meta.json").read_text())["bad"] == 2
    assert data.reading is not None and (data.reading.read, data.reading.dropped_items) == (12, 2)


def test_a_file_of_bad_molecules_only_is_refused(raw):
    with pytest.raises(UserError, match=r"no molecule of .*raw.smiles can be encoded: .*line 1: 'C1CC' does not parse"):
        prepared_from(raw, Selection(skip_bad=True), ["C1CC"])
    assert names(raw.parent / "data") == []


def test_an_interrupted_preparation_leaves_no_file(raw, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "save", interrupt)
    with pytest.raises(KeyboardInterrupt):
        prepared_from(raw)
    assert names(raw.parent / "data") == []


def test_a_folder_that_cannot_be_written_is_a_user_error(raw):
    (raw.parent / "data").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        prepared_from(raw)


@pytest.mark.parametrize("name", ["nodes.npy", "edges.npy", "rows.npy", "smiles.txt", "canonical.txt"])
def test_a_truncated_or_altered_file_is_refused(raw, name):
    prepared = prepared_from(raw)
    whole = (prepared / name).read_bytes()
    for broken in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]), None):
        (prepared / name).unlink()
        if broken is not None:
            (prepared / name).write_bytes(broken)
        with pytest.raises(UserError, match=rf"{name} is missing, truncated or altered: delete .*prepared_all"):
            load(prepared, QM9, first_half)
        (prepared / name).write_bytes(whole)
    load(prepared, QM9, first_half)


def test_other_inputs_or_damaged_metadata_are_refused(raw):
    prepared = prepared_from(raw)
    with pytest.raises(UserError, match="prepared from other files"):
        prepared_from(raw, smiles=SMILES[::-1])
    (prepared / "meta.json").write_text("{")
    with pytest.raises(UserError, match=r"meta.json is not JSON .* delete"):
        prepared_from(raw)


def test_an_empty_split_is_refused(raw):
    prepared = prepared_from(raw)
    for held_out, empty in ((np.arange(0), "validation"), (np.arange(10), "training")):
        with pytest.raises(UserError, match=f"the {empty} split of the 10 molecules .* is empty"):
            load(prepared, QM9, lambda total, held_out=held_out: held_out)


def test_row_numbers_of_a_split_file_start_at_1(tmp_path):
    path = tmp_path / "split.json"
    path.write_text("[3, 1, 10]")
    assert read_split(path, 10).tolist() == [0, 2, 9]


@pytest.mark.parametrize(
    ("text", "message"),
    [("[1", "is not JSON"), ('{"a": 1}', "not a JSON list"), ("[1.5]", "not a JSON list"), ("[0]", "has row 0"),
     ("[11]", "has row 11"), ("[2, 2]", "twice")],
)  # fmt: skip
def test_a_wrong_split_file_is_refused(tmp_path, text, message):
    path = tmp_path / "split.json"
    path.write_text(text)
    with pytest.raises(UserError, match=f"split.json.*{message}"):
        read_split(path, 10)


def test_a_seeded_split_has_the_share_and_depends_on_the_seed():
    split = seeded_split(249_455, zinc250k.HELD_OUT_SHARE, 0)
    assert len(np.unique(split)) == 24_887 and split.max() < 249_455
    assert np.array_equal(split, seeded_split(249_455, zinc250k.HELD_OUT_SHARE, 0))
    assert not np.array_equal(split, seeded_split(249_455, zinc250k.HELD_OUT_SHARE, 1))


def test_zinc_drops_the_extra_row_and_uses_the_official_split(tmp_path, monkeypatch):
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    raw = mirror / "zinc250k.smiles"
    raw.write_text("\n".join([*SMILES[:4], "c1ccccc1I", *SMILES[4:]]) + "\n")
    (tmp_path / "split.json").write_text("[1, 5]")
    monkeypatch.setattr(zinc250k, "SHA256", sha256_of(raw))
    monkeypatch.setattr(zinc250k, "EXTRA_ROW", 4)
    data = zinc250k.load(tmp_path / "data", split_file=str(tmp_path / "split.json"), workers=1, mirror=str(mirror))
    assert data.smiles == SMILES and data.vocabulary is ZINC250K
    assert [data.smiles[i] for i in data.valid_index] == [SMILES[0], SMILES[4]]
    drawn = zinc250k.load(tmp_path / "data")
    assert len(drawn.valid_index) == 1 and len(drawn.train_index) == 9
    raw.write_text("CC\n")
    with pytest.raises(UserError, match="altered"):
        zinc250k.load(tmp_path / "elsewhere", mirror=mirror)


def test_molecules_of_up_to_so_many_atoms(tmp_path, monkeypatch):
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    raw = mirror / "zinc250k.smiles"
    small = ["CCO", "ClCCBr", "CC(=O)O", "CN", "CO", "CS", "CF", "CCl"]
    raw.write_text("\n".join(["c1ccccc1", "C[C@@H](N)C(=O)[O-]", *small[:2], "C=C", *small[2:]]) + "\n")
    monkeypatch.setattr(zinc250k, "SHA256", sha256_of(raw))
    monkeypatch.setattr(zinc250k, "EXTRA_ROW", 4)
    few = {"max_atoms": 4, "workers": 1, "mirror": str(mirror)}
    data = zinc250k.load(tmp_path / "data", **few)
    assert data.smiles == small and data.nodes.shape == (8, 4) and data.vocabulary.max_atoms == 4
    assert len(zinc250k.load(tmp_path / "data", mirror=str(mirror)).smiles) == 10
    with pytest.raises(UserError, match="max_atoms=39: give 1 to 38"):
        zinc250k.load(tmp_path / "data", mirror=str(mirror), max_atoms=39)
    with pytest.raises(UserError, match="max_atoms=1: no molecule is that small"):
        zinc250k.load(tmp_path / "data", mirror=str(mirror), max_atoms=1)
    with pytest.raises(UserError, match="give it without max_atoms"):
        zinc250k.load(tmp_path / "data", **few, split_file=str(tmp_path / "split.json"))


def test_qm9_reads_the_smiles_of_all_parts(tmp_path, monkeypatch):
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    members = {}
    for part, smiles in enumerate((SMILES[:3], SMILES[3:6], SMILES[6:])):
        path = mirror / f"qm9_part{part}.csv"
        path.write_text("XYZ_file,Index,SMILES\n" + "".join(f'"a.xyz",{i},"{text}"\n' for i, text in enumerate(smiles)))
        members[f"qm9pack/data/{path.name}"] = sha256_of(path)
    monkeypatch.setattr(qm9_molecules, "MEMBERS", members)
    data = qm9_molecules.load(tmp_path / "data", workers=1, mirror=mirror)
    assert data.smiles == SMILES and data.nodes.shape == (10, 9)
    assert len(data.valid_index) == 1


@pytest.mark.parametrize(("molecules", "sizes"), [(1, [1, 0, 0, 0]), (3, [1, 1, 1, 0]), (6, [2, 2, 1, 1])])
def test_every_rank_has_a_batch_of_an_evaluation(molecules: int, sizes: list[int]) -> None:
    tensors = torch.zeros(8, 3, dtype=torch.uint8), torch.zeros(8, 3, 3, dtype=torch.uint8)
    order: dict[str, Any] = {"shuffle": False, "drop_last": False, "world_size": 4}
    loaders = [MoleculeLoader(tensors, torch.arange(molecules), 5, rank=rank, **order) for rank in range(4)]
    assert [len(loader) for loader in loaders] == [1] * 4
    assert [[len(nodes) for nodes, _ in loader] for loader in loaders] == [[size] for size in sizes]
