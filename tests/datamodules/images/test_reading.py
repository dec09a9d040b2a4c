"""The report of a folder of images: what is kept, changed, dropped and held out; and files that fail later."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from src.datamodules.images.check import has_end, verdict
from src.datamodules.images.decode import load
from src.datamodules.images.folders import ImageFilesDataModule, ImageFolderDataModule
from src.datamodules.images.loader import DecodingLoader, ImageFiles, Unreadable
from src.datamodules.images.rendering import DEFAULT, ORIENTATION
from src.errors import UserError
from src.measure.reading import Reading
from src.training.image_classification import judged
from tests.support.tiny_mobilenet import encoded, picture, write_folders


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder of images: 4 to train and 2 to evaluate of each of three classes."""
    write_folders(tmp_path, 4, 2)
    return tmp_path / "images"


def folders(home: Path, **options: Any) -> ImageFolderDataModule:
    settings: dict[str, Any] = {
        "name": "mine", "data_dir": str(home), "batch_size": 4, "seed": 1, "num_classes": 3, "image_size": 16,
        "threads": 2,
    }  # fmt: skip
    data = ImageFolderDataModule(**settings | options)
    data.prepare_data()
    return data


def reading_of(home: Path, **options: Any) -> Reading:
    reading = folders(home, **options).reading
    assert reading is not None
    return reading


def remarks(reading: Reading) -> dict[str, tuple[int, str]]:
    """Returns count and first example of each remark."""
    return {remark.what: (remark.count, remark.examples[0]) for remark in (*reading.changed, *reading.dropped)}


def write(path: Path, image: Image.Image, **options: Any) -> None:
    image.save(path, **options)


def rotated(path: Path) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    picture(40, 50).save(path, exif=exif.tobytes())


DEEP = Image.fromarray(np.linspace(0, 65535, 400).astype(np.uint16).reshape(20, 20))
CHANGED: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "exif": ("a.jpg", rotated, "turned upright by its EXIF orientation"),
    "alpha": (
        "a.png", lambda path: write(path, picture(9, 9, mode="RGBA")),
        "transparency shown on white (datamodule.background)",
    ),
    "cmyk": (
        "a.jpg", lambda path: write(path, picture(9, 9, mode="CMYK")), "CMYK converted to RGB without a colour profile",
    ),
    "16 bits": ("a.png", lambda path: write(path, DEEP), "grey values 0 to 65535 scaled to 0 to 255"),
    "float": (
        "a.tif", lambda path: write(path, Image.fromarray(np.eye(9, dtype=np.float32))),
        "grey values 0 to 1 scaled to 0 to 255",
    ),
    **{
        f"frames of {suffix}": (
            f"a.{suffix}", lambda path: write(path, picture(9, 9), save_all=True, append_images=[picture(9, 9, 5)]),
            "the first of several frames or pages taken",
        )
        for suffix in ("gif", "png", "webp", "tif")
    },
}  # fmt: skip
DROPPED: dict[str, tuple[str, bytes, str, str]] = {
    "empty": ("a.jpg", b"", "cannot be decoded", "an empty file"),
    "text": ("a.png", b"no image", "cannot be decoded", "no image of a format that is read"),
    "cut jpeg": ("a.jpg", encoded(picture(300, 400))[:4000], "cannot be decoded", "truncated"),
    "cut png": ("a.png", encoded(picture(300, 400), "PNG")[:4000], "cannot be decoded", "truncated"),
    "cut gif": ("a.gif", encoded(picture(300, 400), "GIF")[:4000], "cannot be decoded", "truncated"),
    "cut webp": ("a.webp", encoded(picture(300, 400), "WEBP")[:1000], "cannot be decoded", ""),
    "cut bmp": ("a.bmp", encoded(picture(300, 400), "BMP")[:4000], "cannot be decoded", "truncated"),
    "cut tiff": ("a.tif", encoded(picture(300, 400), "TIFF")[:4000], "cannot be decoded", ""),
    "heic": ("a.heic", b"....ftypheic", "HEIC, which is not read: save it as JPEG", ""),
    "notes": ("a.txt", b"notes", "no image by the end of its name", ""),
}


@pytest.mark.parametrize("case", CHANGED)
def test_what_an_image_becomes_is_told(case: str, home: Path) -> None:
    name, make, what = CHANGED[case]
    make(home / "train" / "bee" / name)
    reading = reading_of(home)
    assert remarks(reading) == {what: (1, f"train/bee/{name}")}
    assert (reading.read, reading.as_written, reading.changed_items) == (19, 18, 1)


@pytest.mark.parametrize("case", DROPPED)
def test_a_file_that_cannot_be_read_is_dropped_before_training(case: str, home: Path) -> None:
    name, data, why, reason = DROPPED[case]
    (home / "train" / "bee" / name).write_bytes(data)
    data_module = folders(home)
    assert data_module.reading is not None
    ((what, (count, example)),) = remarks(data_module.reading).items()
    assert (what, count) == (why, 1) and example.startswith(f"train/bee/{name}") and reason in example
    assert data_module.splits == {"train": 12, "val": 6}
    assert len(list(data_module.train_dataloader())) == 3


def test_links_to_nothing_and_linked_folders_are_dropped(home: Path) -> None:
    (home / "train" / "bee" / "gone.png").symlink_to(home / "nowhere")
    (home / "train" / "bee" / "more").symlink_to(home / "val")
    assert remarks(reading_of(home)) == {
        "cannot be decoded": (1, "train/bee/gone.png: No such file or directory"),
        "no image by the end of its name": (1, "train/bee/more"),
    }


def test_images_in_folders_below_a_class_are_of_the_class(home: Path) -> None:
    (home / "train" / "bee" / "2020" / ".thumbnails").mkdir(parents=True)
    for place in ("2020", "2020/.thumbnails"):
        picture(20, 20).save(home / "train" / "bee" / place / "a.png")
    data = folders(home)
    assert "bee/2020/a.png" in data.file_names("train") and data.splits["train"] == 13


def test_folders_that_archives_add_are_no_classes(home: Path) -> None:
    (home / "train" / "__MACOSX").mkdir()
    assert folders(home).class_names == ["ape", "bee", "cow"]


def test_a_class_without_a_readable_image_is_refused(home: Path) -> None:
    shutil.rmtree(home / "train" / "bee")
    (home / "train" / "bee").mkdir()
    Image.fromarray(np.full((9, 9), 300, np.int32)).save(home / "train" / "bee" / "a.tif")
    with pytest.raises(UserError, match=r"none of the 1 images in .*bee can be read, as .*a\.tif: .*value_range="):
        folders(home)


def test_a_class_of_the_evaluation_may_lose_its_images(home: Path) -> None:
    for file in (home / "val" / "bee").iterdir():
        file.write_bytes(b"")
    reading = reading_of(home)
    assert reading.splits == {"train": 12, "val": 4} and reading.classes["val"] == {"ape": 2, "bee": 0, "cow": 2}


def test_16_bit_images_that_are_nearly_black_are_noted(home: Path) -> None:
    Image.fromarray(np.linspace(0, 4000, 400).astype(np.uint16).reshape(20, 20)).save(home / "train/bee/a.png")
    assert any("4,000 of 65,535" in note and "value_range=[0,4000]" in note for note in reading_of(home).notes)
    assert not any("65,535" in note for note in reading_of(home, value_range=[0, 4000]).notes)


def test_a_check_of_all_files_finds_damage_in_the_middle(home: Path) -> None:
    data = bytearray(encoded(picture(600, 800)))
    middle = len(data) // 2
    data[middle : middle + 200] = bytes(200)
    (home / "train/bee/a.jpg").write_bytes(data)
    assert remarks(reading_of(home)) == {}
    assert "cannot be decoded" in remarks(reading_of(home, check="all"))


def test_a_whole_file_is_known_by_its_end(tmp_path: Path) -> None:
    for kind in ("JPEG", "PNG", "GIF", "WEBP"):
        path = tmp_path / kind
        path.write_bytes(encoded(picture(300, 400), kind))
        with path.open("rb") as file, Image.open(path) as image:
            size = path.stat().st_size
            assert has_end(image, file, size), kind
            assert verdict(path, DEFAULT, is_decoded=True).problem is None


# Splits.


def test_without_a_folder_to_evaluate_a_part_of_train_is_held_out(home: Path) -> None:
    shutil.rmtree(home / "val")
    data = folders(home, held_out_share=0.25)
    assert data.reading is not None and data.reading.classes["val"] == {"ape": 1, "bee": 1, "cow": 1}
    assert "stratified, 0.25 of train held out" in data.reading.split and data.reading.shared == 0
    names = [set(data.file_names(split)) for split in ("train", "val")]
    assert not names[0] & names[1] and len(names[0] | names[1]) == 12
    assert folders(home, held_out_share=0.25, seed=9).file_names("val") == data.file_names("val")
    assert folders(home, held_out_share=0.25, split_seed=9).file_names("val") != data.file_names("val")
    assert len(folders(home, held_out_share=0.25, split="random").file_names("val")) == 3


def test_equal_files_are_held_out_together(home: Path) -> None:
    shutil.rmtree(home / "val")
    for file in list((home / "train").rglob("*.JPEG")):
        shutil.copy(file, file.with_name(f"copy_{file.name}"))
    for seed in range(3):
        data = folders(home, held_out_share=0.3, split_seed=seed)
        assert data.reading is not None and data.reading.shared == 0
        assert "12 files are copies of another one, byte by byte" in data.reading.notes
        val = set(data.file_names("val"))
        assert {name.replace("/", "/copy_") for name in val if "copy" not in name} == {n for n in val if "copy" in n}


def test_equal_files_in_train_and_val_are_counted(home: Path) -> None:
    shutil.copy(home / "train/bee/000.JPEG", home / "val/bee/new.jpg")
    shutil.copy(home / "train/bee/001.JPEG", home / "val/cow/other.jpg")
    reading = reading_of(home)
    assert reading.shared == 2
    assert "2 files are copies of another one, byte by byte" in reading.notes
    assert "1 images stand in two classes, as train/bee/001.JPEG and val/cow/other.jpg" in reading.notes
    assert reading_of(home, train="val").shared == 8  # the same folder for both


def test_a_folder_of_another_name_is_not_overlooked(home: Path) -> None:
    (home / "val").rename(home / "valid")
    with pytest.raises(UserError, match=r"has no folder val: give datamodule\.val=valid, or datamodule\.val=null"):
        folders(home)
    assert folders(home, val="valid").splits == {"train": 12, "val": 6}
    assert sum(folders(home, val=None, held_out_share=0.25).splits.values()) == 12


def test_class_folders_may_lie_directly_in_the_folder(home: Path) -> None:
    assert folders(home / "train", train=".", held_out_share=0.25).splits == {"train": 9, "val": 3}
    with pytest.raises(UserError, match=r"cannot read .*train/train .*datamodule\.train=\. is for class folders"):
        folders(home / "train")


def test_published_images_are_not_held_out_or_dropped(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "train/bee/a.jpg").write_bytes(b"")
    data = folders(home, name="imagenet")
    assert data.reading is None and data.splits["train"] == 13 and not capsys.readouterr().out
    with pytest.raises(UserError, match=r"a\.jpg cannot be decoded"):
        list(data.loader("train"))
    shutil.rmtree(home / "val")
    with pytest.raises(UserError, match=r"cannot read .*val"):
        folders(home, name="imagenet")


# Files that fail once training runs.


def spoil(home: Path, *names: str) -> None:
    for name in names:
        (home / name).write_bytes(b"\xff\xd8\xff damaged")


def pixels_of(batches: Any) -> torch.Tensor:
    return torch.cat([batch.pixels for batch in batches])


def test_another_image_of_the_class_takes_the_place_of_one_that_fails(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = folders(home)
    spoil(home, "train/bee/001.JPEG", "train/bee/002.JPEG")
    capsys.readouterr()
    first = list(data.loader("train", train=True))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and all("another image of its class takes its place" in line for line in lines)
    again = list(folders_like(data).loader("train", train=True))
    assert torch.equal(pixels_of(first), pixels_of(again))
    assert torch.cat([batch.labels for batch in first]).sort()[0].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    centre = DecodingLoader(data.files["train"], 12, size=16, train=True, unreadable=Unreadable())
    centre.begin(torch.arange(12))
    assert torch.equal(centre.batch(0).labels, torch.arange(3).repeat_interleave(4))
    data.teardown("predict")
    data.teardown("predict")
    assert data.reading is not None
    ((what, (count, example)),) = remarks(data.reading).items()
    assert what.startswith("found later") and (count, example) == (2, "train/bee/001.JPEG")


def folders_like(data: ImageFolderDataModule) -> ImageFolderDataModule:
    """Returns another datamodule with the same files, as in a run that is resumed."""
    other = ImageFolderDataModule(
        name="mine", data_dir=str(data.data_dir), batch_size=4, seed=1, num_classes=3, image_size=16, threads=1
    )
    other.files, other.splits = data.files, data.splits
    return other


def test_an_image_that_fails_in_an_evaluation_is_not_judged(home: Path) -> None:
    data = folders(home)
    spoil(home, "val/bee/001.JPEG")
    (batch,) = data.loader("val", batch_size=6)
    assert batch.labels.tolist() == [0, 0, 1, -1, 2, 2] and not batch.pixels[3].any()
    assert data.unreadable_rows("val") == [3]
    logits = torch.eye(3)[[0, 0, 1, 1, 2, 0]]
    kept = [0, 1, 2, 4, 5]
    assert torch.equal(judged(logits, batch.labels), judged(logits[kept], batch.labels[kept]))


def test_a_class_that_is_gone_ends_the_training(home: Path) -> None:
    data = folders(home)
    spoil(home, *(f"train/bee/{row:03}.JPEG" for row in range(4)))
    with pytest.raises(UserError, match="and all other images of its class cannot be read any more"):
        list(data.loader("train", train=True))


def test_unlabelled_images_are_read_alike(tmp_path: Path) -> None:
    rotated(tmp_path / "a.jpg")
    (tmp_path / "b.jpg").write_bytes(b"")
    data = ImageFilesDataModule(
        name="some",
        data_dir=str(tmp_path),
        batch_size=2,
        seed=0,
        num_classes=3,
        image_size=16,
        threads=1,
        predict="all",
    )
    data.prepare_data()
    assert data.reading is not None and set(remarks(data.reading)) == {
        "turned upright by its EXIF orientation", "cannot be decoded",
    }  # fmt: skip
    (batch,) = data.predict_dataloader()
    assert np.array_equal(batch.pixels[0].numpy(), load(tmp_path / "a.jpg", 16))


def test_parts_of_images_keep_their_labels() -> None:
    images = ImageFiles(Path("a"), ["x", "y", "z"], np.array([2, 1, 0]))
    assert images.part([2, 0]).files == ["z", "x"] and images.part([2, 0]).labels.tolist() == [0, 2]
