"""Averaged weights: their formula, what is evaluated and saved, and resuming."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor

from src.batches.clicks import EmbeddingTable
from src.callbacks.weight_average import WeightAverage
from src.config.complete import complete
from src.errors import UserError
from src.measure.clock import Clock
from src.models.dlrm.sharded import ShardedEmbeddings
from src.run import Job, build, fit, quieten, train
from src.training.checkpoints import read_checkpoint
from src.training.task import Task
from tests.support.same import assert_same_bits
from tests.support.stand_ins import StandInTrainer, stand_in_task
from tests.support.tiny_mobilenet import tiny_mobilenet

DECAY = 0.8
NAME = "classifier.weight"


class Noted(pl.Callback):
    """Notes the weights after each step, and one of them in each evaluation."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Tensor]] = []
        self.evaluated: list[Tensor] = []

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Task, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.steps.append({name: tensor.clone() for name, tensor in pl_module.network.state_dict().items()})

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self.evaluated.append(pl_module.network.state_dict()[NAME].clone())


def run(home: Path, *overrides: str) -> tuple[Job, Noted, dict[str, Any]]:
    """Trains; returns the job, what was noted and the last checkpoint."""
    quieten()
    job = build(complete(tiny_mobilenet(home, *overrides)), Clock())
    noted = Noted()
    job.trainer.callbacks.append(noted)  # type: ignore[attr-defined]
    fit(job)
    return job, noted, read_checkpoint(home / "run" / "checkpoints" / "last.ckpt")


def network_of(checkpoint: dict[str, Any]) -> dict[str, Tensor]:
    return {name.removeprefix("network."): tensor for name, tensor in checkpoint["state_dict"].items()}


@pytest.mark.slow
def test_the_average_follows_its_formula_and_training_does_not_read_it(tmp_path: Path) -> None:
    job, noted, checkpoint = run(tmp_path / "average", f"fit.ema_decay={DECAY}")
    _, _, plain = run(tmp_path / "plain")
    expected = {name: value.double() for name, value in noted.steps[0].items() if value.is_floating_point()}
    for number, weights in enumerate(noted.steps):
        decay = min(DECAY, (1 + number) / (10 + number))
        expected = {name: decay * value + (1 - decay) * weights[name] for name, value in expected.items()}
    average = network_of(checkpoint)
    assert len(noted.steps) == 8 and (average[NAME] - noted.steps[-1][NAME]).abs().max() > 1e-4
    for name, value in expected.items():
        torch.testing.assert_close(average[name].double(), value, rtol=1e-5, atol=1e-7)
    trained = checkpoint["training_weights"]
    assert_same_bits(trained, {name: value for name, value in network_of(plain).items() if name in trained})
    assert_same_bits(dict(job.task.network.state_dict()), average)


@pytest.mark.slow
def test_evaluations_and_the_best_checkpoint_have_the_average(tmp_path: Path) -> None:
    _, noted, last = run(tmp_path, f"fit.ema_decay={DECAY}", "fit.max_epochs=2", "fit.eval_every_n_epochs=1")
    assert len(noted.evaluated) >= 2 and not torch.equal(noted.evaluated[0], noted.steps[7][NAME])
    best = read_checkpoint(tmp_path / "run" / "checkpoints" / "best.ckpt")
    number = best["global_step"] // 8 - 1
    assert torch.equal(network_of(best)[NAME], noted.evaluated[number])
    assert torch.equal(best["training_weights"][NAME], noted.steps[best["global_step"] - 1][NAME])
    assert torch.equal(network_of(last)[NAME], noted.evaluated[1])


@pytest.mark.slow
def test_a_resumed_run_continues_the_average_to_the_bit(tmp_path: Path) -> None:
    average = f"fit.ema_decay={DECAY}"
    _, _, straight = run(tmp_path / "straight", average, "fit.max_epochs=2")
    first = run(tmp_path / "first", average)[0]
    checkpoint = Path(first.config.output_dir) / "checkpoints" / "last.ckpt"
    _, _, resumed = run(tmp_path / "second", average, "fit.max_epochs=2", f"ckpt_path={checkpoint}")
    for key in ("state_dict", "training_weights"):
        assert_same_bits(resumed[key], straight[key])
    with pytest.raises(UserError, match=r"give fit\.ema_decay"):
        train(tiny_mobilenet(tmp_path / "third", "fit.max_epochs=2", f"ckpt_path={checkpoint}"))


def test_the_first_steps_count_more_than_the_decay_says() -> None:
    trainer, task, average = StandInTrainer(), stand_in_task(), WeightAverage(DECAY)
    weight: Any = task.network.weight
    average.on_train_start(trainer, task)
    expected = 1.0
    for number in range(40):
        weight.data.fill_(number + 1)
        trainer.step += 1
        average.on_train_batch_end(trainer, task, None, None, number)
        decay = min(DECAY, (1 + number) / (10 + number))
        expected = decay * expected + (1 - decay) * (number + 1)
        assert average.average["weight"].item() == pytest.approx(expected)


@pytest.mark.parametrize("ranks", [1, 2])
def test_tables_that_several_ranks_hold_are_refused(ranks: int) -> None:
    trainer, task = StandInTrainer(), stand_in_task()
    trainer.ranks, task.network = ranks, ShardedEmbeddings([EmbeddingTable("shop", 100)], 16)
    with nullcontext() if ranks == 1 else pytest.raises(UserError, match="cannot average tables"):
        WeightAverage(DECAY).setup(trainer, task, "fit")
