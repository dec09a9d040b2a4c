"""export.py: each format is read by its own reader, and what cannot be exact is refused in one line."""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
from safetensors.torch import load_file

from src.errors import UserError
from src.export.record import NAME, with_version
from src.export.run import TOLERANCE, export, opened, reason_of
from src.models.distilbert.convert import config_of
from src.models.distilbert.network import Sizes
from src.training.checkpoints import read_checkpoint
from src.training.export import Export
from src.training.task import Task
from tests.support import ROOT, warm
from tests.support.composing import composed
from tests.support.refusing import the_error_line

pytestmark = pytest.mark.slow
MODELS = "moflow", "se3_transformer", "dlrm", "mobilenet_v1", "distilbert"
Checkpoints = Callable[[str], Path]


@pytest.fixture(autouse=True)
def without_checked_shapes() -> Iterator[None]:
    """While torch.export traces, a size is no int, which the checks of the types would refuse; users have none."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def exported(checkpoint: Path, to: str, folder: Path, *overrides: str) -> dict[str, Any]:
    """Returns what the file beside an export says."""
    export(composed("export", f"ckpt_path={checkpoint}", f"to={to}", f"output={folder}", *overrides))
    return json.loads((folder / NAME).read_text(encoding="utf-8"))


@pytest.mark.parametrize("model", MODELS)
def test_weights_have_the_keys_of_the_network(model: str, checkpoint_of: Checkpoints, tmp_path: Path) -> None:
    record = exported(checkpoint_of(model), "safetensors", tmp_path / "out")
    stored = load_file(tmp_path / "out" / "model.safetensors")
    state = read_checkpoint(checkpoint_of(model))["state_dict"]
    ours = {key.removeprefix("network."): value for key, value in state.items() if key.startswith("network.")}
    assert stored.keys() == ours.keys()
    assert all(torch.equal(stored[key], ours[key]) for key in ours)
    assert record["model"] == model and record["read_again"]["difference"] == 0
    assert record["trained_with"]["datamodule"]["name"]
    assert str(checkpoint_of(model).parent) not in json.dumps(record)


@pytest.mark.parametrize("model", MODELS)
def test_a_graph_of_torch_takes_batches_of_any_size(model: str, checkpoint_of: Checkpoints, tmp_path: Path) -> None:
    record = exported(checkpoint_of(model), "torch_export", tmp_path / "out")
    graph = torch.export.load(tmp_path / "out" / "model.pt2").module()
    task = opened(checkpoint_of(model)).task
    offered = task.exported().graph
    assert offered is not None and list(record["inputs"]) == list(offered.free)
    inputs, expected = offered.example(7)
    outputs = graph(*inputs.values())
    for output, value in zip((outputs,) if isinstance(outputs, torch.Tensor) else outputs, expected, strict=True):
        torch.testing.assert_close(output, value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model", ["moflow", "dlrm", "mobilenet_v1", "distilbert"])
def test_onnxruntime_gives_the_same(model: str, checkpoint_of: Checkpoints, tmp_path: Path) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    assert exported(checkpoint_of(model), "onnx", tmp_path / "out")["read_again"]["difference"] <= 1e-4


def test_compiled_for_this_cpu(checkpoint_of: Checkpoints, tmp_path: Path) -> None:
    record = exported(checkpoint_of("dlrm"), "aoti", tmp_path / "out")
    assert record["read_again"] == {
        "reader": "torch._inductor.aoti_load_package",
        "difference": pytest.approx(0, abs=1e-4),
    }


def test_transformers_reads_names_and_tokenizer(checkpoint_of: Checkpoints, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    record = exported(checkpoint_of("distilbert"), "hf", tmp_path / "out")
    model: Any = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert model.config.id2label == {0: "negative", 1: "positive"}
    tokens = AutoTokenizer.from_pretrained(tmp_path / "out")("Good word1", return_tensors="pt")
    pieces = record["preprocessing"]["vocabulary"]
    assert [pieces[number] for number in tokens["input_ids"][0]] == ["[CLS]", "good", "word1", "[SEP]"]
    assert model(**tokens).logits.shape == (1, 2)


def test_timm_reads_the_published_sizes_alone(checkpoint_of: Checkpoints, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"to=hf: mobilenet_v1 has no such export: timm's .*width_multiplier; give to=s"
    ):
        exported(checkpoint_of("mobilenet_v1"), "hf", tmp_path / "narrow")
    pytest.importorskip("timm")
    exported(checkpoint_of("mobilenet_v1 as timm's"), "hf", tmp_path / "out")


def test_tables_lie_in_shards_beside_the_graph(checkpoint_of: Checkpoints, tmp_path: Path) -> None:
    record = exported(checkpoint_of("dlrm"), "torch_export", tmp_path / "out", f"shard_gib={4000 / 2**30}")
    files = sorted(file.name for file in (tmp_path / "out").glob("*.safetensors"))
    assert files == [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    tensors = {key for file in files for key in load_file(tmp_path / "out" / file)}
    assert tensors == {table["tensor"] for table in record["preprocessing"]["tables"]}


def test_what_is_not_the_same_is_not_written(
    checkpoint_of: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No difference is small enough for a tolerance below 0."""
    monkeypatch.setitem(TOLERANCE, "torch_export", -1.0)
    with pytest.raises(
        UserError, match=r"read again by torch\.export\.load it differs by 0 .* nothing was written; give to="
    ):
        exported(checkpoint_of("dlrm"), "torch_export", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_dropped_layer_is_seen(checkpoint_of: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_one_layer(sizes: Sizes) -> dict[str, Any]:
        return config_of(replace(sizes, n_layers=1))

    monkeypatch.setattr("src.models.distilbert.export.config_of", of_one_layer)
    with pytest.raises(UserError, match="to=hf: read again by transformers it differs by"):
        exported(checkpoint_of("distilbert"), "hf", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_an_earlier_export_stays_unless_it_is_to_be_overwritten(checkpoint_of: Checkpoints, tmp_path: Path) -> None:
    folder, checkpoint = tmp_path / "out", checkpoint_of("dlrm")
    exported(checkpoint, "safetensors", folder)
    with pytest.raises(UserError, match=r"out exists already; give output=FOLDER, or overwrite=true"):
        exported(checkpoint, "torch_export", folder)
    assert exported(checkpoint, "torch_export", folder, "overwrite=true")["format"] == "torch_export"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (folder / NAME).unlink()
    with pytest.raises(UserError, match="is no earlier export"):
        exported(checkpoint, "safetensors", folder, "overwrite=true")
    assert (folder / "model.pt2").is_file()


def test_a_missing_package_is_named_with_its_extra(
    checkpoint_of: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UserError, match=r"to=onnx needs onnx, which is not installed: pip install 'reprise\[export\]'"):
        exported(checkpoint_of("dlrm"), "onnx", tmp_path / "out")


def test_a_model_of_ones_own_has_its_weights(
    checkpoint_of: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("src.models.dlrm.task.DLRMTask.exported", Task.exported)
    assert exported(checkpoint_of("dlrm"), "safetensors", tmp_path / "out")["preprocessing"] == Export().preprocessing
    with pytest.raises(UserError, match=r"dlrm has no such export: .*Task\.exported.*; give to=safetensors$"):
        exported(checkpoint_of("dlrm"), "onnx", tmp_path / "other")


def test_a_checkpoint_of_another_version_says_which(checkpoint_of: Checkpoints, tmp_path: Path) -> None:
    run = checkpoint_of("dlrm").parent.parent
    record = json.loads((run / "result.json").read_text())
    (tmp_path / "checkpoints").mkdir()
    record["environment"]["git"]["commit"] = "0123456789abcdef"
    (tmp_path / "result.json").write_text(json.dumps(record))
    message = with_version("x", tmp_path / "checkpoints" / "last.ckpt")
    assert message.startswith("x; it was written at commit 01234567, this is ")
    assert with_version("x", tmp_path / "last.ckpt") == "x"


def test_the_first_cause_is_the_reason() -> None:
    error = RuntimeError("outer")
    error.__cause__ = ValueError("\x1b[96mno such operation\x1b[0m\nmore")
    assert reason_of(error) == "ValueError: no such operation"


def test_the_command_takes_dashes_and_ends_with_2(checkpoint_of: Checkpoints, tmp_path: Path) -> None:
    ended = warm.run(str(ROOT / "export.py"), f"ckpt_path={checkpoint_of('moflow')}", "--to", "hf", cwd=tmp_path)
    assert ended.returncode == 2
    assert the_error_line(ended.stderr).startswith("to=hf: moflow has no such export: transformers has no such model")
    assert list(tmp_path.iterdir()) == []
