"""Splits hold out the share that is asked for, each item once, and keep classes, groups and times as they promise."""

from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest

from src.datamodules.splits import (
    TRAIN,
    Rows,
    grouped_split,
    random_split,
    shared_with_train,
    split_by_column,
    split_by_time,
    stratified_split,
    times_of,
)
from src.errors import UserError

SHARES = {"val": 0.1, "test": 0.2}
CLASSES = ["a"] * 700 + ["b"] * 250 + ["c"] * 40 + ["d"] * 9 + ["e"]


def sizes(splits: Mapping[str, Rows], total: int) -> dict[str, int]:
    """Returns the size of each split, after checking that each row is in one."""
    assert sorted(np.concatenate(list(splits.values())).tolist()) == list(range(total))
    return {name: len(rows) for name, rows in splits.items()}


@pytest.mark.parametrize("seed", range(3))
def test_random_rows(seed: int) -> None:
    assert sizes(random_split(1000, SHARES, seed), 1000) == {"val": 100, "test": 200, TRAIN: 700}


@pytest.mark.parametrize("seed", range(3))
def test_stratified_rows_have_the_same_share_of_each_class(seed: int) -> None:
    splits = stratified_split(CLASSES, SHARES, seed)
    assert all(
        abs(count - 1000 * share) <= 1
        for count, share in zip(sizes(splits, 1000).values(), SHARES.values(), strict=False)
    )
    for name, share in SHARES.items():
        counts = Counter(CLASSES[row] for row in splits[name].tolist())
        assert all(abs(counts[c] - share * total) <= 1 for c, total in Counter(CLASSES).items())
    assert {CLASSES[row] for row in splits[TRAIN].tolist()} == set("abcde")


def test_many_small_classes_are_held_out_in_their_share() -> None:
    classes = [f"class {i // 3}" for i in range(999)]
    splits = stratified_split(classes, {"dev": 0.1}, 0)
    assert abs(sizes(splits, 999)["dev"] - 100) <= 1
    assert len({classes[row] for row in splits[TRAIN].tolist()}) == 333


@pytest.mark.parametrize("seed", range(3))
def test_no_group_is_in_two_splits(seed: int) -> None:
    groups = np.random.default_rng(seed).zipf(1.6, 1000).tolist()
    splits = grouped_split(groups, SHARES, seed)
    assert shared_with_train(groups, splits) == 0
    assert len({(groups[row], name) for name, rows in splits.items() for row in rows.tolist()}) == len(set(groups))
    assert sizes(splits, 1000)["val"] < 200


def test_groups_of_one_item_are_held_out_in_their_share() -> None:
    assert sizes(grouped_split(range(1000), SHARES, 0), 1000) == {"val": 100, "test": 200, TRAIN: 700}


def test_the_latest_are_held_out_and_equal_times_stay_together() -> None:
    times = [3.0, 1.0, 2.0, 5.0, 4.0, 5.0, 5.0, 0.0, 6.0, 7.0]
    splits = split_by_time(times, {"val": 0.3, "test": 0.2})
    assert sizes(splits, 10) == {"val": 3, "test": 2, TRAIN: 5}
    assert splits["test"].tolist() == [8, 9] and splits["val"].tolist() == [3, 5, 6]
    assert split_by_time(["2024-01", "2023-12", "2024-02"], {"dev": 0.34})["dev"].tolist() == [2]
    assert sizes(split_by_time([1.0, 1.0, 1.0, 0.0], {"dev": 0.5}), 4) == {"dev": 0, TRAIN: 4}


def test_a_column_names_the_split() -> None:
    splits = split_by_column(["t", "v", "t"], {TRAIN: "t", "val": "v"}, "a.csv column part")
    assert {name: rows.tolist() for name, rows in splits.items()} == {TRAIN: [0, 2], "val": [1]}
    with pytest.raises(UserError, match=r"a\.csv column part: item 2 has 'v'; expected t$"):
        split_by_column(["t", "v"], {TRAIN: "t"}, "a.csv column part")


def test_items_whose_group_is_trained_on_are_counted() -> None:
    splits = {TRAIN: np.array([0, 1]), "val": np.array([2, 3])}
    assert shared_with_train(["a", "b", "a", "c"], splits) == 1


@pytest.mark.parametrize("seed", [0, 1])
def test_a_seed_gives_the_same_split(seed: int) -> None:
    for split in (lambda s: random_split(50, SHARES, s), lambda s: stratified_split(CLASSES, SHARES, s)):
        first, second, other = split(seed), split(seed), split(seed + 7)
        assert all((first[name] == second[name]).all() for name in first)
        assert any(len(first[name]) != len(other[name]) or (first[name] != other[name]).any() for name in first)


@pytest.mark.parametrize(
    ("texts", "order"),
    [
        (["3", "1e1", "-2.0"], [2, 0, 1]),
        (["2024-02-01", "2024-01-31T23:00", "2024-01-31T23:00-02:00"], [1, 0, 2]),
        (["2024-06-01", "20240531"], [1, 0]),
    ],
)
def test_times_are_numbers_or_dates(texts: list[str], order: list[int]) -> None:
    assert np.argsort(times_of(texts, str)).tolist() == order


@pytest.mark.parametrize("texts", [["1", "2024-01-01"], ["2024-01-01", "31.12.2024"], ["1", ""], ["1", "1e400"]])
def test_times_of_another_kind_than_the_first_are_refused(texts: list[str]) -> None:
    with pytest.raises(UserError, match=r"^row 1 is .*; expected a (number|date .*) as in the first row$"):
        times_of(texts, lambda item: f"row {item}")
