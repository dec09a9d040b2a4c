"""A sixth model, built from the files that docs/guides/add_a_model.md lists: it needs no change of a shared file."""

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

EXAMPLES = [ROOT / "docs" / "guides" / name for name in ("small_resnet", "bag_of_words")]
NEEDED = ("src", "conf", "hydra_plugins", "tests", "train.py", "predict.py", "pyproject.toml")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with the files of the examples added."""
    home = tmp_path_factory.mktemp("sixth") / "project"
    home.mkdir()
    for name in NEEDED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, home / name)
    for example in EXAMPLES:
        for file in example.rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                to = home / file.relative_to(example)
                assert not to.exists(), f"{to} is a file of the project"
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, to)
    return home


def run(project: Path, *command: str) -> str:
    ended = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.slow
def test_it_passes_the_contract_and_the_tests_of_all_models(project: Path) -> None:
    tests = (
        *(f"tests/models/{example.name}" for example in EXAMPLES),
        "tests/test_cli.py::test_every_model_is_made_and_has_a_loss",
    )
    options = "-p", "no:cacheprovider", "-m", "not gpu", "-v"
    assert " passed" in run(project, sys.executable, "-m", "pytest", *options, *tests)


@pytest.mark.slow
def test_it_passes_the_type_checker(project: Path) -> None:
    pyright = Path(sys.executable).with_name("pyright")
    folders = [f"{kind}/models/{example.name}" for kind in ("src", "tests") for example in EXAMPLES]
    run(project, str(pyright), "--pythonpath", sys.executable, *folders)


@pytest.mark.slow
def test_it_trains_from_the_command_line(project: Path, tmp_path: Path) -> None:
    small = "hardware=cpu", "datamodule.image_size=32", "datamodule.num_classes=10", "hp.batch_size=16"
    short = "fit.max_steps=3", "datamodule.val_batches=1", f"output_dir={tmp_path / 'run'}", f"output_root={tmp_path}"
    options = *small, *short, "execution.kernels=[add]"
    assert "small_resnet" in run(project, sys.executable, "train.py", "model=small_resnet", *options)
    record = json.loads((tmp_path / "run" / "result.json").read_text())
    assert record["config"]["execution"]["kernels"] == ["add"]


@pytest.mark.slow
def test_a_text_model_trains_goes_on_and_predicts_from_the_command_line(project: Path, tmp_path: Path) -> None:
    """With three labels and a vocabulary of its own, which the checkpoint keeps."""
    words = "bad", "fine", "good"
    lines = [f"a {words[row % 3]} film number {row % 5},{words[row % 3]}" for row in range(60)]
    (tmp_path / "films.csv").write_text("\n".join(["text,label", *lines, ""]))
    (tmp_path / "new.csv").write_text("text\nsuch a good film\nbad number\n")
    common = "hardware=cpu", f"output_root={tmp_path}", f"output_dir={tmp_path / 'run'}"
    train = sys.executable, "train.py", "model=bag_of_words", f"datamodule.source.file={tmp_path / 'films.csv'}"
    for epochs in (5, 10):
        run(project, *train, *common, "hp.batch_size=8", "hp.lr=0.1", "resume=true", f"fit.max_epochs={epochs}")
    record = json.loads((tmp_path / "run" / "result.json").read_text())
    assert [row["epoch"] for row in record["history"] if "acc" in row] == [*range(10)]
    assert record["final_metric"]["value"] == 1 and record["final_metric"]["name"] == "acc"
    (tmp_path / "films.csv").unlink()
    checkpoint = f"ckpt_path={tmp_path / 'run' / 'checkpoints' / 'best.ckpt'}"
    options = checkpoint, f"model.predict.input={tmp_path / 'new.csv'}", f"output={tmp_path / 'labels.csv'}"
    run(project, sys.executable, "predict.py", *options, "hardware=cpu", f"output_dir={tmp_path / 'predicted'}")
    with (tmp_path / "labels.csv").open(newline="", encoding="utf-8") as file:
        assert [row["label"] for row in csv.DictReader(file)] == ["good", "bad"]
