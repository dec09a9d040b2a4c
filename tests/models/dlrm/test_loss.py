"""The kernels of the loss, in Triton's interpreter against plain torch; test_gpu.py runs them on a GPU."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F

from src.gpu import triton_helpers
from src.models.dlrm import DLRM
from src.models.dlrm.fast import loss
from src.models.dlrm.task import DLRMTask
from tests.support.dlrm_kernels import assert_loss_is_torchs, loss_of

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter computes with numpy


@pytest.fixture
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_helpers, "devices", {"cpu"})


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize("rows", [1, 128, 1000])
def test_the_loss_agrees_with_float64(rows: int) -> None:
    difference = loss_of(loss, rows)
    assert difference.largest < 1e-6, difference


@pytest.mark.usefixtures("_interpreted")
def test_infinite_and_large_logits_give_what_torch_gives() -> None:
    assert_loss_is_torchs(loss)


@pytest.mark.parametrize(
    ("device", "dtype", "log"),
    [("cuda", torch.float32, 0), ("cpu", torch.float64, 1), ("cpu", torch.float16, 1)],
)
def test_the_loss_is_torchs_where_its_kernels_cannot_take_it(
    device: str, dtype: torch.dtype, log: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(triton_helpers, "devices", {device})
    monkeypatch.setattr(loss, "launch", None)
    triton_helpers.note.cache_clear()
    logits, labels = torch.randn(5, dtype=dtype), torch.ones(5, dtype=dtype)
    assert torch.equal(loss.bce(logits, labels), F.binary_cross_entropy_with_logits(logits, labels))
    assert len(caplog.messages) == log
    assert all(line.startswith("execution.kernels: mlp does not support ") for line in caplog.messages)


@pytest.mark.parametrize(("kernels", "is_fast"), [("auto", True), (["mlp"], True), (["tables"], False), ("off", False)])
def test_a_task_takes_it_by_name(kernels: str | list[str], is_fast: bool) -> None:
    task = DLRMTask(partial(DLRM, embedding_dim=8, bottom=[8], top=[8]), torch.optim.SGD, tables=[[3, 1]])
    assert task.mean_loss is F.binary_cross_entropy_with_logits
    task.accelerate(kernels)  # type: ignore[arg-type]
    assert task.mean_loss is (loss.bce if is_fast else F.binary_cross_entropy_with_logits)
    task.mean_loss = lambda logits, labels: (logits - labels).sum()
    batch = task.example_batch(4)
    clicks = batch.clicks()
    assert torch.equal(task.loss(batch)["loss"], (task.network(clicks) - clicks.labels).sum())
