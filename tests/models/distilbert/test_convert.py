"""Conversion of BERT to DistilBERT: the same hidden states, in a folder that Hugging Face reads as well."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.models.distilbert.modeling_distilbert import DistilBertModel

from src.batches.tokens import PaddedTokens
from src.models.distilbert import DistilBert
from src.models.distilbert.convert import main
from src.models.distilbert.layout import Layout
from src.models.distilbert.weights import load, read_sizes
from tests.support.hugging_face import SIZES, bert, mask_of, random_sentences

LENGTHS = [5, 20, 3, 11]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with a BERT saved by Hugging Face and a vocabulary."""
    folder = tmp_path / "bert"
    bert().save_pretrained(folder)
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n")
    return folder


def real(states: Tensor, batch: PaddedTokens) -> Tensor:
    """Returns the hidden states of real tokens."""
    return states.view(*batch.ids.shape, -1)[mask_of(batch).bool()]


def test_hidden_states_equal_berts(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "new" / "distilbert"
    assert main([str(target), "--model", str(source)]) == 0
    assert sorted(path.name for path in target.iterdir()) == ["config.json", "model.safetensors", "vocab.txt"]
    assert read_sizes(str(target)) == SIZES
    network = DistilBert(SIZES).double().eval()
    assert load(network, str(target)) is False
    batch = random_sentences(LENGTHS, 20)
    theirs = bert().double()(batch.ids.long(), attention_mask=mask_of(batch)).last_hidden_state
    hidden = network.distilbert(batch, Layout.of(batch))
    # The conversion adds positions and token type in float32.
    torch.testing.assert_close(real(hidden, batch), real(theirs, batch), rtol=1e-5, atol=1e-6)


def test_hugging_face_reads_the_converted_folder(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "distilbert"
    main([str(target), "--model", str(source)])
    network, theirs = DistilBert(SIZES).eval(), DistilBertModel.from_pretrained(target).eval()
    load(network, str(target))
    batch = random_sentences(LENGTHS, 20)
    expected = theirs(batch.ids.long(), attention_mask=mask_of(batch)).last_hidden_state
    hidden = network.distilbert(batch, Layout.of(batch))
    torch.testing.assert_close(real(hidden, batch), real(expected, batch), rtol=1e-4, atol=1e-5)


def test_positions_include_token_type_0(source: Path, tmp_path: Path) -> None:
    """The vector of type 0 is added to every position; type 1 and the pooler are dropped."""
    tensors = load_file(source / "model.safetensors")
    target = tmp_path / "distilbert"
    main([str(target), "--model", str(source)])
    positions = load_file(target / "model.safetensors")["distilbert.embeddings.position_embeddings.weight"]
    types = tensors["embeddings.token_type_embeddings.weight"]
    assert types[0].any()
    added = positions - tensors["embeddings.position_embeddings.weight"]
    torch.testing.assert_close(added, types[:1].expand_as(positions))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model_type": "roberta"}, "model_type is roberta, not bert; give another model"),
        ({"hidden_act": "relu"}, "activation is relu, but the network supports only gelu"),
        ({"position_embedding_type": "relative_key"}, "DistilBERT has absolute positions and layer_norm_eps 1e-12"),
        ({"layer_norm_eps": 1e-5}, "DistilBERT has absolute positions and layer_norm_eps 1e-12"),
        (
            {"num_hidden_layers": 4},
            "has no encoder.layer.3.attention.self.query.weight; give the weights of a BERT with 4",
        ),
    ],
)
def test_unsupported_berts_are_errors(
    source: Path, tmp_path: Path, changed: dict[str, object], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | changed))
    assert main([str(tmp_path / "made"), "--model", str(source)]) == 2
    message = capsys.readouterr().err
    assert words in message and message.startswith("error: ") and message.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bert"]


def test_an_existing_folder_is_not_overwritten(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(source), "--model", str(source)]) == 2
    assert capsys.readouterr().err == f"error: {source} exists already; give another folder, or delete it\n"


def test_tensor_names_may_have_the_prefix_bert(source: Path, tmp_path: Path) -> None:
    """As in files of an encoder saved with a head."""
    main([str(tmp_path / "plain"), "--model", str(source)])
    tensors = load_file(source / "model.safetensors")
    save_file({f"bert.{name}": value for name, value in tensors.items()}, source / "model.safetensors")
    assert main([str(tmp_path / "named"), "--model", str(source)]) == 0
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "named")]
    assert files[0] == files[1]
