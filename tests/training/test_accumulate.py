"""hp.accumulate: n batches of b samples make the step of one batch of n b, in every figure that counts steps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from omegaconf import DictConfig

from src.callbacks.checkpoint import Checkpoint
from src.config.complete import complete
from src.measure.clock import Clock
from src.run import build, fit, quieten, train
from src.training.step import mean_over_samples
from tests.support.tiny_distilbert import tiny_distilbert
from tests.support.tiny_dlrm import tiny_dlrm
from tests.support.tiny_mobilenet import tiny_mobilenet
from tests.support.tiny_se3 import tiny_se3
from tests.support.trained import trained

MOLECULES = 52  # of the tiny run's training split: six batches of 8 and one of 4


def test_scalars_of_batches_are_means_over_samples() -> None:
    batches = [{"loss": torch.tensor(2.0)}, {"loss": torch.tensor(8.0)}]
    assert mean_over_samples(batches, None)["loss"] == 5
    assert mean_over_samples(batches, torch.tensor([1.5, 0.5]))["loss"] == 3.5
    assert mean_over_samples(batches, torch.zeros(2))["loss"] == 0
    assert mean_over_samples(batches[:1], torch.zeros(1))["loss"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [3, 4, 9])
def test_a_step_of_small_batches_is_that_of_one_large_batch(tmp_path: Path, accumulate: int) -> None:
    """Also the last one of an epoch, whose batches have unequal numbers of molecules."""
    options = "fit.max_epochs=2", "fit.clip_norm=0.5", "fit.eval_every_n_epochs=null", "fit.final_evaluation=false"
    small = trained(tiny_se3(tmp_path, *options, f"output_dir={tmp_path / 'small'}", f"hp.accumulate={accumulate}"))
    large = trained(tiny_se3(tmp_path, *options, f"hp.batch_size={min(8 * accumulate, MOLECULES)}"))
    assert len(small.losses) == len(large.losses) == 2 * -(-MOLECULES // (8 * accumulate))
    assert small.losses == pytest.approx(large.losses, rel=1e-4)
    for name, weight in large.after.items():
        torch.testing.assert_close(
            small.after[name], weight, rtol=1e-3, atol=1e-5, msg=lambda text, n=name: f"{n} {text}"
        )


@pytest.mark.parametrize("tiny", [tiny_mobilenet, tiny_dlrm])
def test_an_epoch_of_generated_data_has_as_many_optimiser_steps_as_its_key_says(
    tmp_path: Path, tiny: Callable[..., DictConfig]
) -> None:
    job = build(complete(tiny(tmp_path, "hp.accumulate=3", "datamodule.steps_per_epoch=4")), Clock())
    data: Any = job.datamodule
    data.setup("fit")
    assert [len(step.batches) for step in data.train_dataloader()] == [3] * 4
    samples = data.splits["train"]
    assert (samples if isinstance(samples, int) else len(samples)) == 12 * data.batch_size


@pytest.mark.slow
def test_figures_count_optimiser_steps(tmp_path: Path) -> None:
    quieten()
    options = "fit.max_epochs=2", "measure.window=1", "measure.warmup_steps=0"
    job = build(complete(tiny_se3(tmp_path, *options, "hp.accumulate=3")), Clock())
    fit(job)
    task = job.task
    assert task.global_step == 2 * 3 and job.trainer.estimated_stepping_batches == 6
    assert list(task.clock.steps.samples) == [24, 24, 4] * 2
    assert task.samples_trained == 2 * MOLECULES
    assert task.batch_size == pytest.approx(MOLECULES / 7) and task.updates == pytest.approx(3 / 7)
    alone, together = (task.cost() for task.updates in (1.0, 3 / 7))
    assert together.flops_training == alone.flops_training and together.bytes_training < alone.bytes_training


@pytest.mark.slow
def test_tokens_are_those_of_the_batches_of_the_steps(tmp_path: Path) -> None:
    one, three = (
        train(tiny_distilbert(tmp_path / str(n), f"hp.accumulate={n}", "fit.max_epochs=2", "measure.warmup_steps=0"))
        for n in (1, 3)
    )
    assert one.tokens is not None and three.tokens is not None and one.samples == three.samples == 64
    assert three.tokens.real_per_sample == pytest.approx(one.tokens.real_per_sample)
    assert three.tokens.processed_per_sample == pytest.approx(one.tokens.processed_per_sample)


@pytest.mark.slow
def test_no_checkpoint_falls_between_the_batches_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[tuple[int, int]] = []
    save = Checkpoint._save

    def noting(self: Checkpoint, trainer: pl.Trainer, task: pl.LightningModule, *names: Any) -> None:
        state = trainer.datamodule.state_dict()  # type: ignore[attr-defined]
        saved.append((trainer.global_step, state["epoch"] * 7 + state["position"]))
        save(self, trainer, task, *names)  # type: ignore[arg-type]

    monkeypatch.setattr(Checkpoint, "_save", noting)
    options = "fit.max_epochs=2", "hp.accumulate=3", "fit.eval_every_n_epochs=null", "fit.final_evaluation=false"
    train(tiny_se3(tmp_path, *options, "fit.checkpoint_every_n_steps=2", "fit.checkpoint_every_n_epochs=9"))
    assert saved == [(2, 6), (4, 7 + 3), (6, 14)]
