"""Splits of own molecules, and how a datamodule reports and leaves out molecules."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src.datamodules.graphs.edges import Edges
from src.datamodules.graphs.own_splits import OwnSplit, shared_split
from src.errors import UserError
from src.measure.reading import Reading
from tests.datamodules.graphs.test_datamodule import ready
from tests.datamodules.graphs.test_readings import CUBE, GEOMETRY, lattice, water

CONFORMERS = [f"m{row // 4}" for row in range(80)]
SINGLES = [f"m{row}" for row in range(80)]


def split(groups: list[str], values: list[str] | None = None, **options: Any) -> tuple[dict[str, list[int]], Reading]:
    reading = Reading("a.xyz", "molecules", read=len(groups))
    rows = OwnSplit(**options).of(groups, groups, values or [], reading)
    assert sorted(np.concatenate(list(rows.values())).tolist()) == list(range(len(groups)))
    assert reading.splits == {name: len(part) for name, part in rows.items()}
    return {name: part.tolist() for name, part in rows.items()}, reading


@pytest.mark.parametrize("way", [None, "grouped", "scaffold"])
def test_conformers_of_a_molecule_stay_together(way: Any) -> None:
    rows, reading = split(CONFORMERS, way=way)
    assert [len(rows[name]) for name in ("train", "val", "test")] == [64, 8, 8] and reading.shared == 0
    for name, others in (("train", "val"), ("val", "test"), ("test", "train")):
        assert not {CONFORMERS[row] for row in rows[name]} & {CONFORMERS[row] for row in rows[others]}
    assert rows["train"] != sorted(rows["train"]) and rows == split(CONFORMERS, way=way)[0]
    assert rows != split(CONFORMERS, way=way, seed=1)[0]


def test_a_random_split_says_what_it_shares() -> None:
    rows, reading = split(CONFORMERS, way="random")
    assert reading.shared > 10 and reading.split == "random, seed 0"
    assert rows == {name: part.tolist() for name, part in shared_split(80, 0.1, 0.1, 0).items()}


def test_single_molecules_are_split_as_at_random() -> None:
    rows, reading = split(SINGLES)
    assert rows == split(SINGLES, way="random")[0] and reading.split == "grouped: every molecule is there once, seed 0"


def test_a_trajectory_of_one_molecule_is_drawn_at_random_and_that_is_said() -> None:
    rows, reading = split(["water"] * 50)
    assert [len(rows[name]) for name in ("train", "val", "test")] == [40, 5, 5]
    assert reading.notes[0].startswith("50 items are of 1 molecules, too few to hold whole ones out: drawn at random")
    with pytest.raises(UserError, match=r"split=grouped: the file has 50 items of 1 molecules, too few"):
        split(["water"] * 50, way="grouped")


def test_a_column_or_time_decides() -> None:
    rows, _ = split(SINGLES[:4], ["train", "valid", "TEST", "train"], way="column", column="fold")
    assert {name: sorted(part) for name, part in rows.items()} == {"train": [0, 3], "val": [1], "test": [2]}
    for times in ([f"2024-01-{day:02}" for day in range(10, 0, -1)], [str(10 - row) for row in range(10)]):
        rows, _ = split(SINGLES[:10], times, way="by_time", column="date")
        assert rows["test"] == [0] and rows["val"] == [1]
    for options, values, message in (
        (
            {"way": "column", "column": "fold"},
            ["train", "early"],
            "fold: item 2 has 'early'; expected train",
        ),
        (
            {"way": "by_time", "column": "day"},
            ["1", "12/31/2024"],
            "is '12/31/2024'; expected a number as in the first",
        ),
        ({"way": "by_time", "column": "day"}, ["1", ""], "item 2 has no value"),
        ({"way": "by_time"}, ["1", "2"], "need a split_column"),
        ({"column": "day"}, ["1", "2"], "the others take none"),
    ):
        with pytest.raises(UserError) as caught:
            split(SINGLES[:2], values, **options)
        assert message in str(caught.value)


def test_the_key_of_a_split_is_read_from_the_file(tmp_path: Path) -> None:
    folds = ["train", "train", "val", "test"]
    (tmp_path / "my.csv").write_text(
        "smiles,gap,fold\n" + "".join(f"{'C' * (i + 1)},{i},{f}\n" for i, f in enumerate(folds))
    )
    datamodule = ready(tmp_path, source_options={"split": "column", "split_column": "fold"})
    assert {name: rows.tolist() for name, rows in datamodule.splits.items() if name != "train"} == {
        "val": [2], "test": [3], "all": [0, 1, 2, 3],
    }  # fmt: skip
    with pytest.raises(UserError, match=r"split_column=day: my\.csv has no such key; choose from gap, fold"):
        ready(tmp_path, source_options={"split": "by_time", "split_column": "day"})


def test_molecules_without_the_target_are_counted_or_left_out(tmp_path: Path) -> None:
    rows = "".join(f"{'C' * count},{'' if count % 3 else count}\n" for count in range(1, 13))
    (tmp_path / "my.csv").write_text("smiles,gap\n" + rows)
    with pytest.raises(
        UserError, match=r"8 of 12 molecules have no value of datamodule\.task=gap: .* line 2 \(C\), .*skip"
    ):
        ready(tmp_path).train_dataloader()
    datamodule = ready(tmp_path, skip_bad=True)
    assert sum(len(datamodule.splits[name]) for name in ("train", "val", "test")) == 4
    assert len(datamodule.splits["all"]) == 12 and datamodule.std > 0
    assert datamodule.reading is not None and datamodule.reading.as_written == 0
    assert [(remark.what, remark.count) for remark in datamodule.reading.dropped] == [
        ("has no value of gap, and is only predicted", 8)
    ]
    datamodule.train_dataloader()


def test_neighbours_across_a_border_are_not_lost(tmp_path: Path) -> None:
    wrapped = np.mod(GEOMETRY, 6)
    text = "".join(water(wrapped + 0.01 * row, lattice(CUBE) + f" gap={row}") for row in range(3))
    (tmp_path / "box.xyz").write_text(
        text + water(wrapped, lattice(np.eye(3) * 30) + " gap=4").replace("5.5308000", "29.5308000")
    )
    near = ready(tmp_path, file="box.xyz", edges=Edges("radius", 3.0))
    assert len(near.splits["all"]) == 4
    with pytest.raises(UserError, match=r"box\.xyz frame 1 has neighbours across the border of its periodic box"):
        ready(tmp_path, file="box.xyz", edges=Edges("radius", 5.0))
    assert len(ready(tmp_path, file="box.xyz", edges=Edges("full")).splits["all"]) == 4
