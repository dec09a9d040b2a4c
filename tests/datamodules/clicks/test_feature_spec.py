"""feature_spec.yaml: NVIDIA's format is read, and errors name the key or file."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from src.batches.clicks import EmbeddingTable
from src.datamodules.clicks.feature_spec import FILE, FeatureSpec
from src.errors import UserError

ROWS = {"train": 6, "test": 4}


def write_folder(folder: Path, spec: FeatureSpec) -> None:
    """Writes the specification and files of zeros."""
    spec.write(folder)
    for split, rows in ROWS.items():
        for file, width in spec.bytes_per_row(split).items():
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_bytes(bytes(rows * width))


def test_a_written_specification_loads_equal(tmp_path: Path) -> None:
    spec = replace(FeatureSpec.of([100, 127, 32767, 5], 3, [1, 2, 1, 4]), metadata={"made": "here"})
    write_folder(tmp_path, spec)
    loaded = FeatureSpec.load(tmp_path)
    assert loaded == spec
    assert loaded.dtypes == ("int8", "int16", "int32", "int8")
    assert loaded.tables[1] == EmbeddingTable("cat_1.bin", 127, 2)
    assert {split: loaded.num_rows(tmp_path, split) for split in ROWS} == ROWS
    assert loaded.layout.bytes_per_row == sum(loaded.bytes_per_row("test").values()) == 1 + 6 + 1 + 4 + 4 + 4


def test_numbers_may_be_float32_all_alike(tmp_path: Path) -> None:
    spec = replace(FeatureSpec.of([100, 300], 3), number_dtype="float32")
    write_folder(tmp_path, spec)
    assert FeatureSpec.load(tmp_path) == spec
    assert spec.layout.bytes_per_row == sum(spec.bytes_per_row("test").values()) == 1 + 3 * 4 + 1 + 2
    text = (tmp_path / FILE).read_text()
    (tmp_path / FILE).write_text(text.replace("num_1:\n    dtype: float32", "num_1:\n    dtype: float16"))
    with pytest.raises(UserError, match=r"feature_spec.num_1.dtype is 'float16', not float32"):
        FeatureSpec.load(tmp_path)


def test_the_published_tables_have_89_bytes_a_row() -> None:
    published = [7912889, 33823, 17139, 7339, 20046, 4, 7105, 1382, 63, 5554114, 582469, 245828, 11, 2209, 10667, 104]
    published += [4, 968, 15, 8165896, 2675940, 7156453, 302516, 12022, 97, 35]
    assert sum(FeatureSpec.of(published).bytes_per_row("train").values()) == 89


def test_a_directory_with_other_names_and_order_loads(tmp_path: Path) -> None:
    """Keys as NVIDIA's converters write them, chunks in another order, types wider than necessary."""
    content = {
        "channel_spec": {"categorical": ["user", "item"], "numerical": ["age", "price"], "label": ["clicked"]},
        "feature_spec": {
            "item": {"dtype": "int32", "cardinality": 3},
            "user": {"dtype": "int8", "cardinality": 100},
            "age": {"dtype": "float16"},
            "price": {"dtype": "float16"},
            "clicked": {"dtype": "bool"},
        },
        "source_spec": {
            split: [
                {"type": "split_binary", "features": ["item"], "files": [f"{split}/b"]},
                {"type": "split_binary", "features": ["clicked"], "files": [f"{split}/y"]},
                {"type": "split_binary", "features": ["age", "price"], "files": [f"{split}/x"]},
                {"type": "split_binary", "features": ["user"], "files": [f"{split}/a"]},
            ]
            for split in ROWS
        },
        "metadata": {},
    }
    (tmp_path / FILE).write_text(yaml.safe_dump(content))
    for split, rows in ROWS.items():
        (tmp_path / split).mkdir()
        for name, width in {"a": 1, "b": 4, "x": 4, "y": 1}.items():
            np.zeros(rows * width, np.uint8).tofile(tmp_path / split / name)
    spec = FeatureSpec.load(tmp_path)
    assert spec.tables == (EmbeddingTable("user", 100), EmbeddingTable("item", 3))
    assert spec.splits["test"].ids == ("test/a", "test/b")
    assert (spec.splits["train"].numerical, spec.splits["train"].label) == ("train/x", "train/y")


def put(*keys: Any) -> Callable[[dict[str, Any]], None]:
    """Returns a change that sets the entry under all arguments but the last to the last."""

    def change(content: Any) -> None:
        for key in keys[:-2]:
            content = content[key]
        content[keys[-2]] = keys[-1]

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("channel_spec", None), "channel_spec is missing"),
        (put("channel_spec", "label", ["a", "b"]), "feature_spec.a is missing"),
        (put("channel_spec", "label", ["label", "num_0"]), "channel_spec.label has 2 features"),
        (put("channel_spec", "categorical", []), "channel_spec.categorical is not a list"),
        (put("channel_spec", "numerical", ["num_0", "num_0"]), "channel_spec.numerical has a feature twice"),
        (put("feature_spec", "label", "dtype", "int8"), "feature_spec.label.dtype is 'int8', not bool"),
        (put("feature_spec", "num_0", "dtype", "float32"), "feature_spec.num_1.dtype is 'float16', not float32"),
        (put("feature_spec", "num_0", "dtype", "int8"), "feature_spec.num_0.dtype is 'int8', not float16 or float32"),
        (put("feature_spec", "cat_0.bin", "dtype", "int64"), "feature_spec.cat_0.bin.dtype is 'int64'"),
        (put("feature_spec", "cat_0.bin", {"dtype": "int8"}), "feature_spec.cat_0.bin.cardinality is None"),
        (put("feature_spec", "cat_0.bin", "cardinality", 129), "feature_spec.cat_0.bin.cardinality is 129, too many"),
        (put("feature_spec", "cat_0.bin", "cardinality", True), "cat_0.bin.cardinality is True"),
        (put("feature_spec", "cat_0.bin", "hotness", 0), "feature_spec.cat_0.bin.hotness is 0"),
        (put("source_spec", {"train": []}), "source_spec has train, not exactly train and test"),
        (put("source_spec", "test", []), r"source_spec.test has no chunk for num_0"),
        (put("source_spec", "test", 0, "type", "csv"), r"source_spec.test\[0\].type is 'csv'"),
        (put("source_spec", "test", 0, "features", ["num_1", "num_0"]), r"test\[0\].features is num_1, num_0: every"),
        (put("source_spec", "test", 1, "features", ["cat_0.bin"]), r"test\[2\].features is cat_0.bin: .* each once"),
        (put("source_spec", "test", 0, "files", ["a", "b"]), r"test\[0\].files is \['a', 'b'\]"),
        (put("source_spec", "test", 0, "files", ["../a"]), r"test\[0\].files has ../a, which is not inside"),
        (put("source_spec", "test", 0, "files", ["test/x"]), "test/x .*No such file"),
        (put("feature_spec", "cat_0.bin", "dtype", "int16"), r"train/cat_0.bin has 3 rows, train/label.bin has 6"),
    ],
)
def test_an_invalid_key_or_file_is_named(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    write_folder(tmp_path, FeatureSpec.of([100, 30], 2))
    content = yaml.safe_load((tmp_path / FILE).read_text())
    change(content)
    (tmp_path / FILE).write_text(yaml.safe_dump(content))
    with pytest.raises(UserError, match=message) as error:
        FeatureSpec.load(tmp_path)
    assert "\n" not in str(error.value)


def test_truncated_files_are_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, FeatureSpec.of([100, 40000], 2))
    (tmp_path / "test/cat_1.bin").write_bytes(bytes(15))
    with pytest.raises(UserError, match=r"test/cat_1.bin has 15 bytes, not a multiple of the 4 bytes of a row"):
        FeatureSpec.load(tmp_path)
    (tmp_path / "test/cat_1.bin").write_bytes(bytes(12))
    with pytest.raises(UserError, match=r"test/cat_1.bin has 3 rows, test/label.bin has 4"):
        FeatureSpec.load(tmp_path)
    (tmp_path / FILE).write_text("channel_spec: [")
    with pytest.raises(UserError, match=r"feature_spec.yaml is not YAML"):
        FeatureSpec.load(tmp_path)
    with pytest.raises(UserError, match=r"cannot read .*feature_spec.yaml"):
        FeatureSpec.load(tmp_path / "nowhere")
