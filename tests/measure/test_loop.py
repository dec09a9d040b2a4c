"""Meters of any training loop: their figures are those of a record, whatever drives the loop."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from src import measure
from src.errors import UserError
from src.measure.loop import FORMULAS
from src.measure.phases import PHASES
from src.report.record import Record
from tests.support import ROOT

WAIT_S = 0.02


def slow(batches: int) -> Iterator[Tensor]:
    """Yields batches, the CPU busy before each."""
    for number in range(batches):
        busy(WAIT_S)
        yield torch.full((4, 3), float(number))


def busy(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_a_plain_loop() -> None:
    begin = time.perf_counter()
    work = measure.Work(flops=2e3, nbytes=1e3, peak_flops=1e12, peak_bytes=1e11)
    with measure.training("cpu", warmup_steps=2, work=work) as meter:
        for number, batch in enumerate(meter.batches(slow(6))):
            busy(WAIT_S)
            meter.mark("transfer")
            busy(2 * WAIT_S)
            meter.step(samples=len(batch))
            if number == 2:
                with meter.within("evaluation"):
                    busy(3 * WAIT_S)
                    meter.step(samples=1000)  # not of the training
    took = time.perf_counter() - begin
    figures = meter.figures()
    phases = dict(figures["phases_s"])
    wall = phases.pop("wall")
    assert set(phases) == set(PHASES) and sum(phases.values()) == pytest.approx(wall, rel=1e-6)
    assert 0 < wall <= took
    for phase, least in {"fetch": 6, "transfer": 6, "compute": 12, "evaluation": 3}.items():
        assert phases[phase] >= least * WAIT_S
    assert figures["samples"] == 24 and figures["ranks"] == 1
    assert figures["p_core"] == pytest.approx(24 / phases["compute"])
    assert figures["p_train"] == pytest.approx(24 / (figures["p_whole"] ** -1 * 24 - phases["evaluation"]))
    assert figures["steady"]["p_train"] == pytest.approx(figures["p_train"], rel=0.5)
    assert figures["steady"]["step_time_s"]["p50"] >= 4 * WAIT_S
    roofline = figures["utilisation"]
    assert roofline["flops_per_s"] == pytest.approx(2e3 * figures["steady"]["p_core"])
    assert roofline["of_peak_flops"] == pytest.approx(roofline["flops_per_s"] / 1e12)
    assert figures["energy"] is None and figures["mem"]["peak_reserved_gib"] > 0
    assert figures["clock"] == "the host's monotonic clock"


def test_the_figures_are_named_and_defined_as_those_of_a_record() -> None:
    with measure.training("cpu") as meter:
        meter.step(1)
    figures = meter.figures()
    assert set(figures) - set(Record.__dataclass_fields__) == {"clock", "formulas"}
    page = " ".join((ROOT / "docs" / "reference" / "metrics.md").read_text().split())
    for name in ("p_whole", "p_train", "p_core"):
        assert f"| `{name}` | {FORMULAS[name]} |" in page
    assert set(FORMULAS) <= set(figures)


def test_mistakes_are_named() -> None:
    with pytest.raises(UserError, match="device=meta is not supported; expected cpu or cuda"):
        measure.Meter("meta")
    with pytest.raises(UserError, match="phase 'load' is not allowed; expected one of startup, fetch"):
        measure.Meter("cpu").mark("load")
    with pytest.raises(UserError, match="precision='fp8' is not allowed; expected one of fp32"):
        measure.Work(1, precision="fp8")


class Plain(pl.LightningModule):
    """A module that knows nothing of this project."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def training_step(self, batch: list[Tensor]) -> Tensor:
        busy(WAIT_S)
        return self.layer(batch[0]).square().mean()

    def validation_step(self, batch: list[Tensor]) -> None:
        busy(WAIT_S)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_lightning_trainer(tmp_path: Path) -> None:
    data = DataLoader(TensorDataset(torch.randn(40, 3)), batch_size=4)
    meter = measure.LightningMeter(warmup_steps=1)
    trainer = pl.Trainer(
        max_epochs=2, accelerator="cpu", accumulate_grad_batches=2, callbacks=[meter], default_root_dir=tmp_path,
        enable_progress_bar=False, enable_model_summary=False, logger=CSVLogger(tmp_path),
    )  # fmt: skip
    trainer.fit(Plain(), data, data)
    figures = meter.figures
    assert figures["samples"] == 80 and trainer.global_step == 10
    phases = dict(figures["phases_s"])
    assert sum(phases.values()) - phases["wall"] == pytest.approx(phases["wall"], rel=1e-6)
    assert phases["compute"] >= 20 * WAIT_S and phases["evaluation"] >= 20 * WAIT_S
    assert phases["checkpoint"] > 0 and phases["transfer"] > 0
    assert "measure/p_train" in (Path(trainer.logger.log_dir) / "metrics.csv").read_text()  # type: ignore[union-attr]
    assert "batch_to_device" not in vars(trainer.strategy) and "save_checkpoint" not in vars(trainer.strategy)
    again = pl.Trainer(max_steps=3, accelerator="cpu", callbacks=[meter], default_root_dir=tmp_path, logger=False,
                       enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)  # fmt: skip
    again.fit(Plain(), data)
    assert meter.figures["samples"] == 12


def test_importing_it_is_light() -> None:
    code = (
        "import sys, src, src.measure; dir(src); dir(src.measure);"
        "print([name for name in ('torch', 'hydra', 'omegaconf', 'pytorch_lightning', 'numpy') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"\[\]\s*", ended.stdout)
