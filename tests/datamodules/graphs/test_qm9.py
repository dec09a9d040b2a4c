"""QM9 from the package and from DGL's file: units, split, equal graphs."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import random_split

from src.datamodules.download import sha256_of
from src.datamodules.graphs import qm9, qm9_dgl
from src.datamodules.graphs.data import GraphData, MoleculeError
from src.datamodules.graphs.edges import Edges
from src.errors import UserError
from tests.support.qm9_rows import IDS, write_package

# Targets of methane as in libraries that read MoleculeNet's table (with another digit of the hartree).
METHANE = {
    "mu": 0.0, "alpha": 13.21, "homo": -10.5499, "lumo": 3.1865, "gap": 13.7363, "r2": 35.3641, "zpve": 1.2177,
    "U0": -1101.4878, "U": -1101.4098, "H": -1101.3840, "G": -1102.0229, "Cv": 6.469, "U0_atom": -17.1722,
    "U_atom": -17.2868, "H_atom": -17.3897, "G_atom": -16.1519, "A": 157.7118, "B": 157.7100, "C": 157.7070,
}  # fmt: skip
Load = Callable[..., GraphData]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A folder with the molecules of qm9_rows as the package's files, and prepared; and the checksums."""
    home = tmp_path_factory.mktemp("package")
    members = write_package(home / "mirror")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(qm9, "MEMBERS", members)
        qm9.load(home / "data", mirror=home / "mirror", workers=1)
    return home, members


@pytest.fixture
def load(package: tuple[Path, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Loads these molecules from a copy of that folder."""
    shutil.copytree(package[0], tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(qm9, "MEMBERS", package[1])
    return lambda **options: qm9.load(tmp_path / "data", **{"workers": 1, **options})


def write_npz(path: Path, data: GraphData, **changes: np.ndarray | None) -> Path:
    """Writes molecules in the layout of DGL's file; `changes` replaces arrays, None leaves one out."""
    edges = Edges().of(data.arrays)
    by_source = np.lexsort((edges.dst, edges.src, np.repeat(np.arange(len(edges.num_edges)), edges.num_edges)))
    one_hot = np.equal.outer(data.arrays.numbers, [1, 6, 7, 8, 9])
    arrays: dict[str, np.ndarray | None] = {
        "n_node": data.arrays.num_atoms,
        "n_edge": edges.num_edges,
        "node_attr": np.concatenate([one_hot, data.arrays.numbers[:, None], np.zeros((len(one_hot), 5))], 1),
        "node_pos": data.arrays.positions,
        "edge_attr": np.equal.outer(edges.orders[by_source], [1, 2, 3, 4]).astype(float),
        "src": edges.src[by_source],
        "dst": edges.dst[by_source],
        "targets": data.targets.astype(np.float32),
    }
    kept: dict[str, Any] = {key: array for key, array in (arrays | changes).items() if array is not None}
    np.savez_compressed(path, **kept)
    return path


def test_targets_have_the_published_order_and_units(load: Load) -> None:
    data = load()
    assert list(data.units) == list(METHANE)
    assert [data.units[name] for name in ("mu", "alpha", "homo", "r2", "U0_atom", "Cv", "C")] == [
        "D", "a0^3", "eV", "a0^2", "eV", "cal/mol/K", "GHz",
    ]  # fmt: skip
    np.testing.assert_allclose(data.targets[0], list(METHANE.values()), rtol=2e-7, atol=6e-5)
    assert data.target("homo")[0] == -0.3877 * 27.2113825435
    np.testing.assert_allclose(data.target("U0_atom")[1:3], [-12.0059, -9.2404], atol=6e-5)  # ammonia, water
    with pytest.raises(UserError, match=r"datamodule\.task=humo: there is no such target; choose from mu, alpha, homo"):
        data.target("humo")


def test_the_package_s_files_are_concatenated(load: Load) -> None:
    data = load()
    assert data.names == [f"gdb {number}" for number in IDS]
    assert data.arrays.num_atoms.tolist() == [5, 4, 3, 4, 3, 4, 6, 10]
    assert data.arrays.molecule(4).numbers.tolist() == [6, 7, 1]
    np.testing.assert_allclose(data.arrays.molecule(4).positions[1], [0.0023107217, -0.0191585871, 0.0019287305])
    assert (data.folder / "unmatched.txt").read_text().startswith("gdb 23 C#CC#C does not fit the coordinates")


def test_the_split_is_the_published_one() -> None:
    split = qm9.published_split(130_831)
    parts = random_split(range(130_831), [100_000, 17_748, 13_083], torch.Generator().manual_seed(0))  # type: ignore[arg-type]
    for name, part in zip(("train", "val", "test"), parts, strict=True):
        assert split[name].tolist() == list(part.indices)


def test_molecules_of_a_sample_keep_their_split(load: Load) -> None:
    full, sample = load(), load(limit=5, seed=1)
    assert len(sample.names) == 5
    for name, rows in sample.splits.items():
        assert {sample.names[row] for row in rows} <= {full.names[row] for row in full.splits[name]}
    assert sorted(np.concatenate([sample.splits[name] for name in ("train", "val", "test")])) == [0, 1, 2, 3, 4]


def test_prepared_molecules_need_no_raw_files(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load()
    for path in (tmp_path / "data").glob("*.csv"):
        path.unlink()
    monkeypatch.setattr(qm9, "from_package", pytest.fail)
    again = load()
    for one, other in zip(first.arrays, again.arrays, strict=True):
        np.testing.assert_array_equal(one, other)
    assert again.names == first.names and again.units == first.units


@pytest.mark.parametrize("name", ["positions.npy", "num_bonds.npy", "targets.npy", "rows.npy", "names.txt"])
def test_a_truncated_or_altered_file_is_refused(load: Load, name: str) -> None:
    path = load().folder / name
    whole = path.read_bytes()
    for broken in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1])):
        path.write_bytes(broken)
        with pytest.raises(UserError, match=rf"{name} is missing, truncated or altered: delete .*graphs_all"):
            load()


@pytest.mark.parametrize(
    ("elements", "coordinates", "message"),
    [
        ("['C','Si']", "[[0,0,0],[0,0,1.1]]", "cannot be read: 'Si'"),
        ("['C','O']", "[[0,0,0],[0,0,x]]", "cannot be read: could not convert"),
        ("['C','O']", "[[0,0,0]]", "has 3 coordinates for 2 atoms"),
    ],
)
def test_invalid_elements_and_coordinates_are_refused(elements: str, coordinates: str, message: str) -> None:
    with pytest.raises(MoleculeError, match=message):
        qm9.parse(("[C-]#[O+]", elements, coordinates))


def test_a_broken_table_is_refused(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data" / "qm9_part2.csv"
    path.write_text(path.read_text().replace("-0.2845", "low"))
    monkeypatch.setattr(qm9, "MEMBERS", {f"x/{path.name}": sha256_of(path)})
    with pytest.raises(UserError, match=r"qm9_part2\.csv line \d cannot be read .*'low'"):
        load(limit=99)


def test_dgls_file_gives_the_same_graphs(load: Load, tmp_path: Path) -> None:
    package = load()
    dgl = qm9_dgl.load(tmp_path / "dgl", file=write_npz(tmp_path / "qm9_edge.npz", package), workers=1)
    for name, one, other in zip(package.arrays._fields, package.arrays, dgl.arrays, strict=True):
        np.testing.assert_array_equal(one, other, err_msg=name)
    np.testing.assert_allclose(dgl.targets, package.targets, rtol=1e-7)
    assert dgl.units == package.units and dgl.names[3] == "qm9_edge.npz molecule 3"
    for name, rows in package.splits.items():
        np.testing.assert_array_equal(rows, dgl.splits[name])


def test_a_damaged_file_of_dgl_is_refused(load: Load, tmp_path: Path) -> None:
    data, path = load(), tmp_path / "qm9_edge.npz"

    def refused(**changes: np.ndarray | None) -> str:
        write_npz(path, data, **changes)
        with pytest.raises(UserError) as caught:
            qm9_dgl.load(tmp_path / "dgl", file=path, workers=1)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "qm9_edge.npz has no array src: " in refused(src=None)
    assert "targets has shape (8, 3), expected (8, 19)" in refused(targets=np.zeros((8, 3)))
    assert "node_pos has shape (38, 3), expected (39, 3)" in refused(node_pos=data.arrays.positions[1:])
    whole = write_npz(path, data).read_bytes()
    for broken in (whole[:-100], whole[:600] + bytes([whole[600] ^ 1]) + whole[601:], b"no archive"):
        path.write_bytes(broken)
        with pytest.raises(UserError, match=r"qm9_edge\.npz( is truncated or altered|: node_pos is no array)"):
            qm9_dgl.load(tmp_path / "dgl", file=path, workers=1)
    path.unlink()
    with pytest.raises(UserError, match=r"cannot read .*qm9_edge\.npz"):
        qm9_dgl.load(tmp_path / "dgl", file=path, workers=1)


@pytest.mark.parametrize(
    ("elements", "position", "edges", "message"),
    [
        (
            [0, 0, 0, 0, 0],
            [0, 0, 1],
            [[0, 1, 1], [1, 0, 1]],
            "an atom of no element: atom 2 has atomic number 0",
        ),
        ([1, 0, 0, 0, 0], [0, 0, np.nan], [[0, 1, 1], [1, 0, 1]], "no finite coordinates for atom 2"),
        ([1, 0, 0, 0, 0], [0, 0, 1], [[0, 1, 1]], "a bond without its reverse"),
        ([1, 0, 0, 0, 0], [0, 0, 1], [[0, 1, 1], [1, 0, 2]], "a bond without its reverse"),
        ([1, 0, 0, 0, 0], [0, 0, 1], [[0, 0, 1]], "a bond without its reverse"),
        ([1, 0, 0, 0, 0], [0, 0, 1], [[0, 2, 1], [2, 0, 1]], "does not join two of its 2 atoms"),
    ],
)
def test_a_bad_molecule_in_dgls_file_is_refused(
    elements: list[int], position: list[float], edges: list[list[int]], message: str
) -> None:
    atoms = np.array([[0, 1, 0, 0, 0], elements], float), np.array([[0, 0, 0], position], float)
    with pytest.raises(MoleculeError, match=message):
        qm9_dgl.parse((*atoms, np.array(edges)))
