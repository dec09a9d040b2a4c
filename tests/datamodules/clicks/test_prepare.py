"""Prepared click logs equal a slow reference."""

from pathlib import Path

import numpy as np
import pytest

from src.datamodules.clicks.feature_spec import FeatureSpec
from src.datamodules.clicks.prepare import Sizes, prepare_criteo
from src.errors import UserError
from tests.support import criteo_rows

pytestmark = pytest.mark.slow

SMALL = Sizes(span_bytes=9000, rows=70)  # many spans, pieces and buckets


def check(folder: Path, cardinalities: list[int], rows: dict[str, list[criteo_rows.Row]]) -> None:
    spec = FeatureSpec.load(folder)
    assert [table.cardinality for table in spec.tables] == cardinalities
    assert any(size > 100 for size in cardinalities)
    for split in ("test", "validation"):
        assert criteo_rows.read(folder, split, cardinalities) == rows[split]
    train = criteo_rows.read(folder, "train", cardinalities)
    assert sorted(train) == sorted(rows["train"])


@pytest.mark.parametrize(
    ("vocabulary", "frequency_limit"), [("train", 2), pytest.param("all", 3, marks=pytest.mark.slow)]
)
def test_24_days_equal_the_reference(tmp_path: Path, vocabulary: str, frequency_limit: int) -> None:
    days = criteo_rows.write_days(tmp_path / "raw", criteo_rows.lines(1500, 0))
    folder = prepare_criteo(
        tmp_path / "raw",
        tmp_path / "out",
        frequency_limit=frequency_limit,
        vocabulary=vocabulary,  # pyright: ignore[reportArgumentType]
        workers=2,
        sizes=SMALL,
    )
    trained = [line for day in days[:-1] for line in day]
    check(folder, *criteo_rows.expected(trained, days[-1], frequency_limit, vocabulary == "all"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "raw"]


@pytest.mark.parametrize("name", ["train.txt", "train.txt.gz"])
def test_one_file_holds_out_its_last_seventh(tmp_path: Path, name: str) -> None:
    content = criteo_rows.lines(1000, 1)
    criteo_rows.write(tmp_path / "raw" / name, content)
    folder = prepare_criteo(tmp_path / "raw", tmp_path / "out", frequency_limit=2, workers=1, sizes=SMALL)
    check(folder, *criteo_rows.expected(content[:858], content[858:], 2, False))
    assert FeatureSpec.load(folder).metadata["rows"] == {"train": 858, "test": 71, "validation": 71}


def order(folder: Path) -> np.ndarray:
    """Returns the first numerical of each training row, which identifies the row."""
    return np.fromfile(folder / "train" / "numerical.bin", np.float16).reshape(-1, 13)[:, 0].astype(float)


def test_training_rows_are_shuffled_by_the_seed_alone(tmp_path: Path) -> None:
    raw = criteo_rows.write(tmp_path / "log.tsv", criteo_rows.lines(1000, 2))
    runs = {"a": (0, 1), "b": (0, 2), "c": (1, 1)}
    orders = {
        name: order(prepare_criteo(raw, tmp_path / name, seed=seed, workers=workers, sizes=SMALL))
        for name, (seed, workers) in runs.items()
    }
    assert np.array_equal(orders["a"], orders["b"])
    assert not np.array_equal(orders["a"], orders["c"])
    # Across pieces and within buckets, the order is not correlated with that of the log.
    ranks = orders["a"].argsort(kind="stable").argsort()
    position = np.arange(len(ranks))
    assert abs(np.corrcoef(ranks, position)[0, 1]) < 0.12
    assert abs(np.corrcoef(ranks[:-1], ranks[1:])[0, 1]) < 0.12


def test_a_prepared_folder_is_reused_and_refused_for_other_settings(tmp_path: Path) -> None:
    raw = criteo_rows.write(tmp_path / "log.tsv", criteo_rows.lines(50, 3))
    folder = prepare_criteo(raw, tmp_path / "out", workers=1)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    prepare_criteo(raw, folder, workers=1)
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with pytest.raises(UserError, match="prepared from other files or settings"):
        prepare_criteo(raw, folder, workers=1, frequency_limit=3)


@pytest.mark.parametrize(
    ("line", "field", "text", "message"),
    [
        (17, 0, "2", r"line 17 column 1: '2' is not a label"),
        (700, 3, "1.5", r"line 700 column 4: '1.5' is not an integer"),
        (2, 5, "-4", r"line 2 column 6: '-4' is below -3, the least number of Criteo's logs, so"),
        (999, 39, "1234567g", r"line 999 column 40: '1234567g' is not an id of 1 to 8 hexadecimal"),
        (400, 20, "123456789", r"line 400 column 21: '123456789' is not an id"),
        (1, 30, "a\tb", r"line 1 has 41 columns, not 40"),
    ],
)
@pytest.mark.parametrize("name", ["log.tsv", "log.tsv.gz"])
def test_a_bad_field_is_named_and_leaves_no_file(
    tmp_path: Path, name: str, line: int, field: int, text: str, message: str
) -> None:
    content = criteo_rows.lines(1000, 4)
    fields = content[line - 1].rstrip("\n").split("\t")
    fields[field] = text
    content[line - 1] = "\t".join(fields) + "\n"
    raw = criteo_rows.write(tmp_path / name, content)
    with pytest.raises(UserError, match=message) as error:
        prepare_criteo(raw, tmp_path / "out", workers=1, sizes=SMALL)
    assert str(raw) in str(error.value) and "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    content = criteo_rows.lines(1000, 5)
    complete = {name: criteo_rows.write(tmp_path / name, content).read_bytes() for name in ("log", "log.gz")}
    for name, cut, message in (
        ("log", 9, "log line 1000 ends without a newline"),
        ("log.gz", 100, r"log.gz line \d+ or a later one cannot be decompressed: the file is truncated"),
    ):
        (tmp_path / name).write_bytes(complete[name][:-cut])
        with pytest.raises(UserError, match=message):
            prepare_criteo(tmp_path / name, tmp_path / "out", workers=1, sizes=SMALL)
    (tmp_path / "log").write_bytes(b"")
    with pytest.raises(UserError, match="log is empty"):
        prepare_criteo(tmp_path / "log", tmp_path / "out", workers=1)
    (tmp_path / "log.gz").write_bytes(b"0\t1\n")
    with pytest.raises(UserError, match=r"log.gz .*[Nn]ot a gzip"):
        prepare_criteo(tmp_path / "log.gz", tmp_path / "out", workers=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.gz"]


def test_missing_days_and_invalid_settings_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has neither day_0"):
        prepare_criteo(tmp_path, tmp_path / "out")
    criteo_rows.write_days(tmp_path, criteo_rows.lines(100, 6))
    (tmp_path / "day_7").unlink()
    (tmp_path / "day_12.gz").unlink()
    with pytest.raises(UserError, match="has no day_7, day_12 "):
        prepare_criteo(tmp_path, tmp_path / "out")
    few = criteo_rows.write(tmp_path / "few.tsv", criteo_rows.lines(13, 7))
    with pytest.raises(UserError, match="has 13 rows: give 14 or more"):
        prepare_criteo(few, tmp_path / "out", workers=1)
