"""A prediction takes model, precision and data from the checkpoint; the command line's own choices come first."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.utils import instantiate

from src.config.complete import complete_prediction
from src.config.schema import PredictConfig, typed
from src.config.trained import has_trained_data, name_model, training_choices
from src.datamodules.clicks.own_rows import ClickColumns
from src.errors import UserError
from tests.support.composing import composed
from tests.support.tiny_se3 import molecules_in

TRAINED = [
    "model=se3_transformer", "datamodule=molecule_file", "datamodule.source.file=my.xyz", "datamodule.task=energy",
    "datamodule.edges.kind=radius", "+datamodule.source.workers=1", "datamodule.name=mine", "precision=tf32", "seed=7",
    "output_dir=unused",
]  # fmt: skip


@pytest.fixture(scope="module")
def trained() -> dict[str, Any]:
    """Returns what a checkpoint of TRAINED says of its run."""
    return training_choices(typed(composed("train", *TRAINED))) | {"group": "molecule_file"}


def prediction(trained: Any, *overrides: str) -> PredictConfig:
    overrides = ("model=se3_transformer", "hardware=cpu", "output_dir=unused", *overrides)
    return complete_prediction(composed("predict", *overrides), trained, overrides)


def test_data_and_seed_are_those_of_the_training(trained: dict[str, Any]) -> None:
    data = prediction(trained).datamodule
    assert (data["name"], data["task"], data["seed"]) == ("mine", "energy", 7)
    assert (data["source"]["file"], data["source"]["workers"], data["edges"]["kind"]) == ("my.xyz", 1, "radius")
    assert data["predict"] == "all" and data["batch_size"] == 1600  # of a prediction
    assert data["source"]["_target_"] == "src.datamodules.graphs.files.load"


def test_what_the_command_line_gives_comes_first(trained: dict[str, Any]) -> None:
    data = prediction(trained, "datamodule=molecule_file", "datamodule.source.file=other.xyz").datamodule
    assert (data["name"], data["source"]["file"], data["edges"]["kind"]) == ("mine", "other.xyz", "radius")
    data = prediction(trained, "datamodule=qm9").datamodule
    assert (data["name"], data["task"], data["edges"]["kind"]) == ("qm9", "homo", "bonds")
    data = prediction(trained, "datamodule.task=gap", "+datamodule.source.skip_bad=true").datamodule
    assert (data["task"], data["source"]["skip_bad"], data["source"]["file"]) == ("gap", True, "my.xyz")


def test_keys_newer_than_a_checkpoint_mean_what_they_meant_then() -> None:
    columns = ["datamodule.source.numerical=[a]", "datamodule.source.categorical=[b]"]
    overrides = ["model=dlrm", "datamodule=click_file", "datamodule.source.file=my.csv", *columns, "output_dir=unused"]
    trained: Any = training_choices(typed(composed("train", *overrides))) | {"group": "click_file"}

    def source(*more: str) -> ClickColumns:
        given = ("model=dlrm", "hardware=cpu", "output_dir=unused", "datamodule=click_file", *more)
        config = complete_prediction(composed("predict", *given), trained, given)
        assert has_trained_data(config, trained) is not any(".source." in text for text in more)
        return instantiate(config.datamodule["source"])

    assert (source().form, source().split) == (2, "stratified")
    for key in ("form", "split", "split_column", "decimal", "thousands", "missing"):
        del trained["datamodule"]["source"][key]
    assert (source().form, source().split) == (1, "random")
    assert (source("datamodule.source.split=by_time", "datamodule.source.split_column=t").split) == "by_time"


def test_a_precision_that_a_cpu_has_not_is_said(trained: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert prediction(trained).precision.name == "fp32"
    assert (
        capsys.readouterr().out == "note: precision=fp32; the checkpoint was trained with tf32, which a CPU has not\n"
    )
    assert prediction(trained | {"precision": "amp"}).precision.lightning == "16-mixed"
    assert capsys.readouterr().out == ""
    assert prediction(trained, "precision=bf16").precision.name == "bf16"
    assert capsys.readouterr().out == "note: precision=bf16 as given; the checkpoint was trained with tf32\n"


def test_words_keep_their_numbers_with_other_sentences() -> None:
    trained = {
        "group": "token_synthetic",
        "precision": "fp32",
        "datamodule": {"vocabulary": "FOLDER", "max_length": 64, "raw": "x"},
    }
    overrides = "model=distilbert", "hardware=cpu", "output_dir=unused", "datamodule=sst2"
    datamodule = complete_prediction(composed("predict", *overrides), trained, overrides).datamodule
    assert (datamodule["vocabulary"], datamodule["max_length"], datamodule["raw"]) == ("FOLDER", 64, None)


@pytest.mark.parametrize(
    ("model", "data", "today", "before"),
    [
        ("moflow", "smiles_file", {"split": "grouped", "rare_below": 5}, {"split": "random", "rare_below": 1}),
        ("se3_transformer", "molecule_file", {"split": None}, {"split": "random"}),
    ],
)
def test_molecules_of_an_older_checkpoint_keep_their_split_and_elements(
    model: str, data: str, today: dict[str, Any], before: dict[str, Any]
) -> None:
    """The default of new runs is another one."""
    choices = f"model={model}", f"datamodule={data}", "datamodule.source.file=my.smi", "output_dir=unused"
    new: dict[str, Any] = training_choices(typed(composed("train", *choices))) | {"group": data}
    source = new["datamodule"]["source"]
    old = new | {"datamodule": new["datamodule"] | {"source": {k: v for k, v in source.items() if k not in today}}}
    for trained, values in ((new, today), (old, before)):
        assert {key: prediction(trained, f"model={model}").datamodule["source"][key] for key in today} == values


@pytest.mark.parametrize("group", ["../model/dlrm", "strange", "x" * 2000, 3, None])
def test_a_datamodule_that_is_not_in_conf_is_not_made(trained: dict[str, Any], group: Any) -> None:
    assert prediction(trained | {"group": group}).datamodule["name"] == "qm9"


def test_a_checkpoint_names_no_class_of_the_data(trained: dict[str, Any]) -> None:
    evil = trained | {
        "datamodule": trained["datamodule"] | {"_target_": "os.system", "source": {"_target_": "os.rmdir"}}
    }
    data = prediction(evil).datamodule
    assert (data["_target_"], data["source"]["_target_"]) == (
        "src.datamodules.graphs.datamodule.GraphDataModule", "src.datamodules.graphs.files.load"
    )  # fmt: skip


def test_the_model_is_named_by_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    torch.save({"model_config": {"name": "dlrm"}, "state_dict": {}}, path)
    assert name_model([f"ckpt_path={path}", "num_samples=3"]) == ["model=dlrm", f"ckpt_path={path}", "num_samples=3"]
    torch.save({"model_config": {"name": "dlrm"}, "run_config": {"group": "criteo"}}, path)
    assert name_model([f"ckpt_path={path}"]) == ["model=dlrm", "datamodule=criteo", f"ckpt_path={path}"]
    assert name_model([f"ckpt_path={path}", "datamodule=x"]) == ["model=dlrm", f"ckpt_path={path}", "datamodule=x"]
    assert name_model(["-m", f"ckpt_path={path}"]) == ["-m", "model=dlrm", "datamodule=criteo", f"ckpt_path={path}"]
    overrides = [f"ckpt_path={path}", "model=dlrm", "datamodule.raw=x"]  # a key that other datamodules lack
    assert name_model(overrides) == ["datamodule=criteo", *overrides]
    torch.save({"model_config": {"name": "dlrm"}}, path)
    for arguments in (["num_samples=3"], [f"ckpt_path={path}", "model=moflow"], ["ckpt_path=a,b"]):
        assert name_model(arguments) == arguments
    torch.save({"model_config": {"name": "../x"}, "state_dict": {}}, path)
    assert name_model([f"ckpt_path={path}"]) == [f"ckpt_path={path}"]
    path.write_bytes(b"damaged")
    for missing, words in ((path, "last.ckpt: not a readable checkpoint"), ("no.ckpt", "^no.ckpt: there is no such")):
        with pytest.raises(UserError, match=words):
            name_model([f"ckpt_path={missing}", "datamodule.predict=dev"])


def test_every_part_that_a_checkpoint_keeps_is_plain(tmp_path: Path) -> None:
    config = typed(composed("train", *molecules_in(tmp_path), "output_dir=unused"))
    torch.save(training_choices(config), tmp_path / "x.ckpt")
    assert torch.load(tmp_path / "x.ckpt", weights_only=True)["datamodule"]["task"] == "energy"
