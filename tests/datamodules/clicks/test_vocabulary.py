"""Vocabularies counted in pieces equal one count of all ids."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from src.datamodules.clicks import vocabulary as criteo_vocabulary
from src.datamodules.clicks.vocabulary import RunOnDisk, counted, look_up, merge, write_table


@pytest.mark.parametrize("small_ranges", [True, False])
@pytest.mark.parametrize("kind", ["hashes", "consecutive", "one"])
def test_frequent_ids_are_kept_and_numbered_by_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, small_ranges: bool
) -> None:
    if small_ranges:
        monkeypatch.setattr(criteo_vocabulary, "RANGE", 300)
        monkeypatch.setattr(criteo_vocabulary, "_STRIDE", 8)
    generator = np.random.default_rng(0)
    counts: Counter[int] = Counter()
    runs = []
    for piece in range(20):
        ranks = (5000 ** generator.random(800)).astype(np.uint32)
        ids = {"hashes": ranks * np.uint32(2654435761), "consecutive": ranks, "one": ranks * np.uint32(0) - 1}[kind]
        ids[:5] = (0, 0, 2**32 - 1, 1, 2)
        missing = piece % 3  # of the zeros
        counts.update(ids.tolist())
        counts[0] -= missing
        path = tmp_path / f"{piece}.runs"
        run = counted(ids.astype(np.uint32), missing)
        np.concatenate([np.full(3, 7, np.uint64), run]).tofile(path)
        runs += [RunOnDisk(path, 3, 3 + len(run)), RunOnDisk(path, 3, 3)]
    reference = sorted((value for value in counts if counts[value] >= 3), key=lambda value: (-counts[value], value))
    kept = merge(runs, 3, tmp_path / "kept")
    assert kept == len(reference)
    write_table(tmp_path / "kept", tmp_path / "table")
    table = np.fromfile(tmp_path / "table", np.uint64)
    asked = np.array([*counts, *generator.integers(2**32, size=5000)], np.uint32)
    numbers = {value: number for number, value in enumerate(reference, 1)}
    assert look_up(table, kept, asked).tolist() == [numbers.get(value, 0) for value in asked.tolist()]


def test_an_empty_vocabulary_gives_0_for_all_ids(tmp_path: Path) -> None:
    run = counted(np.zeros(4, np.uint32), 4)
    assert len(run) == 0
    assert merge([RunOnDisk(tmp_path / "none", 0, 0)], 1, tmp_path / "kept") == 0
    write_table(tmp_path / "kept", tmp_path / "table")
    table = np.fromfile(tmp_path / "table", np.uint64)
    assert look_up(table, 0, np.array([0, 5, 2**32 - 1], np.uint32)).tolist() == [0, 0, 0]


def test_counts_above_32_bits_are_clamped(tmp_path: Path) -> None:
    entries = np.array([(5 << 32) | (2**32 - 1), (9 << 32) | 3], np.uint64)
    entries.tofile(tmp_path / "runs")
    kept = merge([RunOnDisk(tmp_path / "runs", 0, 2)] * 3, 4, tmp_path / "kept")
    assert kept == 2
    assert np.fromfile(tmp_path / "kept", np.uint64).tolist() == [5, ((2**32 - 1 - 9) << 32) | 9]
