"""`execution.deterministic=true` on a CPU: the same bits twice, and what it sets before anything is computed."""

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch

from src.cli import MISTAKES
from src.errors import UserError
from src.launch.devices import set_execution, without_order
from src.run import train
from tests.reliability.deterministic import FLAG, MODELS, TRAINED, assert_twice_the_same, figures
from tests.support import ROOT
from tests.support.composing import composed
from tests.support.gloo_ranks import Ranks
from tests.support.ranks_contract import as_one_of_many, train_with
from tests.support.same import assert_same_bits
from tests.support.tiny_mobilenet import tiny_mobilenet

HERE = "tests.reliability.test_deterministic"
ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NCCL_NVLS_ENABLE": "0"}


class Noting(pl.Callback):
    """Keeps what is set when the parts of a run are instantiated: nothing is on a device, no group is joined."""

    def __init__(self) -> None:
        self.found = torch.are_deterministic_algorithms_enabled(), {name: os.environ.get(name) for name in ENVIRONMENT}
        assert self.found == (True, ENVIRONMENT)
        assert not torch.cuda.is_initialized() and not torch.distributed.is_initialized()


class Unordered(pl.Callback):
    """Calls an operation that torch has in no fixed order, on any device, in the first step."""

    def on_train_batch_start(self, *_: object) -> None:
        torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2))


@pytest.fixture(autouse=True)
def process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> object:
    for name in ENVIRONMENT:
        monkeypatch.setenv(name, "")
    yield
    torch.use_deterministic_algorithms(False)


def test_it_is_set_before_anything_is_computed(tmp_path: Path) -> None:
    config = tiny_mobilenet(tmp_path, FLAG, f"+callbacks.noting={{_target_:{HERE}.Noting}}", "fit.max_steps=1")
    assert train(config).status == "done"
    set_execution(composed("train").execution, "cpu")
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_workspace_that_repeats_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    execution = composed("predict", FLAG).execution
    for workspace, kept in (":16:8", ":16:8"), (":4096:2:16:8", ":4096:8"):
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", workspace)
        set_execution(execution, "cpu")
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == kept


def test_an_operation_without_order_is_named_in_one_line(tmp_path: Path) -> None:
    config = tiny_mobilenet(tmp_path, FLAG, f"+callbacks.unordered={{_target_:{HERE}.Unordered}}")
    with pytest.raises(
        UserError, match=r"model=mobilenet_v1 uses put_, .*give execution.deterministic=false"
    ) as caught:
        train(config)
    assert isinstance(caught.value, MISTAKES) and "\n" not in str(caught.value)
    other = RuntimeError("CUDA error")
    assert without_order(other, "moflow") is other


@pytest.mark.slow
def test_two_processes_give_the_same_bits(tmp_path: Path) -> None:
    """With other hashes of strings, and so other orders of sets."""
    assert_twice_the_same(tmp_path, list(MODELS))


@pytest.mark.slow
def test_two_ranks_give_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once as ranks of train.py, once of this process, which has another hash of strings."""
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    one, other = tmp_path / "one", tmp_path / "other"
    commands = [[*MODELS["dlrm"](home), *TRAINED, FLAG, f"output_dir={home / 'trained'}"] for home in (one, other)]
    subprocess.run([sys.executable, "train.py", *commands[0], "trainer=1x2"], cwd=ROOT, check=True, capture_output=True)
    with closing(Ranks(2, tmp_path)) as ranks:
        ranks(as_one_of_many, train_with, *commands[1])
    assert_same_bits(figures(other), figures(one))
