"""A precision's label is true: what the network really computes in, read while it trains."""

from pathlib import Path
from typing import Any

import pytest
import torch

from src.errors import UserError
from src.models.moflow.task import MoFlowTask
from src.report.record import read_record
from src.run import train
from tests.support.tiny_dlrm import tiny_dlrm
from tests.support.tiny_run import tiny_config

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "autocast", "weights", "matmul", "scaled"),
    [
        ("fp32", None, torch.float32, "highest", False),
        ("amp", torch.float16, torch.float32, "high", True),
        ("bf16", torch.bfloat16, torch.float32, "high", False),
        ("fp16", None, torch.float16, "high", False),
    ],
)
def test_the_label_is_what_is_computed(
    name: str,
    autocast: torch.dtype | None,
    weights: torch.dtype,
    matmul: str,
    scaled: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[Any, ...]] = []
    loss = MoFlowTask.loss

    def watched(self: MoFlowTask, batch: Any) -> Any:
        enabled = torch.is_autocast_enabled("cpu")
        dtype = torch.get_autocast_dtype("cpu") if enabled else None
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        seen.append((dtype, self.network.ln_var.dtype, torch.get_float32_matmul_precision(), scaler is not None))
        return loss(self, batch)

    monkeypatch.setattr(MoFlowTask, "loss", watched)
    # In pure float16 the usual eps is 0, and Adam divides by it.
    record = train(tiny_config(tmp_path, f"precision={name}", "fit.max_steps=1", "+model.task.optimizer.eps=1e-3"))
    assert seen == [(autocast, weights, matmul, scaled)]
    assert record.config["precision"]["name"] == name


def test_fp16_trains_on_batches_with_a_layout(tmp_path: Path) -> None:
    record = train(tiny_dlrm(tmp_path, "precision=fp16", "fit.max_steps=2", "fit.final_evaluation=false"))
    assert record.status == "done" and record.history[-1]["step"] == 2


def test_weights_that_are_not_numbers_end_the_run(tmp_path: Path) -> None:
    """In pure float16 Adam's second moment underflows, its eps is 0, and the first step divides 0 by 0."""
    config = tiny_config(tmp_path, "precision=fp16", "fit.max_steps=6", "measure.window=1")
    with pytest.raises(UserError, match=r"is infinite or NaN at step \d or before, .*; lower hp\.lr"):
        train(config)
    record = read_record(Path(config.output_dir))
    assert record.status == "failed"
    assert record.error is not None and "NaN" in record.error.message
