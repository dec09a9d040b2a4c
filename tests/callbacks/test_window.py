"""What the history, the bar and metrics.csv show of several ranks, which trained different numbers of samples."""

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning.loggers import CSVLogger
from torch import distributed

from src.callbacks.history import History
from src.callbacks.progress import Progress
from tests.support.gloo_ranks import Ranks
from tests.support.stand_ins import StandInTrainer, stand_in_task

Run = Callable[..., list[Any]]
SECONDS = 0.5  # of each step on rank 0; rank r takes (r + 1) times as long


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Run]]:
    started = Ranks(request.param, tmp_path_factory.mktemp("ranks"))
    yield request.param, started
    started.close()


def logged(folder: str, with_rate: bool = True, idle: int | None = None) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Returns the history's rows and the bar's figures of this rank after two steps of 4 + 3 x rank samples.

    with_rate: whether rank 0 has one. idle: a rank whose steps have no sample, and so no loss.
    """
    rank, count = distributed.get_rank(), distributed.get_world_size()
    trainer, task, history = StandInTrainer(), stand_in_task(), History(1)
    trainer.ranks, trainer.callbacks = count, [history]
    if rank == 0:
        trainer._loggers = [CSVLogger(folder, name="", version="")]
    task.step_samples = 0 if rank == idle else 4 + 3 * rank
    for step in (1, 2):
        trainer.step = step
        task.samples_trained += sum(4 + 3 * number for number in range(count))  # of all ranks
        if with_rate or rank:
            task.clock.steps.samples.append(4 + 3 * rank)
            task.clock.steps.iteration_s.append(SECONDS * (rank + 1))
        loss = torch.tensor(torch.nan if rank == idle else 10.0 * rank + step)
        task.last = {"loss": loss, "grad_norm": torch.tensor(0.1), "lr": torch.tensor(1e-3, dtype=torch.float64)}
        history.on_train_batch_end(trainer, task, None, None, step)
    history.on_train_end(trainer, task)
    task.metrics = {"quality": 0.5}
    history.on_validation_end(trainer, task)
    for logger in trainer.loggers:
        logger.finalize("success")
    return history.rows, Progress().get_metrics(trainer, task)


def test_all_ranks_are_shown(ranks: tuple[int, Run], tmp_path: Path) -> None:
    count, run = ranks
    answers = run(logged, str(tmp_path))
    samples = [4 + 3 * rank for rank in range(count)]
    rate = sum(size / (SECONDS * (rank + 1)) for rank, size in enumerate(samples))
    losses = [sum(size * (10.0 * rank + step) for rank, size in enumerate(samples)) / sum(samples) for step in (1, 2)]
    for rows, bar in answers:
        assert [row["samples"] for row in rows] == [sum(samples), 2 * sum(samples), 2 * sum(samples)]
        assert [row["loss"] for row in rows[:2]] == pytest.approx(losses)
        assert [row["samples_per_s"] for row in rows[:2]] == pytest.approx([rate, rate])
        assert [row["lr"] for row in rows[:2]] == [1e-3, 1e-3]  # not a mean: the same bits
        assert rows[0]["grad_norm"] == float(torch.tensor(0.1)) and rows[2]["quality"] == 0.5
        assert bar == {"loss": f"{losses[1]:.3g}", "quality": "0.5", "samples_per_s": f"{rate:.3g}"}
    with (tmp_path / "metrics.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [float(row["loss"]) for row in table if row["loss"]] == pytest.approx(losses)
    assert [float(row["samples_per_s"]) for row in table if row["samples_per_s"]] == pytest.approx([rate, rate])
    assert [float(row["samples"]) for row in table][-1] == 2 * sum(samples)


def test_a_rate_without_one_of_the_ranks_is_not_shown(ranks: tuple[int, Run], tmp_path: Path) -> None:
    """A GPU may have finished no step since the last window."""
    rows, bar = ranks[1](logged, str(tmp_path), False)[1]
    assert not any("samples_per_s" in row for row in rows) and "samples_per_s" not in bar
    assert rows[0]["loss"] > 0


def test_a_rank_without_samples_in_a_step_does_not_count(ranks: tuple[int, Run], tmp_path: Path) -> None:
    count, run = ranks
    rows, _ = run(logged, str(tmp_path), True, 0)[0]
    samples = [4 + 3 * rank for rank in range(1, count)]
    mean = sum(size * (10.0 * rank + 1) for rank, size in enumerate(samples, 1)) / sum(samples)
    assert rows[0]["loss"] == pytest.approx(mean)
