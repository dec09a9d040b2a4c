"""An optimiser that divides gradients itself makes the step of one before which they are unscaled and clipped."""

from pathlib import Path

import pytest
import torch

from src.run import train
from src.training.step import TrainStep
from tests.support.tiny_run import tiny_config

pytestmark = pytest.mark.slow

CLIP = 0.5  # far below the norm of any gradient here
ADAM = ("hp.lr=1e-3",)  # a higher rate makes more of rounding
SGD = ("model.task.optimizer._target_=torch.optim.SGD", "~model.task.optimizer.betas", "hp.lr=0.2")


def trained(home: Path, fused: bool, *overrides: str) -> tuple[dict[str, torch.Tensor], list[dict[str, float]]]:
    """Weights after eight steps, and what was noted of each."""
    home.mkdir()
    flags = (f"+model.task.optimizer.fused={fused}", f"fit.clip_norm={CLIP}", "measure.window=1")
    record = train(tiny_config(home, *flags, "fit.eval_every_n_epochs=null", "fit.final_evaluation=false", *overrides))
    checkpoint = torch.load(home / "outputs" / "moflow" / "run" / "checkpoints" / "last.ckpt", weights_only=False)
    return checkpoint["state_dict"], [row for row in record.history if "grad_norm" in row]


@pytest.mark.parametrize(
    ("overrides", "overflows"),
    [
        ((*SGD, "precision=fp32"), 0),
        pytest.param((*SGD, "precision=bf16"), 0, marks=pytest.mark.slow),
        pytest.param((*SGD, "precision=amp"), 0, marks=pytest.mark.slow),
        ((*SGD, "precision=amp", "precision.loss_scale=3e5"), 2),
        ((*ADAM, "precision=amp"), 0),
    ],
)
def test_dividing_is_unscaling_and_clipping(
    overrides: tuple[str, ...], overflows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, others = trained(tmp_path / "plain", False, *overrides)
    monkeypatch.setattr("src.training.step.clip_grad_norm_", None)  # nobody calls it
    weights, steps = trained(tmp_path / "fused", True, *overrides)
    assert sum(row["grad_norm"] is None for row in steps) == overflows
    assert [row.get("loss_scale") for row in steps] == [row.get("loss_scale") for row in others]
    figures = [[row[name] or -1 for row in rows for name in ("loss", "grad_norm")] for rows in (steps, others)]
    assert figures[0] == pytest.approx(figures[1], rel=1e-2)
    if "precision=bf16" in overrides or ADAM[0] in overrides:  # which make much of rounding
        return
    for name, value in weights.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}")


def test_an_untried_torch_unscales_and_clips_in_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = trained(tmp_path / "plain", False, *SGD, "precision=amp")
    monkeypatch.setattr("src.training.step.TRIED", False)
    monkeypatch.setattr(TrainStep, "_set_divisor", None)  # not called
    weights, _ = trained(tmp_path / "fused", True, *SGD, "precision=amp")
    for name, value in weights.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=1e-5)
