"""The fingerprint of every data set: the same for the same samples anywhere, another one for others."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src.config.complete import complete
from src.config.instantiate import instantiate
from src.datamodules.fingerprint import BLOCK_BYTES, BLOCKS, hash_of, of_large_files, of_many_files
from tests.support.ranks_contract import config_of

SAMPLES, HELD_OUT = 12, 3  # of three classes as many each


def swap_lines(file: Path) -> None:
    """Swaps the last two lines."""
    *lines, before, last = file.read_text("utf-8").splitlines()
    file.write_text("".join(f"{line}\n" for line in (*lines, last, before)), "utf-8")


def flip_last_byte(file: Path) -> None:
    """Changes a file and keeps its size."""
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def replace_picture(home: Path) -> None:
    pictures = sorted((home / f"{SAMPLES}_{HELD_OUT}").rglob("train/*/*.png"))
    pictures[0].write_bytes(pictures[1].read_bytes())


BEFORE: dict[str, Callable[[Path], None]] = {  # changes of what is prepared, that leave the number of samples
    "moflow": lambda home: swap_lines(home / "12_3.smiles"),
    "se3_transformer": lambda home: swap_lines(home / "12_3.csv"),
    "distilbert": lambda home: swap_lines(home / "12_3" / "raw" / "train.tsv"),
    "mobilenet_v1": replace_picture,
    "own_clicks": lambda home: swap_lines(home / "12_3.csv"),
}
AFTER: dict[str, Callable[[Path], None]] = {  # changes of what is read while a run trains
    "image_folder": lambda home: flip_last_byte(next((home / "12_3" / "images" / "train").rglob("*.JPEG"))),
}


def fingerprint(
    name: str, home: Path, change: Callable[[Path], None] = lambda home: None, samples: int = SAMPLES
) -> dict[str, Any]:
    config = complete(config_of(name, home, samples, HELD_OUT, "hp.batch_size=1", f"output_dir={home}"))
    datamodule = instantiate(config.datamodule, "datamodule")
    if name in BEFORE:
        change(home)
    datamodule.prepare_data()
    if name in AFTER:
        change(home)
    return datamodule.fingerprint()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*BEFORE, *AFTER])
def test_it_is_that_of_the_samples(name: str, tmp_path: Path) -> None:
    first, again = (fingerprint(name, tmp_path / home) for home in ("a", "b"))
    assert first == again and first["train"] == SAMPLES and len(first["content"]) == 64
    changed = fingerprint(name, tmp_path / "c", (BEFORE | AFTER)[name])
    assert changed["content"] != first["content"] and changed | {"content": ""} == first | {"content": ""}
    fewer = fingerprint(name, tmp_path / "d", samples=9)
    assert fewer["train"] == 9 and fewer["content"] != first["content"]


def test_arrays_and_values_are_told_apart() -> None:
    zeros = np.zeros((2, 2), np.uint8)
    assert hash_of([zeros, {"a": 1}]) == hash_of([zeros.copy(), {"a": 1}])
    others = [zeros, {"a": 2}], [zeros.reshape(4), {"a": 1}], [zeros.astype(np.int8), {"a": 1}], [{"a": 1}, zeros]
    assert len({hash_of(parts) for parts in ([zeros, {"a": 1}], *others)}) == 5


def test_of_many_files_the_sizes_of_all_count(tmp_path: Path) -> None:
    names = [f"{number}.jpg" for number in range(2500)]
    for name in names:
        (tmp_path / name).write_bytes(b"1")
    before = of_many_files(tmp_path, names, 2)
    assert of_many_files(tmp_path, names, 3) == before
    (tmp_path / "1.jpg").write_bytes(b"22")
    assert of_many_files(tmp_path, names, 2) != before


@pytest.mark.parametrize("at", [0, 5 * BLOCK_BYTES, -1])
def test_of_a_file_of_some_blocks_every_byte_counts(at: int, tmp_path: Path) -> None:
    content = np.random.default_rng(1).integers(0, 256, BLOCKS * BLOCK_BYTES, np.uint8)
    content.tofile(tmp_path / "label.bin")
    before = of_large_files(tmp_path, ["label.bin"])
    content[at] ^= 1
    content.tofile(tmp_path / "label.bin")
    assert of_large_files(tmp_path, ["label.bin"]) != before


def test_of_a_large_file_the_first_and_last_byte_count(tmp_path: Path) -> None:
    content = np.zeros(3 * BLOCKS * BLOCK_BYTES + 7, np.uint8)
    seen = set()
    for at in (None, 0, -1):
        changed = content.copy()
        changed[at] += at is not None
        changed.tofile(tmp_path / "label.bin")
        seen.add(of_large_files(tmp_path, ["label.bin"]))
    assert len(seen) == 3
