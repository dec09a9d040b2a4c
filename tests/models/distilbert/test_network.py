"""DistilBERT's network: against Hugging Face's, packed against padded, and dropout."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.distilbert.configuration_distilbert import DistilBertConfig
from transformers.models.distilbert.modeling_distilbert import DistilBertForSequenceClassification

from src.batches.tokens import PackedTokens, PaddedTokens
from src.errors import UserError
from src.models.distilbert import DistilBert, Sizes
from src.models.distilbert.layout import Layout, Tokens, token_mask
from src.models.distilbert.network import INIT_STD
from tests.support.hugging_face import SIZES, distilbert, mask_of, packed, random_sentences

LENGTHS = [5, 18, 3, 11, 4]
LONGEST = 18
TOLERANCE: dict[torch.dtype, dict[str, Any]] = {
    torch.float64: {"rtol": 1e-9, "atol": 1e-11},
    torch.float32: {"rtol": 1e-4, "atol": 1e-5},
}


def ours(dtype: torch.dtype = torch.float64, seed: int = 0) -> DistilBert:
    """Returns our network with Hugging Face's weights, in evaluation mode."""
    network = DistilBert(SIZES).to(dtype).eval()
    network.load_state_dict(distilbert(seed).state_dict())
    return network


def gradients(network: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in network.named_parameters() if p.grad is not None}


def outcome(network: DistilBert, batch: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the logits, and the gradients of the loss."""
    network.zero_grad()
    logits = network(batch)
    F.cross_entropy(logits, batch.labels).backward()
    return logits.detach(), gradients(network)


def test_state_dict_names_and_shapes_equal_hugging_faces() -> None:
    with torch.device("meta"):
        theirs, mine = DistilBertForSequenceClassification(DistilBertConfig()), DistilBert()
    shapes = [{name: value.shape for name, value in model.state_dict().items()} for model in (mine, theirs)]
    assert shapes[0] == shapes[1]
    assert sum(parameter.numel() for parameter in mine.parameters()) == 66_955_010


def test_each_weight_is_drawn_once() -> None:
    """In the order in which layers are made, from the seed's first number on."""
    torch.manual_seed(3)
    network = DistilBert(SIZES)
    torch.manual_seed(3)
    for name, value in network.named_parameters():
        is_matrix, is_norm = value.dim() == 2, "norm" in name.lower()
        drawn = torch.randn(value.shape) * INIT_STD if is_matrix else torch.full(value.shape, float(is_norm))
        drawn = torch.zeros(value.shape) if name.endswith("bias") else drawn
        if name.endswith("word_embeddings.weight"):
            drawn[0] = 0
        assert torch.equal(value.detach(), drawn), name


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("length", [LONGEST, 20])
def test_outputs_and_gradients_equal_hugging_faces(dtype: torch.dtype, length: int) -> None:
    batch = random_sentences(LENGTHS, length)
    theirs: Any = distilbert()
    theirs.to(dtype)
    output = theirs(batch.ids.long(), attention_mask=mask_of(batch), labels=batch.labels)
    output.loss.backward()
    logits, grads = outcome(ours(dtype), batch)
    torch.testing.assert_close(logits, output.logits, **TOLERANCE[dtype])
    torch.testing.assert_close(grads, gradients(theirs), **TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("padding", [0, 9])
@pytest.mark.parametrize("longest", [LONGEST, 31])
def test_packed_batches_give_the_results_of_padded_ones(dtype: torch.dtype, padding: int, longest: int) -> None:
    """With any padding after the last sentence and any upper bound of the lengths."""
    batch, network = random_sentences(LENGTHS, 20), ours(dtype)
    expected = outcome(network, batch)
    result = outcome(network, packed(batch, padding, longest))
    torch.testing.assert_close(result, expected, **TOLERANCE[dtype])


@pytest.mark.parametrize("is_packed", [False, True])
def test_mean_pooling_averages_a_sentences_tokens(is_packed: bool) -> None:
    """Against the head on the mean of Hugging Face's hidden states, gradients included."""
    batch: Any = random_sentences(LENGTHS, 20)
    theirs: Any = distilbert().double().eval()
    hidden = theirs.distilbert(batch.ids.long(), attention_mask=mask_of(batch)).last_hidden_state
    pooled = torch.stack([states[:length].mean(0) for states, length in zip(hidden, LENGTHS, strict=True)])
    expected = theirs.classifier(F.relu(theirs.pre_classifier(pooled)))
    F.cross_entropy(expected, batch.labels).backward()
    network = DistilBert(SIZES, pooling="mean").double().eval()
    network.load_state_dict(theirs.state_dict())
    logits, grads = outcome(network, packed(batch, 9, 25) if is_packed else batch)
    torch.testing.assert_close(logits, expected, **TOLERANCE[torch.float64])
    torch.testing.assert_close(grads, gradients(theirs), **TOLERANCE[torch.float64])


def test_sentences_do_not_attend_to_each_other() -> None:
    network = ours()
    batch = packed(random_sentences(LENGTHS, 20), 3, LONGEST)
    other = batch._replace(ids=batch.ids.clone())
    other.ids[5:23] = batch.ids[5:23].flip(0)  # the second sentence
    changed = (network(batch) - network(other)).abs().amax(1) > 0
    assert changed.tolist() == [False, True, False, False, False]


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_layout_pads_tokens_to_sentences_and_back(is_packed: bool) -> None:
    batch: PaddedTokens | PackedTokens = random_sentences(LENGTHS, 20)
    ids = batch.ids
    batch = packed(batch, 6, 25) if is_packed else batch
    layout = Layout.of(batch)
    tokens = batch.ids.flatten()[:, None].double()
    sentences = layout.to_sentences(tokens)[: len(LENGTHS), :20, 0]
    assert torch.equal(sentences, ids.double())
    assert torch.equal(layout.is_token[: len(LENGTHS), :20], token_mask(torch.tensor(LENGTHS), 20))
    assert torch.equal(layout.to_tokens(layout.to_sentences(tokens)), tokens)
    assert torch.equal(batch.ids.flatten()[layout.first], ids[:, 0])


def test_paddings_word_vector_gets_no_gradient() -> None:
    """As in Hugging Face's model, even if the id occurs within a sentence."""
    padded = random_sentences(LENGTHS, 20)
    padded.ids[0, 2] = 0
    for batch in (padded, packed(padded, 4, LONGEST)):
        grads = outcome(ours(), batch)[1]
        assert not grads["distilbert.embeddings.word_embeddings.weight"][0].any()


@pytest.mark.parametrize("part", ["dropout", "attention_dropout", "head_dropout"])
def test_each_dropout_applies_in_training_only(part: str) -> None:
    nothing = {"dropout": 0.0, "attention_dropout": 0.0, "head_dropout": 0.0}
    batch = random_sentences(LENGTHS, 20)
    for share, same in ((0.0, True), (0.5, False)):
        shares: dict[str, Any] = nothing | {part: share}
        network = DistilBert(SIZES, **shares)
        network.load_state_dict(distilbert().state_dict())
        torch.manual_seed(0)
        logits = [network(batch) for _ in range(2)]
        assert torch.equal(*logits) is same
        network.eval()
        torch.testing.assert_close(network(batch), ours(torch.float32)(batch))


def test_dropout_is_applied_where_hugging_face_applies_it() -> None:
    """Equal random numbers give equal outputs; without attention dropout, which draws in another order."""
    theirs: Any = distilbert()
    batch, network = random_sentences([20] * 3, 20), DistilBert(SIZES, attention_dropout=0.0)
    network.load_state_dict(theirs.state_dict())
    for block in theirs.distilbert.transformer.layer:
        block.attention.dropout.p = 0.0
    logits = []
    for model in (theirs, network):
        model.train()
        torch.manual_seed(3)
        logits.append(model(batch.ids.long()).logits if model is theirs else model(batch))
    torch.testing.assert_close(logits[1], logits[0], **TOLERANCE[torch.float32])


def test_initialisation_equals_hugging_faces() -> None:
    torch.manual_seed(0)
    network = DistilBert(Sizes(vocab_size=500, dim=96, n_heads=4, n_layers=1))
    for name, value in network.state_dict().items():
        if "norm" in name.lower():
            assert torch.equal(value, torch.full_like(value, float(name.endswith("weight"))))
        elif name.endswith("bias"):
            assert not value.any()
        else:
            assert value.std().item() == pytest.approx(0.02, rel=0.05 if value.numel() > 9000 else 0.2)
    assert not network.distilbert.embeddings.word_embeddings.weight[0].any()


def test_logits_are_float32_in_half_precision() -> None:
    network = ours(torch.float32)
    batch = random_sentences(LENGTHS, 20)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = network(batch)
    assert mixed.dtype == torch.float32
    assert network.bfloat16()(batch).dtype == torch.float32
    torch.testing.assert_close(mixed, ours(torch.float32)(batch), rtol=0.1, atol=0.3)


def test_bad_sizes_are_errors() -> None:
    with pytest.raises(UserError, match=r"a dim that divides by n_heads; got .*'dim': 10"):
        Sizes(dim=10, n_heads=4)
