"""Loading of Hugging Face's weight files, and the errors for files that do not fit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from src.errors import UserError
from src.models.distilbert import DistilBert
from src.models.distilbert.weights import load, read_sizes
from tests.support.hugging_face import SIZES, bert, distilbert

Tensors = dict[str, Tensor]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a DistilBERT saved by Hugging Face."""
    distilbert().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def with_config(folder: Path, **changed: Any) -> str:
    """Changes entries of the folder's config.json (None removes one); returns the folder."""
    file = folder / "config.json"
    config = json.loads(file.read_text()) | changed
    file.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))
    return str(folder)


def with_tensors(folder: Path, change: Callable[[Tensors], Tensors]) -> str:
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file)
    return str(folder)


def random_network() -> DistilBert:
    torch.manual_seed(0)
    return DistilBert(SIZES)


def test_a_folder_saved_by_hugging_face_is_loaded(folder: Path) -> None:
    assert read_sizes(str(folder)) == SIZES
    network = random_network()
    assert load(network, str(folder)) is True
    torch.testing.assert_close(dict(network.state_dict()), dict(distilbert().state_dict()), rtol=0, atol=0)


def test_a_pytorch_file_is_loaded(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save(distilbert(seed=1).state_dict(), folder / "pytorch_model.bin")
    network = random_network()
    assert load(network, str(folder)) is True
    torch.testing.assert_close(dict(network.state_dict()), dict(distilbert(seed=1).state_dict()), rtol=0, atol=0)


@pytest.mark.parametrize("prefix", ["distilbert.", ""], ids=["of a language model", "of an encoder alone"])
def test_a_bare_encoder_leaves_the_head_unchanged(folder: Path, prefix: str) -> None:
    """Also if the file has the language model's layers, as distilbert-base-uncased has."""

    def encoder(tensors: Tensors) -> Tensors:
        kept = {name: value for name, value in tensors.items() if name.startswith("distilbert.")}
        kept = {name.replace("distilbert.", prefix, 1): value for name, value in kept.items()}
        return kept | {"vocab_transform.weight": torch.ones(3), "vocab_projector.bias": torch.ones(2)}

    network = random_network()
    assert load(network, with_tensors(folder, encoder)) is False
    theirs, before, after = distilbert().state_dict(), random_network().state_dict(), network.state_dict()
    for name, value in after.items():
        assert torch.equal(value, (theirs if name.startswith("distilbert.") else before)[name])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"model_type": "bert"},
            "model_type is bert, not distilbert; a BERT encoder becomes a DistilBERT with `python -m",
        ),
        ({"model_type": "gpt2"}, "model_type is gpt2, not distilbert; give another model"),
        ({"activation": "relu"}, "activation is relu, but the network supports only gelu"),
        ({"n_layers": None}, "n_layers is None, not a number"),
    ],
)
def test_the_config_of_another_model_is_an_error(folder: Path, changed: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as refused:
        read_sizes(with_config(folder, **changed))
    assert str(folder / "config.json") in str(refused.value) and "\n" not in str(refused.value)


def without(part: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: value for name, value in tensors.items() if part not in name}


KEY = "distilbert.embeddings.word_embeddings.weight"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without("layer.2."), "distilbert.transformer.layer.2.attention.k_lin.bias is absent there and "),
        (without("classifier.bias"), r"classifier.bias is absent there and \(2,\) here"),
        (lambda t: t | {KEY: torch.ones(41, 24)}, rf"{KEY} is \(41, 24\) there and \(40, 24\) here"),
        (lambda t: t | {"distilbert.more": torch.ones(3)}, r"distilbert.more is \(3,\) there and absent here"),
        (lambda t: t | {"classifier.weight": torch.ones(3, 24)}, r"classifier.weight is \(3, 24\) there and \(2, 24\)"),
    ],
)
def test_tensors_of_another_network_are_named(folder: Path, change: Callable[[Tensors], Tensors], words: str) -> None:
    network = random_network()
    with pytest.raises(UserError, match=words) as refused:
        load(network, with_tensors(folder, change))
    assert str(folder) in str(refused.value) and "\n" not in str(refused.value)
    torch.testing.assert_close(dict(network.state_dict()), dict(random_network().state_dict()), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_truncated_file_is_an_error(folder: Path, name: str) -> None:
    (folder / "model.safetensors").unlink()
    if name == "pytorch_model.bin":
        torch.save(distilbert().state_dict(), folder / name)
        (folder / name).write_bytes((folder / name).read_bytes()[:1000])
    else:
        (folder / name).write_bytes(b"\x10\x00")
    with pytest.raises(UserError, match=f"{name} is truncated or ") as refused:
        load(random_network(), str(folder))
    assert "\n" not in str(refused.value)


def test_missing_files_are_errors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model has no model.safetensors or pytorch_model.bin; give a folder with"):
        load(random_network(), str(folder))
    (folder / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config.json is not JSON"):
        read_sizes(str(folder))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for name in ("nobody-there/no-such-model", "no/such/folder"):
        with pytest.raises(UserError, match=f"{name} is not a local folder, and the hub gives no config") as refused:
            read_sizes(name)
        assert "give model.task.weights=FOLDER with" in str(refused.value) and "\n" not in str(refused.value)


def test_the_error_for_a_bert_names_the_converter(tmp_path: Path) -> None:
    bert().save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"src.models.distilbert.convert FOLDER --model"):
        read_sizes(str(tmp_path))
