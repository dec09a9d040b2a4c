"""CIFAR-10 in each of its forms: the images are the same, and damaged files are named."""

import os
import pickle
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from src.datamodules.images.cifar10 import CIFAR10DataModule
from src.datamodules.images.cifar10_files import CLASSES, Labelled, read_cifar10
from src.errors import UserError
from tests.support.batches import batches_of
from tests.support.tiny_mobilenet import encoded


def images(number: int, seed: int) -> Labelled:
    """Random images; the classes alternate."""
    pixels = np.random.default_rng(seed).integers(0, 256, (number, 32, 32, 3), np.uint8)
    return Labelled(pixels, np.arange(number) % 10)


PARTS = {"data_batch_1": images(12, 1), "data_batch_2": images(12, 2), "test_batch": images(10, 3)}
TRAIN = Labelled(*(np.concatenate([PARTS[f"data_batch_{n}"][i] for n in (1, 2)]) for i in range(2)))


def planes(pixels: np.ndarray) -> np.ndarray:
    return pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1)


def write_binary(folder: Path) -> None:
    for name, (pixels, labels) in PARTS.items():
        records = np.concatenate([labels[:, None].astype(np.uint8), planes(pixels)], 1)
        (folder / f"{name}.bin").write_bytes(records.tobytes())
    (folder / "batches.meta.txt").write_text("airplane\n")


def write_python(folder: Path) -> None:
    for name, (pixels, labels) in PARTS.items():
        (folder / name).write_bytes(as_python_2(planes(pixels), bytes(labels.tolist())))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": ["airplane"]}))


def as_python_2(data: np.ndarray, labels: bytes) -> bytes:
    """{"data": data, "labels": labels} as Python 2 with its numpy pickled them, opcode by opcode."""
    sizes = b"".join(b"J" + struct.pack("<i", size) for size in data.shape) + b"\x86"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNN" + 2 * b"J\xff\xff\xff\xff" + b"K\x00tb"
    contents = b"T" + struct.pack("<i", data.size) + data.tobytes()
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01"
    array += sizes + dtype + b"\x89" + contents + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(U\x04data" + array + b"U\x06labels" + numbers + b"u."


def write_images(folder: Path) -> None:
    for split, (pixels, labels) in {"train": TRAIN, "test": PARTS["test_batch"]}.items():
        for row, (image, label) in enumerate(zip(pixels, labels, strict=True)):
            file = folder / split / CLASSES[label] / f"{row:04}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(encoded(Image.fromarray(image), "PNG"))
    (folder / "README.md").write_text("CIFAR-10 as images\n")


FORMS: dict[str, Callable[[Path], None]] = {"binary": write_binary, "python": write_python, "images": write_images}


def written(home: Path, form: str, archive: str | None = None) -> Path:
    """Returns the folder of a form, or an archive of it."""
    folder = home / "cifar-10"
    folder.mkdir()
    FORMS[form](folder)
    if archive is None:
        return folder
    file = home / f"cifar-10.tar.{archive}"
    with tarfile.open(file, f"w:{archive}") as packed:  # type: ignore[call-overload]
        packed.add(folder, "cifar-10")
    return file


def data(home: Path, source: Path | None, **options: Any) -> CIFAR10DataModule:
    settings: dict[str, Any] = {
        "name": "cifar10", "data_dir": str(home / "data"), "batch_size": 8, "seed": 1, "num_classes": 10,
        "image_size": 32, "test_batch_size": 4,
    }  # fmt: skip
    return CIFAR10DataModule(source=None if source is None else str(source), **settings | options)


@pytest.mark.parametrize("archive", [None, "gz", "xz"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_images(form: str, archive: str | None, tmp_path: Path) -> None:
    """Folders of images are read class by class, official files in their own order."""
    splits = read_cifar10(written(tmp_path, form, archive))
    for split, expected in {"train": TRAIN, "test": PARTS["test_batch"]}.items():
        order = np.argsort(expected.labels, kind="stable") if form == "images" else np.arange(len(expected.labels))
        assert np.array_equal(splits[split].labels, expected.labels[order])
        assert np.array_equal(splits[split].pixels, expected.pixels[order])


def test_batches_are_bytes_on_the_device(tmp_path: Path) -> None:
    module = data(tmp_path, written(tmp_path, "binary"))
    module.prepare_data()
    module.setup("fit")
    assert module.splits == {"train": 24, "val": 10} and module.class_names == CLASSES
    batches = list(module.val_dataloader())
    assert [len(batch.labels) for batch in batches] == [4, 4, 2]
    test = PARTS["test_batch"]
    assert np.array_equal(torch.cat([batch.pixels for batch in batches]).numpy(), test.pixels)
    assert np.array_equal(torch.cat([batch.labels for batch in batches]).numpy(), test.labels)
    trained = list(batches_of(module.train_dataloader()))
    assert [batch.pixels.shape for batch in trained] == [(8, 32, 32, 3)] * 3
    seen = {image.numpy().tobytes() for batch in trained for image in batch.pixels}
    assert seen == {image.tobytes() for image in TRAIN.pixels}


def test_prepared_data_need_no_source(tmp_path: Path) -> None:
    source = written(tmp_path, "binary", "gz")
    data(tmp_path, source).prepare_data()
    source.unlink()
    again = data(tmp_path, None)
    again.prepare_data()
    again.setup("fit")
    assert again.splits["train"] == 24


def test_another_source_than_the_prepared_one_is_refused(tmp_path: Path) -> None:
    source = written(tmp_path, "binary", "gz")
    data(tmp_path, source).prepare_data()
    data(tmp_path, source).prepare_data()
    with pytest.raises(UserError, match="was prepared from other files"):
        data(tmp_path, tmp_path / "cifar-10").prepare_data()


def test_damaged_arrays_are_refused(tmp_path: Path) -> None:
    module = data(tmp_path, written(tmp_path, "binary"))
    module.prepare_data()
    (tmp_path / "data" / "prepared" / "train_pixels.npy").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"train_pixels\.npy is missing, truncated or altered"):
        module.setup("fit")


# Ways to damage a source.


def truncate(folder: Path) -> None:
    file = folder / "data_batch_2.bin"
    file.write_bytes(file.read_bytes()[:-5])


def mislabel(folder: Path) -> None:
    file = folder / "data_batch_2.bin"
    file.write_bytes(b"\x0a" + file.read_bytes()[1:])


def enlarge(folder: Path) -> None:
    (folder / "train" / "cat" / "big.png").write_bytes(encoded(Image.new("RGB", (64, 48)), "PNG"))


def rename(folder: Path) -> None:
    (folder / "train" / "cat").rename(folder / "train" / "whale")


def write_no_image(folder: Path) -> None:
    (folder / "test" / "dog" / "bad.jpg").write_bytes(b"no image")


def write_program(folder: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(folder / "harm"),)

    (folder / "data_batch_2").write_bytes(pickle.dumps({"labels": Harm(), "data": Harm()}))


def omit_labels(folder: Path) -> None:
    (folder / "data_batch_2").write_bytes(pickle.dumps({b"data": planes(PARTS["data_batch_2"].pixels)}, protocol=4))


def omit_test(folder: Path) -> None:
    (folder / "test_batch.bin").unlink()


INVALID = "is not a valid CIFAR-10 file"
REFUSED: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "truncated": ("binary", truncate, f"data_batch_2.bin {INVALID} (36871 bytes are not a multiple of 3073)"),
    "label": ("binary", mislabel, f"data_batch_2.bin {INVALID} (a label outside 0 .. 9)"),
    "size": ("images", enlarge, f"train/cat/big.png {INVALID} (64 x 48 pixels instead of 32 x 32)"),
    "class": ("images", rename, f"{INVALID} (there is no class whale)"),
    "no image": ("images", write_no_image, f"test/dog/bad.jpg {INVALID}"),
    "program": ("python", write_program, f"data_batch_2 {INVALID} (it would call posix.mkdir)"),
    "no labels": ("python", omit_labels, f"data_batch_2 {INVALID} (b'labels')"),
    "no test images": ("binary", omit_test, "cifar-10 has no test images of CIFAR-10"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_damaged_source_is_refused(case: str, tmp_path: Path) -> None:
    form, damage, message = REFUSED[case]
    source = written(tmp_path, form)
    damage(source)
    with pytest.raises(UserError) as raised:
        data(tmp_path, source).prepare_data()
    assert message in str(raised.value) and "\n" not in str(raised.value)
    assert not (source / "harm").exists()
    assert not (tmp_path / "data").exists() or not list((tmp_path / "data").iterdir())


def test_a_source_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cifar.tar.gz").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"cifar\.tar\.gz cannot be read as a folder or tar archive"):
        data(tmp_path, tmp_path / "cifar.tar.gz").prepare_data()
    with pytest.raises(UserError, match=r"datamodule\.source=.*gone does not exist"):
        data(tmp_path, tmp_path / "gone").prepare_data()


def test_another_number_of_classes_or_image_size_is_refused(tmp_path: Path) -> None:
    module = data(tmp_path, written(tmp_path, "binary"), num_classes=100)
    module.prepare_data()
    with pytest.raises(UserError, match="CIFAR-10 has 10 classes, 100 are expected"):
        module.setup("fit")
    with pytest.raises(UserError, match=r"datamodule\.image_size=64: CIFAR-10's images have 32 x 32 pixels"):
        data(tmp_path, None, image_size=64)
