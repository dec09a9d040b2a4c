"""Every data set that is prepared: by another version, with other options, of damaged files.

Image folders and the sentences of a file are read by each process, not prepared.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from src.datamodules.clicks.feature_spec import FILE
from src.datamodules.clicks.own import ClickColumns, ClickFileDataModule
from src.datamodules.clicks.prepare import Sizes, prepare_criteo
from src.datamodules.clicks.synthetic_files import generate
from src.datamodules.download import sha256_of
from src.datamodules.graphs import files, qm9, qm9_dgl
from src.datamodules.images.cifar10 import CIFAR10DataModule
from src.datamodules.molecules import qm9 as qm9_molecules
from src.datamodules.molecules import smiles_file, zinc250k
from src.datamodules.prepared import META
from src.datamodules.text.sst2 import SST2DataModule
from src.errors import UserError
from src.printable import printable
from tests.datamodules.graphs.test_qm9 import write_npz
from tests.datamodules.images.test_cifar10 import write_python
from tests.support import criteo_rows, qm9_rows, sst2_rows
from tests.support.tiny_run import write_smiles
from tests.support.tiny_se3 import write_molecules

pytestmark = pytest.mark.slow  # half a minute together
Prepare = Callable[..., object]
LAYOUTS = 0, 99  # an older and a newer one
PLAIN: dict[str, Any] = {"name": "own", "batch_size": 4, "seed": 0}


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with small raw data of every data set."""
    home = tmp_path_factory.mktemp("raw")
    write_smiles(home / "my.smiles")
    shutil.copy(home / "my.smiles", home / "zinc250k.smiles")
    write_molecules(home / "chains.csv")
    sst2_rows.write_vocabulary(home / "words")
    sst2_rows.write_vocabulary(home / "more_words", (*sst2_rows.PIECES, "##er"))
    sst2_rows.write_files(home / "sst2")
    criteo_rows.write(home / "train.txt", criteo_rows.lines(300, 0))
    (home / "clicks.csv").write_text("label,age,site\n" + "1,3,a\n0,4,b\n" * 10)
    for name in ("cifar", "more_cifar"):
        (home / name).mkdir()
        write_python(home / name)
    members = qm9_rows.write_package(home / "qm9")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(qm9, "MEMBERS", members)
        patch.setattr(qm9_molecules, "MEMBERS", members)
        patch.setattr(zinc250k, "SHA256", sha256_of(home / "zinc250k.smiles"))
        write_npz(home / "dgl.npz", qm9.load(home / "for_dgl", mirror=home / "qm9", workers=1))
        yield home


def sst2(raw: Path, data: Path, words: str = "words") -> None:
    options = {**PLAIN, "vocabulary": str(raw / words), "raw": str(raw / "sst2")}
    SST2DataModule(**options, data_dir=str(data)).prepare_data()


def click_file(raw: Path, data: Path, **options: Any) -> None:
    source = ClickColumns(str(raw / "clicks.csv"), numerical=["age"], categorical=["site"], **options)
    ClickFileDataModule(**PLAIN, data_dir=str(data), source=source).prepare_data()


def cifar10(raw: Path, data: Path, source: str = "cifar") -> None:
    options = {**PLAIN, "num_classes": 10, "image_size": 32}
    CIFAR10DataModule(**options, data_dir=str(data), source=str(raw / source)).prepare_data()


def criteo(raw: Path, data: Path, **options: Any) -> None:
    small = Sizes(span_bytes=20_000, rows=100)
    prepare_criteo(raw / "train.txt", data / "out", **{"frequency_limit": 2, "workers": 1, "sizes": small, **options})


# How each is prepared, and other options of it.
CASES: dict[str, tuple[Prepare, dict[str, Any]]] = {
    "zinc250k": (lambda raw, data, **more: zinc250k.load(data, mirror=raw, workers=1, **more), {"limit": 9}),
    "qm9": (lambda raw, data, **more: qm9.load(data, mirror=raw / "qm9", workers=1, **more), {"limit": 5}),
    "qm9_dgl": (lambda raw, data, **more: qm9_dgl.load(data, file=raw / "dgl.npz", workers=1, **more), {"limit": 5}),
    "qm9_molecules": (
        lambda raw, data, **more: qm9_molecules.load(data, mirror=raw / "qm9", workers=1, **more),
        {"max_atoms": 12},
    ),
    "smiles_file": (
        lambda raw, data, **more: smiles_file.load(data, file=raw / "my.smiles", workers=1, rare_below=1, **more),
        {"max_atoms": 12},
    ),
    "molecule_file": (
        lambda raw, data, **more: files.load(data, file=raw / "chains.csv", workers=1, **more),
        {"charge": 1},
    ),
    "sst2": (sst2, {"words": "more_words"}),
    "criteo": (criteo, {"frequency_limit": 3}),
    "criteo_synthetic": (
        lambda raw, data, **more: generate(
            data / "out", **{"train_rows": 64, "test_rows": 16, "cardinalities": [5, 9], **more}
        ),
        {"train_rows": 65},
    ),
    "click_file": (click_file, {"buckets": 7}),
    "cifar10": (cifar10, {"source": "more_cifar"}),
}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", CASES)
def test_other_options_never_get_these_data(name: str, raw: Path, tmp_path: Path) -> None:
    prepare, options = CASES[name]
    prepare(raw, tmp_path / "data")
    before = contents(tmp_path / "data")
    try:
        prepare(raw, tmp_path / "data", **options)
    except UserError as error:
        assert "\n" not in str(error)
        assert contents(tmp_path / "data") == before
        return
    prepare(raw, tmp_path / "fresh", **options)
    fresh, after = contents(tmp_path / "fresh"), contents(tmp_path / "data")
    assert fresh != before and after == before | fresh


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [name for name in CASES])
def test_data_of_another_version_are_refused(name: str, layout: int, raw: Path, tmp_path: Path) -> None:
    prepare, data = partial(CASES[name][0], raw, tmp_path / "data"), tmp_path / "data"
    prepare()
    (path,) = [path for path in data.rglob("*") if path.name == META] or data.rglob(FILE)
    content = yaml.safe_load(path.read_text())
    origin = content if path.name == META else content["metadata"].get("origin") or content["metadata"]["synthetic"]
    key = "layout" if "layout" in origin else "version"
    assert origin[key] not in LAYOUTS
    origin[key] = layout
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"was (prepared from|generated with) other .*: delete it") as caught:
        prepare()
    assert str(path.parent) in str(caught.value)


def halved(content: bytes) -> bytes:
    return content[: len(content) // 2]


def with_a_flipped_bit(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "halved": halved,
    "without its last byte": lambda content: content[:-1],
    "with a flipped bit": with_a_flipped_bit,
    "zeros": lambda content: bytes(len(content)),
    "a web page": lambda content: b"<!DOCTYPE html>\n<html><body>log in first</body></html>\n",
    "with zeros at its end": lambda content: halved(content) + bytes(len(content) - len(content) // 2),
}
# A file of each that is damaged, and whether any change of it must be noticed.
INPUTS = {
    "zinc250k": ("zinc250k.smiles", True), "qm9": ("qm9/qm9_part2.csv", True), "qm9_dgl": ("dgl.npz", False),
    "qm9_molecules": ("qm9/qm9_part2.csv", True), "smiles_file": ("my.smiles", False),
    "molecule_file": ("chains.csv", False), "sst2": ("sst2/train.tsv", False), "criteo": ("train.txt", False),
    "click_file": ("clicks.csv", False), "cifar10": ("cifar/data_batch_1", False),
}  # fmt: skip


@pytest.mark.parametrize("name", INPUTS)
def test_damaged_files_are_refused_by_name_or_hold_valid_data(name: str, raw: Path, tmp_path: Path) -> None:
    file, is_verified = INPUTS[name]
    shutil.copytree(raw, tmp_path / "raw")
    path = tmp_path / "raw" / file
    content = path.read_bytes()
    others = {f"that of {other}": (raw / source).read_bytes() for other, (source, _) in INPUTS.items()}
    others = {key: other for key, other in others.items() if other != content}
    for damage, damaged in {**{key: change(content) for key, change in DAMAGES.items()}, **others}.items():
        path.write_bytes(damaged)
        data = tmp_path / damage
        try:
            CASES[name][0](tmp_path / "raw", data)
        except UserError as error:
            line = str(error)
            assert path.name in line and printable(line) == line and "\n" not in line, (damage, line)
            assert not [left for left in data.rglob("*") if left.name == META or left.suffix == ".tmp"], damage
        else:
            is_same_kind = any(word in damage for word in ("halved", "last byte", "flipped", "that of", "its end"))
            assert is_same_kind and not is_verified, damage


def test_arrays_swapped_between_two_data_sets_are_refused(raw: Path, tmp_path: Path) -> None:
    prepare = CASES["smiles_file"][0]
    prepare(raw, tmp_path)
    (folder,) = [path.parent for path in tmp_path.rglob(META)]
    np.save(folder / "nodes.npy", np.load(folder / "nodes.npy")[::-1])
    with pytest.raises(UserError, match=r"nodes\.npy is missing, truncated or altered: delete"):
        prepare(raw, tmp_path)
