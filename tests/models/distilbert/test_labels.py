"""The labels that a weight folder names: their outputs, and what does not fit the data."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.distilbert.configuration_distilbert import DistilBertConfig
from transformers.models.distilbert.modeling_distilbert import DistilBertForSequenceClassification

from src.datamodules.text.sentences import SentencesDataModule, Source
from src.errors import UserError
from src.models.distilbert import DistilBert
from src.models.distilbert.labels import labels_in, order_of
from src.models.distilbert.task import DistilBertTask
from tests.support.hugging_face import SIZES, randomise
from tests.support.sst2_rows import write_vocabulary


def saved(folder: Path, names: list[str], **config: Any) -> DistilBertForSequenceClassification:
    """Writes what Hugging Face saves of a model with these labels; returns it."""
    sizes = {name: value for name, value in vars(SIZES).items() if name != "num_labels"}
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}
    model = DistilBertForSequenceClassification(DistilBertConfig(**sizes, **labels, **config)).eval()
    randomise(model, 0)
    model.save_pretrained(folder)
    write_vocabulary(folder, ("[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"x{number}" for number in range(36))))
    return model


def fitted(folder: Path, labels: list[str], **options: Any) -> tuple[DistilBertTask, SentencesDataModule]:
    lines = [f"x{number} x{number + 1},{label}" for number, label in enumerate(labels * 4)]
    (folder / "own.csv").write_text("\n".join(["text,label", *lines, ""]))
    data = SentencesDataModule(
        source=Source(str(folder / "own.csv")), vocabulary=str(folder), name="s", batch_size=4, seed=0, max_length=8
    )
    task = DistilBertTask(lambda sizes: DistilBert(sizes), torch.optim.AdamW, weights=str(folder), **options)
    task.bind_data(data)
    return task, data


@pytest.mark.parametrize(
    ("names", "labels", "expected"),
    [
        (["POSITIVE", "NEGATIVE"], ["negative", "positive"], ["negative", "positive"]),
        (["neutral", "good", "bad"], ["bad", "good", "neutral"], ["bad", "good", "neutral"]),
        (["neutral", "good", "bad"], ["bad", "good"], ["bad", "good", "neutral"]),
        (["LABEL_0", "LABEL_1", "LABEL_2"], ["0", "1", "2"], ["0", "1", "2"]),
        (["1", "0"], ["0", "1"], ["0", "1"]),
    ],
)
def test_every_label_has_the_output_that_the_weights_name(
    names: list[str], labels: list[str], expected: list[str], tmp_path: Path
) -> None:
    model = saved(tmp_path, names)
    task, data = fitted(tmp_path, labels)
    assert list(data.label_names) == expected
    tokens = data.vocabulary.encode(["x1 x2 x3"], "here")
    (batch,) = data.loader(tokens, batch_size=1)
    with torch.no_grad():
        ours = task.network.eval()(batch)[0]
        theirs = model(torch.from_numpy(tokens.ids)[None].long()).logits[0]
    place = {name.casefold(): number for number, name in enumerate(names)}
    order = [place.get(label, number) for number, label in enumerate(expected)]
    torch.testing.assert_close(ours, theirs[order])
    task.bind_data(data)
    with torch.no_grad():  # a second call, as of a resumed run, changes nothing
        torch.testing.assert_close(task.network(batch)[0], theirs[order])


@pytest.mark.parametrize(
    ("names", "labels"), [(["joy", "anger"], ["bad", "good"]), (["LABEL_0", "LABEL_1"], ["bad", "good"]),
                          (["joy", "anger"], ["anger", "fear", "joy"])],
)  # fmt: skip
def test_other_labels_are_refused_with_both_lists(names: list[str], labels: list[str], tmp_path: Path) -> None:
    saved(tmp_path, names)
    with pytest.raises(UserError, match=f"are {', '.join(names)}, those of the data {', '.join(labels)}: .*new_head"):
        fitted(tmp_path, labels)
    task, data = fitted(tmp_path, labels, new_head=True)
    assert task.network.sizes.num_labels == len(data.label_names) and not task.is_trained


@pytest.mark.parametrize("problem", ["regression", "multi_label_classification"])
def test_a_head_that_chooses_no_label_is_refused(problem: str, tmp_path: Path) -> None:
    saved(tmp_path, ["a", "b"], problem_type=problem)
    with pytest.raises(UserError, match=f"problem_type is '{problem}', but a sentence gets one label"):
        fitted(tmp_path, ["a", "b"])


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"id2label": {"1": "a", "2": "b"}}, "id2label is not numbered from 0"),
        ({"id2label": ["a", "b"]}, "id2label is not numbered from 0"),
        ({"id2label": {"0": "a", "1": "a"}}, "id2label has a name twice"),
        (
            {"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 1, "b": 0}},
            "a is label 0 in id2label, but 1 in",
        ),
        ({"num_labels": "many"}, "num_labels is 'many'"),
    ],
)
def test_names_that_contradict_each_other_are_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=f"config.json: {words}"):
        labels_in(config, Path("config.json"))


def test_outputs_of_sst2_without_names_are_its_numbers() -> None:
    assert order_of(["LABEL_0", "LABEL_1"], ["negative", "positive"], True, "x") == [0, 1]
    assert order_of(["positive", "negative"], ["negative", "positive"], True, "x") == [1, 0]
    assert labels_in({}, Path("x")) == ["LABEL_0", "LABEL_1"]
    assert labels_in({"num_labels": 3}, Path("x"))[2] == "LABEL_2"


def test_a_checkpoint_keeps_the_options_of_its_tokenizer(tmp_path: Path) -> None:
    saved(tmp_path, ["a", "b"])
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    task, _ = fitted(tmp_path, ["a", "b"])
    checkpoint: dict[str, Any] = {}
    task.on_save_checkpoint(checkpoint)
    other = DistilBertTask(lambda sizes: DistilBert(sizes), torch.optim.AdamW)
    other.on_load_checkpoint(checkpoint)
    assert other.tokenizer.changed == {"do_lower_case": False}


def test_more_tokens_than_the_tokenizer_has_are_refused(tmp_path: Path) -> None:
    saved(tmp_path, ["a", "b"])
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 7}')
    with pytest.raises(UserError, match="is beyond the model_max_length 7 of tokenizer_config"):
        fitted(tmp_path, ["a", "b"])
