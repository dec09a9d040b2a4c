"""What push uploads: a folder that `from_pretrained` reads as the checkpoint, with a card that the Hub reads."""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard, constants

from src.batches.clicks import Clicks
from src.errors import UserError
from src.export.run import export
from src.pretrained.hub import check_hub
from src.pretrained.reading import NAME, REST, read_export
from src.report.record import read_record
from src.system.masking import MASK
from src.trained import from_pretrained, load, open_trained
from tests.support.composing import composed
from tests.support.refusing import Command, command, the_error_line  # noqa: F401

Checkpoints = Callable[[str], Path]
CALLS: dict[str, Callable[[Any], Any]] = {
    "moflow": lambda predictor: predictor.likelihood(["CCO", "CC#N"]),
    "se3_transformer": lambda predictor: predictor(["CCO"]).values,
    "dlrm": lambda predictor: predictor.network(clicks_for(predictor)).detach(),
    "mobilenet_v1": lambda predictor: predictor(np.arange(768, dtype=np.uint8).reshape(16, 16, 3)).probabilities,
    "distilbert": lambda predictor: predictor(["good word1", "bad"]).probabilities,
}


def clicks_for(predictor: Any) -> Clicks:
    tables, columns = predictor.network.tables, predictor.layout.num_numerical
    return Clicks(torch.zeros(2), torch.ones(2, columns), torch.ones(2 * len(tables), dtype=torch.int32))


def card_of(folder: Path) -> Any:
    return ModelCard.load(folder / "README.md")


@pytest.fixture
def without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def exported(checkpoint: Path, folder: Path, *overrides: str, to: str = "safetensors") -> Path:
    export(composed("export", f"ckpt_path={checkpoint}", f"to={to}", f"output={folder}", *overrides))
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("without_network")
@pytest.mark.parametrize("model", CALLS)
def test_an_export_is_loaded_as_its_checkpoint(model: str, checkpoint_of: Checkpoints, tmp_path: Path) -> None:
    checkpoint = checkpoint_of(model)
    folder = exported(checkpoint, tmp_path / "out", *([f"shard_gib={4000 / 2**30}"] if model == "dlrm" else []))
    ours, theirs = (open_trained(path).task.state_dict() for path in (checkpoint, folder))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert (folder / REST).exists() == any(not key.startswith("network.") for key in ours)
    answers = []
    for predictor in (load(checkpoint, device="cpu"), from_pretrained(folder, device="cpu")):
        torch.manual_seed(0)  # MoFlow's likelihood draws noise
        answers.append(CALLS[model](predictor))
    np.testing.assert_array_equal(answers[1], answers[0])


@pytest.mark.slow
@pytest.mark.usefixtures("without_network")
def test_one_folder_is_for_transformers_and_for_us(checkpoint_of: Checkpoints, tmp_path: Path) -> None:
    folder = exported(checkpoint_of("distilbert"), tmp_path / "out", to="hf")
    answers = from_pretrained(folder, device="cpu")(["good word1"])
    expected = load(checkpoint_of("distilbert"), device="cpu")(["good word1"])
    np.testing.assert_array_equal(answers.probabilities, expected.probabilities)
    card = card_of(folder)
    assert card.data.library_name == "transformers" and "sst2" in str(card.data.datasets)
    assert "AutoModelForSequenceClassification.from_pretrained" in card.text


@pytest.mark.slow
@pytest.mark.usefixtures("without_network")
@pytest.mark.parametrize("model", ["dlrm", "distilbert"])
def test_the_card_has_the_figures_of_the_record(model: str, checkpoint_of: Checkpoints, tmp_path: Path) -> None:
    checkpoint = checkpoint_of(model)
    run = read_record(checkpoint.parent.parent)
    card = card_of(exported(checkpoint, tmp_path / "out"))
    assert card.data.tags == ["reprise", model, "safetensors"] and card.data.library_name == "reprise"
    assert run.final_metric is not None
    if run.final_metric.value is None:
        assert card.data.eval_results is None and "| not measured |" in card.text
    else:
        (result,) = card.data.eval_results or []
        assert (result.metric_type, result.metric_value) == (run.final_metric.name, run.final_metric.value)
        assert result.task_type == card.data.pipeline_tag == "tabular-classification"
        assert "the host's monotonic clock" in card.text
    assert (run.environment["git"]["commit"] or "not known") in card.text
    assert f"{run.case.trainer}, {run.case.precision}, batch {run.case.batch_size}" in card.text
    assert f'reprise.from_pretrained("{tmp_path / "out"}")' in card.text


@pytest.mark.slow
def test_a_checkpoint_without_its_run_has_a_card_without_figures(checkpoint_of: Checkpoints, tmp_path: Path) -> None:
    moved = tmp_path / "alone.ckpt"
    moved.write_bytes(checkpoint_of("dlrm").read_bytes())
    card = card_of(exported(moved, tmp_path / "out"))
    assert card.data.eval_results is None and "there are no figures" in card.text


@pytest.mark.slow
def test_what_is_withheld_is_given_again(
    checkpoint_of: Checkpoints,
    tmp_path: Path,
    command: Command,  # noqa: F811
) -> None:
    content = torch.load(checkpoint_of("moflow"), weights_only=True)
    key, value = "temperature", content["model_config"]["task"]["temperature"]
    content["model_config"]["task"][key] = MASK
    torch.save(content, tmp_path / "a.ckpt")
    words = [f"ckpt_path={tmp_path / 'a.ckpt'}", "to=safetensors", f"output={tmp_path / 'out'}"]
    ended = command("export.py", *words, cwd=tmp_path)
    assert ended.code == 2
    assert the_error_line(ended.err).endswith(f"give it again as model.task.{key}=VALUE")
    given = f"model.task.{key}={value}"
    assert command("export.py", *words, given, cwd=tmp_path).code == 0
    with pytest.raises(UserError, match=rf"give it again as model\.task\.{key}=VALUE"):
        from_pretrained(tmp_path / "out", device="cpu")
    assert from_pretrained(tmp_path / "out", given, device="cpu").sample(2)


@pytest.mark.slow
def test_a_folder_that_cannot_be_loaded(checkpoint_of: Checkpoints, tmp_path: Path) -> None:
    folder = exported(checkpoint_of("dlrm"), tmp_path / "out")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../a.safetensors"}}))
    with pytest.raises(UserError, match=r"'\.\./a\.safetensors' is no file of weights"):
        read_export(folder)
    (folder / "model.safetensors.index.json").unlink()
    (folder / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(UserError, match=r"its weights cannot be read .*; export or download it again"):
        read_export(folder)
    record = json.loads((folder / NAME).read_text())
    (folder / NAME).write_text(json.dumps({"format": "onnx"}))
    with pytest.raises(UserError, match="an export to onnx, for other libraries; export --to safetensors"):
        read_export(folder)
    (folder / NAME).write_text(json.dumps(record | {"model_config": {"name": "x" * 3000, "task": {}}}))
    with pytest.raises(UserError, match=r"model_config\.name is a text of 3000 characters"):
        read_export(folder)
    (folder / NAME).unlink()
    with pytest.raises(UserError, match="is no export"):
        from_pretrained(folder)


def test_a_hub_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # where nothing listens
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match=r"^push=someone/model needs a token that may write; run hf auth login, or set"):
        check_hub("someone/model")
    monkeypatch.setenv("HF_TOKEN", "hf_none")
    with pytest.raises(UserError, match=r"^push=someone/model: .*refused; check the network and the token$"):
        check_hub("someone/model")
    with pytest.raises(UserError, match=r"^push=a/b/c: .*; expected USER/NAME$"):
        check_hub("a/b/c")
    with pytest.raises(UserError, match=r"^someone/model: .*; give USER/NAME of the Hub, or a folder that export.py"):
        from_pretrained("someone/model", device="cpu")
