"""Fast modules in other people's models, on a CPU: by plain torch, and by the kernels in Triton's interpreter."""

import json
import logging
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.distilbert import modeling_distilbert as plain
from transformers.models.distilbert.configuration_distilbert import DistilBertConfig

from src.acceleration import accelerate, explain, restore
from src.errors import UserError
from src.gpu import triton_helpers
from src.models.distilbert import DistilBert
from tests.support.hugging_face import SIZES, mask_of, random_sentences, randomise

FFN = "distilbert.transformer.layer.0.ffn"
BATCH = random_sentences([7, 3, 5], 9)
MASKS = {"padded": mask_of(BATCH), "none": None, "whole": torch.ones(3, 9), "with gaps": mask_of(BATCH).clone()}
MASKS["with gaps"][0, 2] = 0  # pyright: ignore[reportOptionalSubscript]


def classifier(layers: int = 1, **options: Any) -> plain.DistilBertForSequenceClassification:
    """Returns a small one without dropout, always the same, in training mode."""
    sizes = {name: value for name, value in vars(SIZES).items() if name != "num_labels"}
    none = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
    config = DistilBertConfig(**{**sizes, "n_layers": layers, **none, **options})
    model = plain.DistilBertForSequenceClassification(config)
    randomise(model, 0)
    return model.train()


def stepped(model: nn.Module, mask: Tensor | None) -> dict[str, Tensor]:
    """Returns loss, logits and gradients, in float64."""
    output = model(input_ids=BATCH.ids.long(), attention_mask=mask, labels=BATCH.labels)
    output.loss.backward()
    values = {"loss": output.loss, "logits": output.logits}
    values |= {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: value.detach().double() for name, value in values.items()}


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_helpers, "devices", {"cuda", "cpu"})
    triton_helpers.note.cache_clear()


@pytest.mark.parametrize("mask", ["whole", *(pytest.param(n, marks=pytest.mark.slow) for n in MASKS if n != "whole")])
def test_hugging_faces_classifier_agrees_with_float64(mask: str, interpreted: None) -> None:
    fast, exact = accelerate(classifier()), classifier().double()
    torch.testing.assert_close(stepped(fast, MASKS[mask]), stepped(exact, MASKS[mask]), rtol=0, atol=2e-5)


@pytest.mark.slow
def test_an_encoder_returns_all_hidden_states_and_zeros_for_padding(interpreted: None) -> None:
    model, mask = classifier(2).distilbert, MASKS["padded"]
    assert mask is not None
    wanted = deepcopy(model)(BATCH.ids, mask).last_hidden_state
    accelerate(model)
    (states,) = model(BATCH.ids, mask, return_dict=False)
    torch.testing.assert_close(states[mask.bool()], wanted[mask.bool()], rtol=1e-4, atol=1e-4)
    assert not states[~mask.bool()].any() and states.dtype == wanted.dtype


def test_a_cpu_computes_by_the_plain_classes() -> None:
    fast, untouched = (stepped(model, MASKS["padded"]) for model in (accelerate(classifier()), classifier()))
    assert all(torch.equal(fast[name], value) for name, value in untouched.items())
    assert str(explain(classifier())).endswith("plain torch: the kernels need an NVIDIA GPU")


def test_the_object_its_parameters_and_its_keys_stay_and_restore_undoes_it() -> None:
    model = classifier()
    before, classes = [*model.state_dict(keep_vars=True).items()], [type(module) for module in model.modules()]
    for _ in range(2):
        assert accelerate(model) is model
        after = model.state_dict(keep_vars=True).items()
        assert all(a[0] == b[0] and a[1] is b[1] for a, b in zip(before, after, strict=True))
        assert [type(module) for module in deepcopy(model).modules()] == [type(module) for module in model.modules()]
    assert [type(module) for module in restore(model).modules()] == classes


def test_what_asks_for_more_than_the_kernels_give_gets_it_of_the_plain_classes(interpreted: None) -> None:
    fast, untouched = accelerate(classifier(2)), classifier(2)
    for question in ({"output_hidden_states": True}, {"inputs_embeds": torch.randn(2, 4, 24)}):
        ids = {} if "inputs_embeds" in question else {"input_ids": BATCH.ids.long()}
        outputs = [model(**ids, **question) for model in (fast, untouched)]
        assert torch.equal(outputs[0].logits, outputs[1].logits)
        assert len(outputs[0].hidden_states or ()) == len(outputs[1].hidden_states or ())
    left_padded = torch.tensor([[0] * 4 + [1] * 5] * 3)
    logits = [model(BATCH.ids.long(), left_padded).logits for model in (fast, untouched)]
    assert torch.equal(*logits)


def test_a_saved_model_is_the_plain_one(tmp_path: Path) -> None:
    model = accelerate(classifier())
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [
        "DistilBertForSequenceClassification"
    ]
    loaded = plain.DistilBertForSequenceClassification.from_pretrained(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), model.parameters(), strict=True))


class OtherEncoder(plain.DistilBertModel):
    """A subclass whose forward may compute anything."""


def with_hook(model: plain.DistilBertForSequenceClassification) -> None:
    model.get_submodule(FFN).register_forward_hook(lambda *_: None)


def with_subclass(model: plain.DistilBertForSequenceClassification) -> None:
    model.distilbert.__class__ = OtherEncoder  # pyright: ignore[reportAttributeAccessIssue]


def with_other_linear(model: plain.DistilBertForSequenceClassification) -> None:
    model.distilbert.transformer.layer[0].attention.q_lin = nn.Identity()  # pyright: ignore


@pytest.mark.parametrize(
    ("change", "name", "why"),
    [
        (with_hook, FFN, "has hooks"),
        (with_subclass, "distilbert", "OtherEncoder is a subclass of DistilBertModel"),
        (with_other_linear, "distilbert.transformer.layer.0.attention.q_lin", "Identity; expected Linear"),
    ],
)
def test_what_it_cannot_take_is_named_and_stays_plain(
    change: Any, name: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = classifier()
    change(model)
    encoder = type(model.distilbert)
    with caplog.at_level(logging.INFO):
        accelerate(model)
    assert type(model.distilbert) is encoder
    assert explain(model).kept[name].startswith(why)
    assert any(f"{name} stays plain: {why}" in line for line in caplog.messages)


def test_a_hook_that_comes_later_is_called(interpreted: None) -> None:
    model, calls = accelerate(classifier()), []
    model.get_submodule(FFN).register_forward_hook(lambda *_: calls.append(1))
    model(BATCH.ids.long())
    assert calls == [1]


def test_other_activations_and_unknown_models_are_refused() -> None:
    assert "activation=relu" in str(explain(classifier(activation="relu")))
    with pytest.raises(UserError, match=r"^Sequential has no module .*; accelerate takes Hugging Face's DistilBERT"):
        accelerate(nn.Sequential(nn.Linear(2, 2)))


def test_our_own_networks_are_taken() -> None:
    model = nn.ModuleDict({"network": DistilBert(SIZES)})
    names = explain(accelerate(model)).replaced
    assert names["network.distilbert.embeddings"].endswith("FastEmbeddings")
    assert "network.distilbert.transformer.layer.2" in names
    assert {type(module).__name__ for module in restore(model).modules()}.isdisjoint({"FastBlock", "FastEmbeddings"})
