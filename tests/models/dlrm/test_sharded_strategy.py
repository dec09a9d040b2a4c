"""HybridStrategy: a Lightning run on two gloo ranks, resumed on one, equals the plain network."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from torch import Tensor, distributed
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.testing import assert_close

from src.batches.clicks import Clicks
from src.errors import UserError
from src.gpu.waiting import Waiting
from src.models.dlrm.embeddings import PlainEmbeddings
from src.models.dlrm.network import DLRM
from src.models.dlrm.sharded import ShardedEmbeddings
from src.parallel.gradient_averaging import GradientAverage
from src.parallel.strategies import HybridStrategy
from tests.support.gloo_ranks import Ranks
from tests.support.random_clicks import TABLES, random_clicks

pytestmark = pytest.mark.slow
SHARDING = {"cat_0.bin": "row_wise", "cat_1.bin": "data_parallel"}
BATCH, STEPS = 16, 4
BATCHES = [random_clicks(TABLES, BATCH, 4, seed) for seed in range(2 * STEPS)]


class Training(pl.LightningModule):
    """The smallest task that trains as `TrainStep` does."""

    def __init__(self, embeddings: Any) -> None:
        super().__init__()
        self.make_embeddings = embeddings
        self.automatic_optimization = False
        self.losses: list[float] = []

    def setup(self, stage: str) -> None:
        torch.manual_seed(distributed.get_rank() if distributed.is_initialized() else 0)
        self.network = DLRM(TABLES, 4, 8, bottom=(8,), top=(8,), embeddings=self.make_embeddings)

        self.average = None
        if distributed.is_initialized():
            self.average = GradientAverage(self.network.dense_parameters(), Waiting(torch.device("cpu")))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.network.dense_parameters(), lr=0.5)

    def training_step(self, batch: Clicks, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        loss = binary_cross_entropy_with_logits(self.network(batch), batch.labels)
        optimizer.zero_grad()
        self.manual_backward(loss)
        if self.average is not None:
            list(self.average.averaged())
        optimizer.step()
        self.network.embeddings.update(torch.tensor(5.0))  # type: ignore[operator]
        self.losses.append(loss.item())


class Once:
    """Batches that come once: Lightning may restart its loader as it resumes at the end of an epoch."""

    def __init__(self, batches: list[Clicks]) -> None:
        self.batches, self.count = iter(batches), len(batches)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Clicks]:
        return self.batches


def rows(clicks: Clicks, rank: int, world: int) -> Clicks:
    """Returns a rank's rows of a global batch."""
    span = slice(rank * BATCH // world, (rank + 1) * BATCH // world)
    per_table = clicks.ids.split([BATCH * table.hotness for table in TABLES])
    ids = torch.cat([column.view(BATCH, -1)[span].flatten() for column in per_table])
    return Clicks(clicks.labels[span], clicks.numerical[span], ids)


def fitted(begin: int, memory_gib: float | None, folder: str, resume: str | None) -> dict[str, Any]:
    """Trains on this rank STEPS global batches from number `begin` on, and saves a checkpoint."""
    rank, world = distributed.get_rank(), distributed.get_world_size()
    os.environ |= {"LOCAL_RANK": str(rank), "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    task = Training(partial(ShardedEmbeddings, sharding=SHARDING))
    trainer = pl.Trainer(
        accelerator="cpu", devices=world, strategy=HybridStrategy(BATCH // world, memory_gib),
        plugins=[LightningEnvironment()], max_steps=begin + STEPS, max_epochs=-1, default_root_dir=folder, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    batches = Once([rows(batch, rank, world) for batch in BATCHES[begin : begin + STEPS]])
    trainer.fit(task, batches, ckpt_path=resume, weights_only=False)
    trainer.save_checkpoint(f"{folder}/{begin}.ckpt")
    return {"losses": task.losses, "dense": {name: value.detach() for name, value in task.named_parameters()}}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Ranks]]:
    started = {count: Ranks(count, tmp_path_factory.mktemp("ranks")) for count in (1, 2)}
    yield started
    for group in started.values():
        group.close()


def test_a_run_on_two_ranks_resumes_on_one_like_the_plain_network(ranks: dict[int, Ranks], tmp_path: Path) -> None:
    two = ranks[2](fitted, 0, None, str(tmp_path), None)
    assert two[0]["losses"] != two[1]["losses"]
    assert all(torch.equal(value, two[1]["dense"][name]) for name, value in two[0]["dense"].items())
    assert not any("embeddings" in name for name in two[0]["dense"])
    saved = torch.load(tmp_path / "0.ckpt", weights_only=False)
    assert saved["global_step"] == STEPS
    (one,) = ranks[1](fitted, STEPS, None, str(tmp_path), str(tmp_path / "0.ckpt"))

    plain = Training(PlainEmbeddings)
    plain.setup("fit")
    plain.load_state_dict(saved["state_dict"])
    losses = [step(plain, batch) for batch in BATCHES[STEPS:]]
    assert_close(torch.tensor(one["losses"]), torch.tensor(losses), rtol=1e-5, atol=1e-5)
    last = torch.load(tmp_path / f"{STEPS}.ckpt", weights_only=False)["state_dict"]
    assert_close(last, dict(plain.state_dict()), rtol=1e-4, atol=1e-5)


def step(task: Training, batch: Clicks) -> float:
    """Takes one step without Lightning; returns the loss."""
    loss = binary_cross_entropy_with_logits(task.network(batch), batch.labels)
    loss.backward()
    for parameter in task.network.dense_parameters():
        assert isinstance(parameter.grad, Tensor)
        parameter.data.sub_(parameter.grad, alpha=0.5)
        parameter.grad = None
    task.network.embeddings.update(torch.tensor(5.0))  # type: ignore[operator]
    return loss.item()


def error_of(folder: str) -> str:
    with pytest.raises(UserError) as caught:
        fitted(0, 1e-9, folder, None)
    return str(caught.value)


def test_tables_that_do_not_fit_end_the_run_on_every_rank(ranks: dict[int, Ranks], tmp_path: Path) -> None:
    messages = ranks[2](error_of, str(tmp_path))
    assert messages[0] == messages[1]
    assert "the embedding tables do not fit" in messages[0] and "2 rank(s) of 1e-09 GiB" in messages[0]
