"""Folders of images as batches: files found, their order, and errors."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from src.datamodules.images.decode import load
from src.datamodules.images.folders import ImageFilesDataModule, ImageFolderDataModule
from src.datamodules.images.loader import DecodingLoader, ImageFiles
from src.errors import UserError
from src.measure.clock import Clock
from tests.support.tiny_mobilenet import CLASSES, encoded, picture, write_folders

NAMES = [f"{name}/{row:03}.JPEG" for name in CLASSES for row in range(12)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("folders")
    write_folders(home)
    return home


def folders(home: Path, **options: Any) -> ImageFolderDataModule:
    settings: dict[str, Any] = {
        "name": "mine", "data_dir": str(home / "images"), "batch_size": 8, "seed": 1, "num_classes": 3,
        "image_size": 32, "threads": 2,
    }  # fmt: skip
    data = ImageFolderDataModule(**settings | options)
    data.prepare_data()
    return data


def loader(home: Path, batch_size: int = 8, train: bool = True, **options: Any) -> DecodingLoader:
    images = ImageFiles(home / "images" / "train", NAMES, np.repeat(np.arange(3), 12))
    return DecodingLoader(images, batch_size, **{"size": 32, "train": train, "threads": 2, **options})


def pixels_of(batches: Any) -> torch.Tensor:
    return torch.cat([batch.pixels for batch in batches])


# Files.


def test_classes_are_the_names_of_the_folders(home: Path) -> None:
    data = folders(home)
    assert data.class_names == list(CLASSES)
    assert data.splits == {"train": 36, "val": 15}
    assert data.file_names("train") == NAMES


def test_the_same_folder_may_be_both_splits(home: Path) -> None:
    """The Paddle harness trains on the validation images."""
    assert folders(home, train="val").splits == {"train": 15, "val": 15}


def test_files_that_are_not_images_are_left_out_and_told(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(home / "images", tmp_path / "images")
    for name in (".hidden.jpg", "notes.txt", "Thumbs.db"):
        (tmp_path / "images" / "train" / "ape" / name).write_bytes(b"not an image")
    for _ in range(2):
        capsys.readouterr()
        assert folders(tmp_path).splits == {"train": 36, "val": 15}
        lines = capsys.readouterr().out.splitlines()
        assert lines == [
            f"{tmp_path / 'images'}: 53 files read, 51 kept as written, 2 dropped",
            "  dropped 2: no image by the end of its name, as train/ape/Thumbs.db",
            "  split: 36 train, 15 val (the folders train and val)",
            "  classes of train: ape 12, bee 12, cow 12",
            "  classes of val: ape 5, bee 5, cow 5",
        ]


# Batches.


def test_an_evaluation_has_every_image_once_in_order(home: Path) -> None:
    batches = list(loader(home, batch_size=7, train=False))
    assert [len(batch.labels) for batch in batches] == [7] * 5 + [1]
    assert torch.cat([batch.labels for batch in batches]).tolist() == [*12 * [0], *12 * [1], *12 * [2]]
    expected = [load(home / "images" / "train" / name, 32) for name in NAMES]
    assert np.array_equal(pixels_of(batches).numpy(), np.stack(expected))
    assert {batch.pixels.dtype for batch in batches} == {torch.uint8}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("prefetch", [1, 9])
def test_threads_and_prefetch_do_not_change_the_batches(home: Path, threads: int, prefetch: int) -> None:
    assert torch.equal(pixels_of(loader(home, threads=threads, prefetch=prefetch)), pixels_of(loader(home)))


def test_training_shuffles_and_crops_differently_in_each_epoch(home: Path) -> None:
    training = loader(home)
    epochs = [list(training) for _ in range(2)]
    assert [len(epoch) for epoch in epochs] == [4, 4]
    labels = [torch.cat([batch.labels for batch in epoch]) for epoch in epochs]
    assert not torch.equal(labels[0], labels[1])
    crops = [{image.numpy().tobytes() for image in pixels_of(epoch)} for epoch in epochs]
    assert len(crops[0] | crops[1]) == 64
    assert not torch.equal(pixels_of(loader(home, seed=7)), pixels_of(loader(home)))


def test_every_image_gets_its_own_random_crop(tmp_path: Path) -> None:
    """One photograph many times: no two crops of it are equal, within a batch or between batches."""
    (tmp_path / "one.jpg").write_bytes(encoded(picture(200, 300)))
    images = ImageFiles(tmp_path, ["one.jpg"] * 24, np.zeros(24, np.int64))
    ranks = [DecodingLoader(images, 4, size=32, train=True, rank=rank, world_size=2) for rank in range(2)]
    assert len({image.numpy().tobytes() for rank in ranks for image in pixels_of(rank)}) == 24


def test_a_resumed_loader_gives_the_remaining_batches(home: Path) -> None:
    uninterrupted = loader(home)
    list(uninterrupted)
    expected = list(uninterrupted)
    interrupted = loader(home)
    list(interrupted)
    batches = iter(interrupted)
    next(batches)
    resumed = loader(home)
    resumed.load_state_dict(interrupted.state_dict())
    assert torch.equal(pixels_of(resumed), pixels_of(expected[1:]))


@pytest.mark.parametrize("train", [True, False])
def test_ranks_divide_the_images(home: Path, train: bool) -> None:
    ranks = [list(loader(home, 6, train, rank=rank, world_size=2)) for rank in range(2)]
    seen = [image.numpy().tobytes() for batches in ranks for image in pixels_of(batches)]
    assert len(seen) == len(set(seen)) == 36


def test_closing_a_loader_early_ends_its_threads(home: Path) -> None:
    import threading

    before = {*threading.enumerate()}  # another test may have left a loader that is not collected yet
    batches = iter(loader(home, prefetch=9))
    next(batches)
    decoding = [thread for thread in threading.enumerate() if thread not in before and "image-decoder" in thread.name]
    batches.close()  # type: ignore[attr-defined]
    assert decoding and not any(thread.is_alive() for thread in decoding)


def test_the_clock_measures_waiting_for_decoders(home: Path) -> None:
    clock = Clock()
    clock.begin_training(torch.device("cpu"))
    list(loader(home, clock=clock))
    clock.end_training()
    assert sum(clock.training_phases_s[phase] for phase in ("fetch", "decode") if phase in clock.training_phases_s) > 0


# Errors.


def without(home: Path, name: str) -> None:
    shutil.rmtree(home / "images" / name)


def emptied(home: Path, name: str) -> None:
    without(home, name)
    (home / "images" / name).mkdir()


REFUSED: dict[str, tuple[Callable[[Path], Any], dict[str, Any], str]] = {
    "no folder": (lambda home: without(home, "train"), {}, "cannot read {images}/train (No such file or directory)"),
    "no class folder": (lambda home: emptied(home, "val"), {}, "{images}/val has no class folders"),
    "an empty class folder": (lambda home: emptied(home, "train/bee"), {}, "{images}/train/bee has no image"),
    "a class that only training has": (
        lambda home: without(home, "val/bee"), {}, "{images}/train/bee is a class that {images}/val does not have",
    ),
    "a class that only the evaluation has": (
        lambda home: without(home, "train/cow"), {}, "{images}/val/cow is a class that {images}/train does not have",
    ),
    "another number of classes": (
        lambda home: None, {"num_classes": 10},
        "{images}/train has 3 classes, 10 are expected: give datamodule.num_classes=3",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_bad_folders_and_settings_are_refused(case: str, home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "images", tmp_path / "images")
    damage, options, message = REFUSED[case]
    damage(tmp_path)
    with pytest.raises(UserError) as raised:
        folders(tmp_path, **options)
    assert message.format(images=tmp_path / "images") in str(raised.value) and "\n" not in str(raised.value)


def test_a_damaged_image_ends_the_loading_with_its_name(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "images", tmp_path / "images")
    (tmp_path / "images" / "train" / "bee" / "003.JPEG").write_bytes(b"\xff\xd8\xff damaged")
    with pytest.raises(UserError, match=r"bee/003\.JPEG cannot be decoded as an image"):
        list(loader(tmp_path))


def test_a_batch_larger_than_the_split_is_refused(home: Path) -> None:
    with pytest.raises(UserError, match=r"hp\.batch_size=40 .* is larger than the training split of 36"):
        loader(home, batch_size=40)


# Images without labels.


def files(folder: Path) -> ImageFilesDataModule:
    return ImageFilesDataModule(
        name="some", data_dir=str(folder), batch_size=2, seed=0, num_classes=3, image_size=16, threads=1, predict="all"
    )


def test_images_are_found_in_all_subfolders(tmp_path: Path) -> None:
    for name in ("b.jpg", "a/z.png", "a/b/c.JPG", "notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(encoded(picture(20, 20), "PNG" if name.endswith("png") else "JPEG"))
    data = files(tmp_path)
    data.prepare_data()
    assert data.file_names("all") == ["b.jpg", "a/z.png", "a/b/c.JPG"]
    assert data.class_names is None
    assert [batch.labels.tolist() for batch in data.predict_dataloader()] == [[-1, -1], [-1]]


@pytest.mark.parametrize(("make", "message"), [(True, "has no image"), (False, "is not a folder")])
def test_a_folder_without_images_is_refused(make: bool, message: str, tmp_path: Path) -> None:
    if make:
        (tmp_path / "pictures").mkdir()
    with pytest.raises(UserError, match=message):
        files(tmp_path / "pictures").prepare_data()


def test_training_on_unlabelled_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no labels to train on; give datamodule=image_folder"):
        files(tmp_path).setup("fit")
