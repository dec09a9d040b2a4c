"""Images that some rank cannot read: all ranks keep the same files, stay in step and tell of the same damage."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import distributed

from src.config.complete import complete
from src.datamodules.images.folders import ImageFolderDataModule
from src.measure.clock import Clock
from src.measure.reading import Reading
from src.run import build, fit, quieten
from tests.support.gloo_ranks import Ranks
from tests.support.ranks_contract import as_one_of_many, config_of, leave
from tests.support.tiny_mobilenet import encoded, picture

pytestmark = pytest.mark.slow
SAMPLES, HELD_OUT = 24, 6


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    group = Ranks(2, tmp_path_factory.mktemp("ranks"))
    yield group
    group.close()


def trained(name: str, home: Path, folders: list[str], *overrides: str) -> tuple[dict[str, Any], Reading]:
    """Trains with a folder of each rank's own; returns the sizes of the splits and the reading."""
    quieten()
    data_dir = f"datamodule.data_dir={folders[distributed.get_rank()]}"
    job = build(complete(config_of(name, home, SAMPLES, HELD_OUT, *overrides, data_dir)), Clock())
    try:
        fit(job)
    finally:
        leave(job)
    assert isinstance(job.datamodule, ImageFolderDataModule)
    assert job.datamodule.reading is not None and job.task.metrics
    return job.datamodule.splits, job.datamodule.reading


def folder_of(home: Path) -> Path:
    config_of("image_folder", home, SAMPLES, HELD_OUT)
    return home / f"{SAMPLES}_{HELD_OUT}" / "images"


def test_all_ranks_keep_the_files_of_rank_0(ranks: Ranks, tmp_path: Path) -> None:
    folder, other = folder_of(tmp_path), tmp_path / "other"
    shutil.copytree(folder, other)
    (other / "train" / "bee" / "001.JPEG").write_bytes(b"")
    folders = [str(folder), str(other)]
    (first, _), (second, _) = ranks(
        as_one_of_many, trained, "image_folder", tmp_path, folders, f"output_dir={tmp_path}/o"
    )
    assert first == second == {"train": SAMPLES, "val": HELD_OUT}


def test_what_fails_on_any_rank_is_in_every_reading(ranks: Ranks, tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    photo = bytearray(encoded(picture(600, 800)))
    middle = len(photo) // 2
    photo[middle : middle + 200] = bytes(200)
    names = [f"train/{name}/{row:03}.JPEG" for name in ("ape", "bee", "cow") for row in (1, 2)]
    for name in [*names, "val/bee/001.JPEG"]:
        (folder / name).write_bytes(photo)
    answers = ranks(as_one_of_many, trained, "image_folder", tmp_path, [str(folder)] * 2, f"output_dir={tmp_path}/o")
    for splits, reading in answers:
        assert splits == {"train": SAMPLES, "val": HELD_OUT}
        counts = {remark.what.split(": ")[1]: remark.count for remark in reading.dropped}
        assert counts == {
            "another image of its class takes its place in training": 6, "it is left out of the evaluation": 1,
        }  # fmt: skip
