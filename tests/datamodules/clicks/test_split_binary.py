"""The reader of split binary clicks: rows, shares of ranks, order, resuming, and truncated files."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from src.datamodules.clicks.split_binary import SplitBinary, SplitLoader
from src.errors import UserError
from tests.support.click_rows import ClickRows, click_rows

ROWS = 103


@pytest.fixture(scope="module")
def rows() -> ClickRows:
    return click_rows(ROWS)


@pytest.fixture(scope="module")
def split(rows: ClickRows, tmp_path_factory: pytest.TempPathFactory) -> SplitBinary:
    folder = tmp_path_factory.mktemp("split")
    rows.write(folder)
    return SplitBinary(folder, rows.spec, "train")


def begins(loader: SplitLoader, rows: ClickRows) -> list[int]:
    """Returns the first row of each batch; asserts that its rows are consecutive."""
    starts = []
    for batch in loader:
        clicks = batch.clicks()
        begin = next(
            i for i in range(ROWS) if np.array_equal(rows.numerical[i : i + batch.count], clicks.numerical.numpy())
        )
        rows.assert_equal(clicks, begin, begin + batch.count)
        starts.append(begin)
    return starts


@pytest.mark.parametrize(("begin", "end"), [(0, ROWS), (17, 50), (102, 103), (5, 5)])
def test_any_range_of_rows_can_be_read(split: SplitBinary, rows: ClickRows, begin: int, end: int) -> None:
    import torch

    out = torch.full((split.layout.num_bytes(end - begin),), 255, dtype=torch.uint8)
    split.read(begin, end, out.numpy())
    rows.assert_equal(split.layout.decode(out), begin, end)


def test_training_has_full_batches_in_order(split: SplitBinary, rows: ClickRows) -> None:
    loader = SplitLoader(split, 8, drop_last=True, threads=3, prefetch=2)
    assert len(loader) == 12
    assert begins(loader, rows) == begins(loader, rows) == list(range(0, 96, 8))


def test_evaluation_has_all_rows(split: SplitBinary, rows: ClickRows) -> None:
    loader = SplitLoader(split, 8, drop_last=False, threads=2, prefetch=3)
    assert [batch.count for batch in loader] == [8] * 12 + [7]
    assert begins(loader, rows) == list(range(0, 103, 8))


def test_ranks_divide_each_global_batch(split: SplitBinary, rows: ClickRows) -> None:
    shares = [begins(SplitLoader(split, 4, drop_last=True, rank=rank, world_size=3), rows) for rank in range(3)]
    assert shares == [list(range(4 * rank, 96, 12)) for rank in range(3)]


@pytest.mark.parametrize("batch_size", [4, 17, 34, 200])
def test_ranks_have_equally_many_batches_and_every_row_once(
    split: SplitBinary, rows: ClickRows, batch_size: int
) -> None:
    """103 rows on 3 ranks: the last global batch has 7, 1, 1 and 103 of them."""
    loaders = [SplitLoader(split, batch_size, drop_last=False, rank=rank, world_size=3) for rank in range(3)]
    numbers: list[int] = []
    for batches in zip(*loaders, strict=True):
        counts = [batch.count for batch in batches]
        assert max(counts) - min(counts) <= 1
        for batch in batches:
            rows.assert_equal(batch.clicks(), len(numbers), len(numbers) + batch.count)
            numbers += range(batch.count)
    assert len(numbers) == ROWS


def test_shuffling_changes_only_the_order_of_batches(split: SplitBinary, rows: ClickRows) -> None:
    def loader(seed: int, rank: int = 0) -> SplitLoader:
        return SplitLoader(split, 4, drop_last=True, shuffle=True, seed=seed, rank=rank, world_size=2)

    one, other = loader(3), loader(3, rank=1)
    first, second = begins(one, rows), begins(one, rows)
    assert sorted(first) == sorted(second) == list(range(0, 96, 8))
    assert len({tuple(first), tuple(second), tuple(sorted(first)), tuple(begins(loader(4), rows))}) == 4
    assert begins(other, rows) == [begin + 4 for begin in first]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_resumed_loader_gives_the_remaining_batches(split: SplitBinary, rows: ClickRows, shuffle: bool) -> None:
    def loader() -> SplitLoader:
        return SplitLoader(split, 8, drop_last=True, shuffle=shuffle, seed=1)

    uninterrupted = loader()
    epochs = begins(uninterrupted, rows) + begins(uninterrupted, rows)
    interrupted = loader()
    iterator = iter(interrupted)
    for _ in range(5):
        next(iterator)
    resumed = loader()
    resumed.load_state_dict(interrupted.state_dict())
    assert begins(resumed, rows) + begins(resumed, rows) == epochs[5:]
    resumed.load_state_dict({"epoch": 0, "position": 12})
    assert begins(resumed, rows) == epochs[12:]


def test_batches_are_not_overwritten_by_later_ones(split: SplitBinary, rows: ClickRows) -> None:
    batches = list(SplitLoader(split, 8, drop_last=True, threads=4, prefetch=1))
    for number, batch in enumerate(batches):
        rows.assert_equal(batch.clicks(), 8 * number, 8 * number + 8)


def test_leaving_an_epoch_ends_its_threads(split: SplitBinary) -> None:
    for _ in SplitLoader(split, 4, drop_last=True):
        break
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("click-reader")]


def test_a_batch_larger_than_the_split_is_refused(split: SplitBinary) -> None:
    with pytest.raises(UserError, match=r"hp\.batch_size=52 on 2 rank\(s\).*training split of 103; choose at most 51"):
        SplitLoader(split, 52, drop_last=True, world_size=2)
    assert len(SplitLoader(split, 51, drop_last=True, world_size=2)) == 1


def test_a_truncated_file_is_named_with_its_row(rows: ClickRows, tmp_path: Path) -> None:
    rows.write(tmp_path)
    split = SplitBinary(tmp_path, rows.spec, "train")
    os.truncate(tmp_path / "train" / "cat_1.bin", 3 * 50 + 1)
    with pytest.raises(UserError, match=r"train/cat_1\.bin is truncated: it ends in row 50"):
        list(SplitLoader(split, 10, drop_last=False))


def test_files_of_different_lengths_are_refused(rows: ClickRows, tmp_path: Path) -> None:
    rows.write(tmp_path)
    os.truncate(tmp_path / "train" / "cat_3.bin", 50)
    with pytest.raises(UserError, match=r"cat_3\.bin has 50 rows.*103"):
        SplitBinary(tmp_path, rows.spec, "train")
