"""Clicks of one's own table: what is read, changed, dropped and refused."""

from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from src.datamodules.clicks.feature_spec import FeatureSpec
from src.datamodules.clicks.own import KNOWN, write_rows
from src.datamodules.clicks.own_rows import NO_VALUE, ClickColumns, read_clicks
from src.datamodules.clicks.seen import counted, new_shares
from src.errors import UserError
from src.measure.reading import Reading
from src.models.dlrm.network import DLRM
from src.models.dlrm.task import DLRMTask

ROWS = ["clicked,age,site", "1,3,a", "0,,b", ",5,a", "0,-3,", "1,0,a"]


def columns(file: Path, lines: list[str], **changes: Any) -> ClickColumns:
    file.write_text("\n".join([*lines, ""]))
    chosen = {"label": "clicked", "numerical": ["age"], "categorical": ["site"], "form": 2, **changes}
    return ClickColumns(str(file), **chosen)


def written(home: Path, lines: list[str], **changes: Any) -> Reading:
    """Returns the report of a table that is prepared in the folder `home`."""
    return Reading.of_dict(write_rows(columns(home / "own.csv", lines, **changes), home)["reading"])


def arrays(folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Returns the rows of each split of a prepared folder: the label, the numbers and the ids."""
    spec, rows = FeatureSpec.load(folder), {}
    for split, files in spec.splits.items():
        labels = np.fromfile(folder / files.label, np.uint8)
        numbers = np.fromfile(folder / files.numerical, spec.number_dtype).reshape(len(labels), -1)
        ids = [np.fromfile(folder / file, dtype) for file, dtype in zip(files.ids, spec.dtypes, strict=True)]
        parts = zip(labels.tolist(), numbers.tolist(), *(column.tolist() for column in ids), strict=True)
        rows[split] = [(label, *numbers, *row_ids) for label, numbers, *row_ids in parts]
    return rows


def test_rows_are_read_and_those_without_a_label_dropped(tmp_path: Path) -> None:
    rows, reading = read_clicks(columns(tmp_path / "own.csv", ROWS))
    assert (rows.labels, rows.numbers) == ([1, 0, 0, 1], [[3], [0], [-3], [0]])
    (a,), (b,), (none,), (again,) = rows.hashes
    assert a == again != b and none == NO_VALUE
    assert (reading.read, reading.as_written, reading.dropped_items) == (5, 4, 1)
    assert reading.dropped[0].what == "no label in column clicked" and reading.dropped[0].examples == ["line 4"]
    assert reading.notes == ["missing values, as number 0 and category id 0: age 25.0%, site 25.0%"]


def test_the_prepared_folder_has_logarithms_and_ids(tmp_path: Path) -> None:
    reading = written(tmp_path, ROWS, held_out_share=0.25)
    assert reading.splits == {"train": 3, "test": 1} and reading.split == "random, 25% held out, seed 0"
    numbers = [row[1] for split in arrays(tmp_path).values() for row in split]
    assert sorted(numbers) == pytest.approx([-np.log(4), 0, 0, np.log(4)], rel=1e-6)
    assert {len(row) for split in arrays(tmp_path).values() for row in split} == {3}


def test_numbers_that_differ_in_the_fourth_digit_stay_different(tmp_path: Path) -> None:
    lines = ["clicked,age,site", *["1,100.2,a", "0,100.3,a", "1,1,a", "0,2,a"] * 2]
    written(tmp_path, lines)
    assert len({row[1] for row in chain(*arrays(tmp_path).values())}) == 4
    notes = written(tmp_path, lines, form=1).notes
    assert len({row[1] for row in chain(*arrays(tmp_path).values())}) == 3
    assert notes[-1] == "form 1, as the checkpoint was trained: 1 and 1.0 are two categories, numbers have 3 digits"


def test_rows_to_be_predicted_need_no_label_nor_its_column(tmp_path: Path) -> None:
    some = written(tmp_path, ROWS, held_out_share=1)
    assert (some.read, some.dropped_items, some.splits) == (5, 0, {"train": 0, "test": 5})
    assert some.classes == {"test": {"0": 2, "1": 2, "no label": 1}} and some.split == "all rows are to be predicted"
    assert np.load(tmp_path / KNOWN).tolist() == [True, True, False, True, True]
    none = written(tmp_path, ["age,site", "3,a", "4,b"], held_out_share=1)
    assert none.splits == {"train": 0, "test": 2}
    assert np.load(tmp_path / KNOWN).tolist() == [False, False]


@pytest.mark.parametrize(
    ("lines", "changes", "words"),
    [
        (["clicked,age,site", "2,3,a"], {}, r"own.csv line 2: clicked is '2'; it must be 0 or 1 \(0.0, 1.0, false"),
        (["clicked,age,site", "yes,3,a"], {}, r"own.csv line 2: clicked is 'yes'; it must be 0 or 1"),
        (["clicked,age,site", "-1,3,a"], {}, r"own.csv line 2: clicked is '-1'; it must be 0 or 1"),
        (["clicked,age,site", "1,old,a"], {}, r"own.csv line 2: age is 'old'; it must be a number, or empty"),
        (["clicked,age,site", "1,1_000,a"], {}, r"own.csv line 2: age is '1_000'; it must be a number"),
        (["clicked,age,site", "1,٣,a"], {}, r"own.csv line 2: age is '٣'; it must be a number"),
        (["clicked,age,site", "1,inf,a"], {}, r"own.csv line 2: age is 'inf'; it must be a number"),
        (["clicked,age,site", "1,1e400,a"], {}, r"own.csv line 2: age is '1e400'; it must be a number"),
        (["clicked,age,site", '1,"1,5",a'], {}, r"age is '1,5'; it must be .* \(datamodule.source.decimal, thousands"),
        (["clicked,age,site", "1,?,a"], {}, r"age is '\?'; it must be a number, .* and missing say how the file"),
        (["clicked,age,site", "1,3"], {}, r"own.csv line 2 has 2 columns, the header 3: correct it"),
        (ROWS, {"label": "label"}, r"own.csv line 1: there is no column 'label', only 'clicked', 'age', 'site'"),
        (ROWS[:2], {}, r"own.csv has 1 rows with a label, too few for training and test; add rows"),
        (ROWS[:1], {"held_out_share": 1}, r"own.csv has a header and no rows; add rows to predict"),
        (ROWS, {"numerical": []}, r"give datamodule.source.numerical=\[COLUMN,...\]"),
        (ROWS, {"numerical": ["age", "clicked"]}, r"datamodule.source names column 'clicked' twice"),
        (ROWS, {"split": "grouped"}, r"split=grouped, split_column=None: give a split_column for grouped, by_time"),
        (ROWS, {"split_column": "site"}, r"split=random, split_column=site: give a split_column for grouped"),
        (ROWS, {"split": "grouped", "split_column": "user"}, r"line 1: there is no column 'user', only 'clicked'"),
        (ROWS, {"split": "column", "split_column": "site"}, r"line 2: site is 'a'; it must be train or test"),
        (ROWS, {"split": "by_time", "split_column": "age"}, r"line 3: age is ''; expected a number as in the first"),
        (ROWS, {"split": "by_time", "split_column": "site"}, r"line 2: site is 'a'; expected a date such as 2026"),
        (ROWS, {"decimal": ",", "thousands": ","}, r"decimal and thousands are both ','"),
        (ROWS, {"thousands": "_"}, r"thousands='_' is not allowed; expected null or one of ','"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, lines: list[str], changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        write_rows(columns(tmp_path / "own.csv", lines, **changes), tmp_path)
    assert "\n" not in str(caught.value)


# The same clicks, as other programs write them.
PLAIN = ["clicked,age,site", "1,3,1", "0,4,2", "1,0,3", "0,1500.5,1", "1,,", "0,-2,007"]
SPELLINGS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "pandas, once a value is missing": (
        ["clicked,age,site", "1,3.0,1.0", "0,4.0,2.0", "1,0.0,3.0", "0,1500.5,1.0", "1,,", "0,-2.0,007"], {},
    ),
    "labels as floats": (
        ["clicked,age,site", "1.0,3,1", "0.0,4,2", "1.0,-0,3", "0.0,1500.5,1", "1.0,,", "0.0,-2,007"], {},
    ),
    "Python and R": (
        ["clicked,age,site", "True,3.,+1", "False,4e0,2", "TRUE,0e9,3", "FALSE,1.5005e3,1", "true,NaN,None",
         "false,-2,007"], {},
    ),
    "a database": (["clicked,age,site", "1,3,1", "0,4,2", "1,0,3", "0,1500.50,1", "1,\\N,NULL", "0,-2,007"], {}),
    "spaces": (["clicked,age,site", "1, 3,1 ", "0,4 , 2", "1,0,3", " 0 ,1500.5,1", "1,  , ", "0,-2, 007"], {}),
    "quotes": (
        ['"clicked","age","site"', '"1","3","1"', "0,4,2", '1,"0",3', '0,1500.5,"1"', '1,"",""', '0,-2,"007"'], {},
    ),
    "a German spreadsheet": (
        ["clicked,age,site", "1,3,1", "0,4,2", "1,0,3", '0,"1.500,5",1', "1,,", "0,-2,007"],
        {"decimal": ",", "thousands": "."},
    ),
    "other columns around, in another order": (
        ["site,note,clicked,age", "1,x,1,3", "2,,0,4", "3,1,1,0", "1,y,0,1500.5", ",,1,", "007,,0,-2"], {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("split", ["random", "stratified"])
def test_other_spellings_give_the_same_arrays(tmp_path: Path, name: str, split: str) -> None:
    written(tmp_path, PLAIN, split=split, held_out_share=0.4)
    before, unseen = arrays(tmp_path), np.load(tmp_path / "train_values.npy")
    lines, changes = SPELLINGS[name]
    reading = written(tmp_path, lines, split=split, held_out_share=0.4, **changes)
    assert arrays(tmp_path) == before
    assert np.array_equal(np.load(tmp_path / "train_values.npy"), unseen)
    assert (reading.read, reading.dropped_items) == (6, 0)


@pytest.mark.parametrize(("one", "other"), [("1,3,1", "1,3,1.5"), ("1,3,7", "1,3,007"), ("1,3,1", "1,3.01,1")])
def test_other_content_gives_other_arrays(tmp_path: Path, one: str, other: str) -> None:
    written(tmp_path, [*PLAIN, one])
    before = arrays(tmp_path)
    written(tmp_path, [*PLAIN, other])
    assert arrays(tmp_path) != before


def test_the_order_of_rows_changes_no_row(tmp_path: Path) -> None:
    written(tmp_path, PLAIN)
    before = arrays(tmp_path)
    written(tmp_path, [PLAIN[0], *PLAIN[:0:-1]])
    assert sorted(chain(*arrays(tmp_path).values())) == sorted(chain(*before.values()))


def test_what_is_read_otherwise_than_written_is_told(tmp_path: Path) -> None:
    lines = ["clicked,age,site", "1,true,1.0", "0,NA,None", "1,3,True", "1,3,a", "0,4,1.2345678901234568e+18"]
    reading = written(tmp_path, lines, held_out_share=0.4)
    assert (reading.as_written, reading.changed_items) == (2, 3)
    assert {remark.what: (remark.count, remark.examples[0]) for remark in reading.changed} == {
        "true and false read as 1 and 0": (1, "line 2: age 'true', site '1.0'"),
        "a category read as the whole number that it is": (1, "line 2: age 'true', site '1.0'"),
        "a word for no value read as missing": (1, "line 3: age 'NA'"),
        "True and TRUE read as true": (1, "line 4: site 'True'"),
    }
    assert reading.notes[1].startswith(
        "site has whole numbers of more than 15 digits that were rounded (line 6: '1.2345678901234568e+18')"
    )
    assert "values by column, hashed to 1,000 ids (how many share one): site 5 (0.0%)" in reading.notes


def test_namibia_is_a_country_where_the_key_says_so(tmp_path: Path) -> None:
    lines = ["clicked,age,site", "1,3,NA", "0,3,DE", "1,3,NA"]
    (na,), (de,), _ = read_clicks(columns(tmp_path / "own.csv", lines))[0].hashes
    assert na == NO_VALUE != de
    rows, reading = read_clicks(columns(tmp_path / "own.csv", lines, missing=["-"]))
    assert [NO_VALUE] not in rows.hashes and reading.as_written == 3


def test_categories_that_share_an_id_are_counted(tmp_path: Path) -> None:
    lines = ["clicked,age,site", *(f"1,3,s{number}" for number in range(50))]
    reading = written(tmp_path, lines, buckets=10)
    assert "values by column, hashed to 10 ids (how many share one): site 50 (100.0%)" in reading.notes


TIMES = ["clicked,age,site,user,when,part"] + [
    f"{number % 2},{number},s{number % 3},u{number % 5},2026-01-{31 - number:02},{'test' if number < 4 else 'train'}"
    for number in range(20)
]


def ages(home: Path, split: str) -> list[int]:
    return sorted(round(np.expm1(row[1])) for row in arrays(home)[split])


def test_rows_are_held_out_by_label_group_time_and_column(tmp_path: Path) -> None:
    by_label = written(tmp_path, TIMES, split="stratified", held_out_share=0.2)
    assert by_label.classes == {"train": {"0": 8, "1": 8}, "test": {"0": 2, "1": 2}}
    assert by_label.split == "stratified (clicked), 20% held out, seed 0"
    by_user = written(tmp_path, TIMES, split="grouped", split_column="user", held_out_share=0.2)
    assert len({age % 5 for age in ages(tmp_path, "test")}) == 1 and by_user.shared == 0
    assert {age % 5 for age in ages(tmp_path, "test")}.isdisjoint(age % 5 for age in ages(tmp_path, "train"))
    latest = written(tmp_path, TIMES, split="by_time", split_column="when", held_out_share=0.2)
    assert ages(tmp_path, "test") == [0, 1, 2, 3] and latest.split == "by_time (when), 20% held out"
    written(tmp_path, TIMES, split="by_time", split_column="age", held_out_share=0.2)
    assert ages(tmp_path, "test") == [16, 17, 18, 19]
    chosen = written(tmp_path, TIMES, split="column", split_column="part")
    assert ages(tmp_path, "test") == [0, 1, 2, 3] and chosen.split == "column (part)"


def test_dates_of_other_time_zones_are_in_the_order_of_time(tmp_path: Path) -> None:
    times = ["2026-01-01T12:00+05:00", "2026-01-01T08:00", "2026-01-01 09:00:00Z"]
    lines = ["clicked,age,site,when", *(f"1,{number},a,{time}" for number, time in enumerate(times))]
    written(tmp_path, lines, split="by_time", split_column="when", held_out_share=0.3)
    assert ages(tmp_path, "test") == [2]
    written(tmp_path, lines, split="by_time", split_column="when", held_out_share=0.6)
    assert ages(tmp_path, "test") == [1, 2]


def test_held_out_rows_that_are_in_training_too_are_counted(tmp_path: Path) -> None:
    assert written(tmp_path, ["clicked,age,site", *["1,3,a"] * 10]).shared == 1


def test_new_categories_are_counted_by_rows() -> None:
    trained, here = np.array([[1, 7], [2, 7], [NO_VALUE, 7]]), np.array([[1, 8], [3, 7], [3, 8], [3, NO_VALUE]])
    assert new_shares(counted(here), counted(trained)[:, :2], 2) == [(1, 0.75), (2, 0.75)]


@pytest.mark.parametrize("table", ["x", torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), torch.zeros(2, 3).long()])
def test_a_checkpoint_with_another_table_of_categories_is_refused(table: Any) -> None:
    task = DLRMTask(partial(DLRM), partial(torch.optim.SGD, lr=1))
    with pytest.raises(UserError, match=r"the checkpoint's seen_values is no table of hashes"):
        task.on_load_checkpoint({"seen_values": table})
