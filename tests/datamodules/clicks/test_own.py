"""Clicks of one's own table: what is read, dropped and refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src.datamodules.clicks.own import ClickColumns, read_clicks, write_rows
from src.errors import UserError

ROWS = ["clicked,age,site", "1,3,a", "0,,b", ",5,a", "0,-3,", "1,0,a"]


def columns(file: Path, lines: list[str], **changes: Any) -> ClickColumns:
    file.write_text("\n".join([*lines, ""]))
    chosen = {"label": "clicked", "numerical": ["age"], "categorical": ["site"], **changes}
    return ClickColumns(str(file), **chosen)


def test_rows_are_read_and_those_without_a_label_dropped(tmp_path: Path) -> None:
    rows = read_clicks(columns(tmp_path / "own.csv", ROWS))
    assert (rows.labels, rows.numbers, rows.dropped, rows.missing) == ([1, 0, 0, 1], [[3], [0], [-3], [0]], 1, 2)
    (a,), (b,), (none,), (again,) = rows.ids
    assert a == again != b and none == 0 < min(a, b)


def test_the_prepared_folder_has_logarithms_and_ids(tmp_path: Path) -> None:
    report = write_rows(columns(tmp_path / "own.csv", ROWS, held_out_share=0.25), tmp_path)["report"]
    assert report.startswith(f"{tmp_path / 'own.csv'}: 5 rows read; dropped 1 without a label in column clicked")
    assert "3 rows to train, 1 to test, clicks 50.0%" in report
    numbers = np.concatenate(
        [np.fromfile(tmp_path / f"{split}_numerical.bin", np.float16) for split in ("train", "test")]
    )
    assert sorted(numbers.tolist()) == pytest.approx([-np.log(4), 0, 0, np.log(4)], abs=1e-3)


def test_rows_to_be_predicted_need_no_label_nor_its_column(tmp_path: Path) -> None:
    some = write_rows(columns(tmp_path / "some.csv", ROWS, held_out_share=1), tmp_path)["report"]
    assert some.startswith(f"{tmp_path / 'some.csv'}: 5 rows read; 1 without a label in column clicked; 2 missing")
    assert "0 rows to train, 5 to test, clicks 50.0%" in some
    assert np.load(tmp_path / "test_known.npy").tolist() == [True, True, False, True, True]
    none = columns(tmp_path / "none.csv", ["age,site", "3,a", "4,b"], held_out_share=1)
    assert "0 rows to train, 2 to test; 1 numerical" in write_rows(none, tmp_path)["report"]
    assert np.load(tmp_path / "test_known.npy").tolist() == [False, False]


@pytest.mark.parametrize(
    ("lines", "changes", "words"),
    [
        (["clicked,age,site", "2,3,a"], {}, r"own.csv line 2: clicked is '2'; it must be 0 or 1"),
        (["clicked,age,site", "1,old,a"], {}, r"own.csv line 2: age is 'old'; it must be a number, or empty"),
        (["clicked,age,site", "1,3"], {}, r"own.csv line 2 has 2 columns, the header 3: correct it"),
        (ROWS, {"label": "label"}, r"own.csv line 1: there is no column 'label', only 'clicked', 'age', 'site'"),
        (ROWS[:2], {}, r"own.csv has 1 rows with a label, too few for training and test; add rows"),
        (ROWS, {"numerical": []}, r"give datamodule.source.numerical=\[COLUMN,...\]"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, lines: list[str], changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        write_rows(columns(tmp_path / "own.csv", lines, **changes), tmp_path)
