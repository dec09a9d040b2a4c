"""Weights as safetensors: shards, their index, and that a file that is not the same is seen."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from src.config.dashes import as_keys
from src.export.record import without_folders
from src.pretrained.weights import FILE, INDEX, shards_of, weights_difference, write_weights
from src.training.export import difference


def tables() -> dict[str, torch.Tensor]:
    """Returns four tensors of 40, 40, 400 and 40 bytes; the first two share memory."""
    rows = torch.arange(20.0)
    return {"a": rows[:10], "b": rows[10:], "wide": torch.randn(100), "nan": torch.full((10,), torch.nan)}


def test_shards_hold_at_most_their_size_and_a_larger_tensor_has_its_own(tmp_path: Path) -> None:
    weights = tables()
    assert shards_of(weights, 100) == [["a", "b"], ["wide"], ["nan"]]
    write_weights(weights, tmp_path, 100)
    index = json.loads((tmp_path / INDEX).read_text())
    assert index["metadata"] == {"total_size": 520}
    assert index["weight_map"]["wide"] == "model-00002-of-00003.safetensors"
    assert load_file(tmp_path / "model-00001-of-00003.safetensors")["b"].tolist() == list(range(10, 20))
    assert weights_difference(tmp_path, weights) == 0


def test_one_shard_is_one_file_and_needs_no_index(tmp_path: Path) -> None:
    write_weights(tables(), tmp_path, 2**20)
    assert [file.name for file in tmp_path.iterdir()] == [FILE]


def test_a_changed_bit_or_a_missing_tensor_is_seen(tmp_path: Path) -> None:
    weights = tables()
    write_weights(weights, tmp_path, 2**20)
    assert weights_difference(tmp_path, weights) == 0
    assert weights_difference(tmp_path, weights | {"more": torch.zeros(1)}) == float("inf")
    stored = load_file(tmp_path / FILE)
    stored["a"][0] += 1e-7
    save_file(stored, tmp_path / FILE)
    assert weights_difference(tmp_path, weights) == float("inf")


def test_a_difference_is_relative_and_nan_is_none_that_is_allowed() -> None:
    expected = (torch.tensor([100.0, 1.0]),)
    assert difference((torch.tensor([100.0, 1.5]),), expected) == 0.005
    assert difference((torch.tensor([100.0, 1.5]),), expected, scale=2.0) == 0.25
    assert difference((torch.tensor([torch.nan, 1.0]),), expected) == float("inf")


def test_an_option_with_dashes_is_the_key() -> None:
    assert as_keys(["ckpt_path=a", "--to", "onnx", "--cfg", "job"], ["to"]) == [
        "ckpt_path=a",
        "to=onnx",
        "--cfg",
        "job",
    ]
    assert as_keys(["--to=hf"], ["to"]) == ["to=hf"]
    assert as_keys(["--to"], ["to"]) == ["to="]


def test_folders_of_this_machine_are_not_written() -> None:
    assert without_folders({"data_dir": "/home/me/data/sst2", "names": ["~/x/y", "a/b"]}) == {
        "data_dir": "sst2",
        "names": ["y", "a/b"],
    }
    labels = {"weights": "/x/y", "labels": ["/r/python", "a/b"]}
    assert without_folders(labels, in_lists=False) == labels | {"weights": "y"}
