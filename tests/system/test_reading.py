"""The one way to read foreign files: what is no file, larger than it can be, or of another kind is one line."""

import io
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from src.datamodules.download import sha256_of
from src.datamodules.images.cifar10_files import read_cifar10
from src.datamodules.images.decode import load
from src.errors import UserError
from src.models.distilbert import weights
from src.system import reading
from src.training.checkpoints import read_checkpoint
from tests.fuzz import binary_readers
from tests.fuzz.test_readers import archives

JSON = reading.read_json, reading.read_yaml


@pytest.mark.parametrize("name", ["fifo", "folder", "device", "missing"])
@pytest.mark.parametrize(
    "read",
    [reading.read_bytes, reading.read_json, reading.read_yaml, reading.read_npy, reading.read_weights, sha256_of,
     lambda path: reading.read_npz(path, ("x",)), lambda path: load(path, 8), read_cifar10],
)  # fmt: skip
def test_what_is_no_file_is_refused_at_once(read: Callable[[Path], object], name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    path = Path("/dev/zero") if name == "device" else tmp_path / name
    with pytest.raises(UserError, match=rf"^cannot read {path} \(|{path} has no train images"):
        read(path)


def test_a_fifo_among_cifars_files_is_refused_and_others_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "readme.txt")
    with tarfile.open(fileobj=io.BytesIO(archives()[0])) as archive:
        archive.extractall(tmp_path, filter="data")
    assert len(read_cifar10(tmp_path)["train"].labels) == 2
    os.mkfifo(tmp_path / "data_batch_2.bin")
    with pytest.raises(UserError, match=r"cannot read .*/data_batch_2\.bin \(it is no regular file\)"):
        read_cifar10(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [("notes.txt", "has no train images"), ("data_batch_1.bin", "data_batch_1.bin has 6,442,450,944 bytes, too many")],
)
def test_a_member_of_6_gb_is_not_read(name: str, message: str, tmp_path: Path) -> None:
    info = tarfile.TarInfo(name)
    info.size = 6 * 2**30
    with (tmp_path / "a.tar").open("wb") as file:
        file.write(info.tobuf())
        file.truncate(512 + info.size + 1024)  # without taking room on the disk
    with pytest.raises(UserError, match=message):
        read_cifar10(tmp_path / "a.tar")


def test_a_header_of_a_tar_archive_cannot_ask_for_all_memory(tmp_path: Path) -> None:
    info = tarfile.TarInfo("long")
    info.size, info.type = 6 * 2**30, tarfile.GNUTYPE_LONGNAME
    with (tmp_path / "a.tar").open("wb") as file:
        file.write(info.tobuf())
        file.truncate(512 + info.size + 1024)
    with pytest.raises(UserError, match=r"a header or file of 6,442,450,944 bytes"):
        read_cifar10(tmp_path / "a.tar")


@pytest.mark.parametrize("read", JSON)
@pytest.mark.parametrize("text", ["[" * 200_000, "[" * 60 + "]" * 60, "[" * 900 + "]" * 900], ids=len)
def test_deep_values_are_refused(read: Callable[[Path], object], text: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text(text)
    with pytest.raises(UserError, match=r"a is not (JSON|YAML) \(.*\): give another file"):
        read(tmp_path / "a")


def test_aliases_that_stand_for_too_much_are_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40))]
    (tmp_path / "a").write_text("\n".join(lines))
    with pytest.raises(UserError, match=r"a is not YAML \(more than 50 values in each other, or 10,000,000 in all\)"):
        reading.read_yaml(tmp_path / "a")
    (tmp_path / "a").write_text("a: &a [*a]")
    with pytest.raises(UserError, match=r"a is not YAML \(a value holds itself\)"):
        reading.read_yaml(tmp_path / "a")
    (tmp_path / "a").write_text("a: &a [1, 2]\nb: *a")  # as NVIDIA's feature_spec.yaml has them
    assert reading.read_yaml(tmp_path / "a") == {"a": [1, 2], "b": [1, 2]}


@pytest.mark.parametrize(
    ("kind", "message"),
    [("encrypted", "is encrypted"), ("lzma", "is compressed in a way that is not read"),
     ("claims", "cannot have the 4,294,967,294 bytes that it claims")],
)  # fmt: skip
def test_archives_that_are_not_read(kind: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(binary_readers.zipped(kind))
    with pytest.raises(UserError, match=message), reading.open_zip(tmp_path / "a.zip") as archive:
        archive.read("SST-2/train.tsv")


def test_an_array_of_more_than_its_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(binary_readers.header((10**12,)))
    for mapped in False, True:
        with pytest.raises(UserError, match=r"8,000,000,000,000 bytes, it has 0"):
            reading.read_npy(tmp_path / "a.npy", mapped=mapped)
    (tmp_path / "a.npz").write_bytes(binary_readers.npzs(x=np.ones(3))[-1])
    with pytest.raises(UserError, match=r"a\.npz: x is no array .*8,000,000,000,000 bytes, it has 0"):
        reading.read_npz(tmp_path / "a.npz", ("x",))


def test_arrays_are_read_as_numpy_reads_them(tmp_path: Path) -> None:
    for array in np.arange(6).reshape(2, 3), np.asfortranarray(np.ones((2, 3))), np.array(3.5), np.ones((0, 4)):
        np.save(tmp_path / "a.npy", array)
        loaded = reading.read_npy(tmp_path / "a.npy")
        np.testing.assert_array_equal(loaded, array)
        assert loaded.dtype == array.dtype and loaded.flags.writeable


@pytest.mark.parametrize("content", [b"text", [1, 2], {3: torch.ones(2)}, {"x": torch.ones(1).expand(10**12)}])
def test_files_of_other_things_than_weights_are_refused(content: object, tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with pytest.raises(UserError, match=r"pytorch_model\.bin(:| is| holds)"):
        weights.read_tensors(str(tmp_path))


def test_a_network_that_its_weights_cannot_hold_is_not_built(tmp_path: Path) -> None:
    (tmp_path / weights.FILES[0]).write_bytes(binary_readers.saved_tensors()[0])
    for config, size in zip(binary_readers.configs()[1:], ("n_layers 1000000", "width 1000000000"), strict=True):
        (tmp_path / weights.CONFIG).write_bytes(config)
        with pytest.raises(UserError, match=rf"{size} .*parameters, which .*{weights.FILES[0]} cannot hold"):
            weights.read_sizes(str(tmp_path))


@pytest.mark.parametrize("in_archive", [False, True])
@pytest.mark.parametrize("pickled", [b"\x80\x02c%s\nx\n.", b"\x80\x02X\x40\x0d\x03\x00%s."], ids=["name", "text"])
def test_a_pickle_with_a_long_text_is_refused_before_torch_searches_it(
    pickled: bytes, in_archive: bool, tmp_path: Path
) -> None:
    """torch matches the message about a name or text of 200,000 characters for minutes."""
    path, content = tmp_path / "pytorch_model.bin", pickled % (b"a" * 200_000)
    if in_archive:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x/data.pkl", content)
    else:
        path.write_bytes(content)
    for read in (reading.read_weights, read_checkpoint):
        with pytest.raises(UserError, match=r"\(it has a text of 200,00. characters\)"):
            read(path)
