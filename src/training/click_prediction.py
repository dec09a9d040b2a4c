"""Prediction of clicks, the same for every network: a task judged by the exact AUC over the whole test set."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from src.batches.clicks import ClickBatch, ClickLayout, Clicks, EmbeddingTable
from src.config.ranges import Count, Share
from src.config.trained import RUN
from src.datamodules.base import DataModule
from src.datamodules.clicks.criteo import ClickDataModule
from src.errors import UserError
from src.measure.auc import ExactAUC
from src.measure.clock import Clock
from src.training.click_predictor import ClickPredictor
from src.training.click_scores import predict_clicks
from src.training.prediction import Prediction, PredictionJob
from src.training.predictor import Inference
from src.training.schedule import Schedule
from src.training.task import FinalMetric, Task

MAX_EXAMPLE_ROWS = 1000  # of a table in an example batch
SEEN = "seen_values"  # a checkpoint's key: column and hash of each category of the training


class ClickPredictionTask(Task):
    """Base of tasks that learn whether a click happens, of numbers and categories. A model supplies `cost`.

    An evaluation sets `auc` and `test_loss`, and `bayes_auc` where the data set knows what the best scores would reach.

    Args:
        network: makes the network, given `tables` and `num_numerical` (`_partial_: true` in the config). The network
            maps `Clicks` to logits (rows).
        optimizer, schedule: see Task.
        tables: [cardinality, hotness] of each categorical feature; those of the datamodule if not given.
        num_numerical: numerical features; the datamodule's if not given.
        target: AUC that counts as reached.
    """

    unit = "samples"
    curves = ("loss", "auc", "lr")
    data_kind = ClickDataModule
    expected_data = "this model needs clicks; give datamodule=criteo, criteo_synthetic or criteo_resident"

    def __init__(
        self,
        network: Callable[..., nn.Module],
        optimizer: Callable[..., torch.optim.Optimizer],
        schedule: Schedule | None = None,
        tables: Sequence[Sequence[Count]] | None = None,
        num_numerical: Count | None = None,
        target: Share | None = None,
    ) -> None:
        super().__init__(nn.ParameterList([torch.empty(0)]), optimizer, schedule)  # until the tables are known
        self.network: Any
        self.make_network = network
        self.final_metric = FinalMetric("auc", "max", target)
        self.layout = ClickLayout(0, (), ())
        if tables is not None:
            named = (EmbeddingTable(f"cat_{number}.bin", *sizes) for number, sizes in enumerate(tables))
            self._take(ClickLayout.of(tuple(named), 13 if num_numerical is None else num_numerical))
        self.seen: Int64[np.ndarray, "seen 2"] | None = None  # column and hash of each category of the training
        self.trained_data: Any = None  # the datamodule's config in the checkpoint
        self._auc: ExactAUC | None = None
        self._loss: list[Tensor] = []  # (sum of losses, samples) of each batch of an evaluation

    def bind_data(self, datamodule: DataModule) -> None:
        """Makes the network for the datamodule's tables, or checks that it fits them. Raises UserError if not."""
        clicks: ClickDataModule = self.check_datamodule(datamodule)
        clicks.setup("bind_data")
        if not self.is_made():
            device = self.trainer.strategy.root_device if self._trainer else self.device
            with torch.device(device):  # gigabytes of random numbers
                self._take(self.layout if self.layout.tables else clicks.layout)
            self.accelerate(self.kernels)
            if self.model_config is not None:
                sizes = [[table.cardinality, table.hotness] for table in self.layout.tables]
                self.model_config["task"] |= {"tables": sizes, "num_numerical": self.layout.num_numerical}
        check_fit(self.layout, clicks.layout)

    def is_made(self) -> bool:
        """Returns whether the network is as the run needs it."""
        return bool(self.layout.tables)

    def _take(self, layout: ClickLayout) -> None:
        self.layout = layout
        self.make_for(layout)

    def make_for(self, layout: ClickLayout, **parts: Any) -> None:
        """Makes the network for data of this layout, in the precision of the one before, with `parts` of its own."""
        dtype = next(self.network.parameters()).dtype  # predict.py asks for half precision before it has the data
        sizes = {"tables": layout.tables, "num_numerical": layout.num_numerical}
        self.network = self.make_network(**sizes, **parts).to(dtype)

    def setup(self, stage: str) -> None:
        data: ClickDataModule = self.trainer.datamodule  # type: ignore[attr-defined]
        self.bind_data(data)
        values = data.values("train")
        self.seen = None if values is None else values[:, :2]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        if self.seen is not None:
            checkpoint[SEEN] = torch.from_numpy(self.seen.copy())

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        seen = checkpoint.get(SEEN)
        is_table = isinstance(seen, Tensor) and seen.layout is torch.strided and seen.dtype == torch.int64
        if seen is not None and not (is_table and seen.ndim == 2 and seen.shape[1] == 2):
            raise UserError(f"the checkpoint's {SEEN} is no table of hashes; give a checkpoint that train.py wrote")
        self.seen = None if seen is None else seen.numpy()
        run = checkpoint.get(RUN)
        self.trained_data = run.get("datamodule") if isinstance(run, dict) else None

    def loss(self, batch: ClickBatch) -> dict[str, Tensor]:
        clicks = batch.clicks()
        return {"loss": F.binary_cross_entropy_with_logits(self.network(clicks), clicks.labels)}

    def count(self, batch: ClickBatch) -> int:
        return batch.count

    def example_batch(self, size: int) -> ClickBatch:
        """Returns normal numericals, random ids and random labels."""
        tables = self.layout.tables
        ids = [torch.randint(min(t.cardinality, MAX_EXAMPLE_ROWS), (size * t.hotness,)) for t in tables]
        numerical = torch.randn(size, self.layout.num_numerical)
        data = self.layout.encode(torch.randint(2, (size,)), numerical, torch.cat(ids).int())
        return ClickBatch(data.to(self.device), self.layout, size)

    def validation_step(self, batch: ClickBatch, batch_idx: int) -> None:
        if self._auc is None:
            self._auc = ExactAUC(self.device)
        scores, labels, loss = self.in_evaluation(self._scores, self.trainer.world_size == 1)(batch)
        self._auc.update(scores, labels)  # both make their own copies: a graph writes the next batch's there
        self._loss.append(loss.clone())

    test_step = validation_step

    def _scores(self, batch: ClickBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, labels, and the sum of the losses."""
        clicks = batch.clicks()
        logits = self.evaluated(clicks)
        loss = F.binary_cross_entropy_with_logits(logits, clicks.labels, reduction="sum").double()
        return logits, clicks.labels, torch.stack([loss, torch.full_like(loss, len(logits))])

    def evaluated(self, clicks: Clicks) -> Float[Tensor, " rows"]:
        """Returns the logits in an evaluation."""
        return self.network(clicks)

    def on_validation_epoch_end(self) -> None:
        auc = self._auc or ExactAUC(self.device)  # a rank without a batch takes part all the same
        total = torch.stack([torch.zeros(2, dtype=torch.float64, device=self.device), *self._loss]).sum(0)
        self._auc, self._loss = None, []
        if self.trainer.world_size > 1:
            torch.distributed.all_reduce(total)
        loss, samples = total.tolist()
        area = auc.compute()
        self.metrics = {} if math.isnan(area) else {"auc": area}  # of clicks of one kind there is none
        self.metrics |= {"test_loss": loss / samples} if samples else {}
        bayes = self.trainer.datamodule.bayes_auc  # type: ignore[attr-defined]
        self.metrics |= {} if bayes is None else {"bayes_auc": bayes}

    on_test_epoch_end = on_validation_epoch_end

    def evaluate_last(self, datamodule: Any) -> None:
        super().evaluate_last(datamodule)
        if self.trainer.is_global_zero:
            figures = "; ".join(f"{name} {value:.5f}" for name, value in self.metrics.items())
            print(f"on the test set: {figures}")

    def predictor(self, inference: Inference) -> ClickPredictor:
        return ClickPredictor(self.network, self.layout, self.device, inference)

    def predict(self, job: PredictionJob, clock: Clock) -> Prediction:
        """Probabilities of clicks; see `src.training.click_scores`."""
        datamodule = self.check_datamodule(job.datamodule())
        datamodule.check_columns(self.trained_data)
        datamodule.device = self.device
        datamodule.prepare_data()
        self.bind_data(datamodule)
        self.to(self.device).eval()
        return predict_clicks(self.network, datamodule, job, clock, self.final_metric, self.seen)


def check_fit(trained: ClickLayout, data: ClickLayout) -> None:
    """Raises UserError where the data's features are not those that the network was made for."""
    for number, (ours, theirs) in enumerate(zip(trained.tables, data.tables, strict=False)):
        if ours[1:] != theirs[1:]:
            raise UserError(
                f"{theirs.name} has {theirs.cardinality} ids, {theirs.hotness} a row, but table {number} of the "
                f"network is made for {ours.cardinality} and {ours.hotness}; use the data set that it was trained on"
            )
    sizes = [(len(layout.tables), layout.num_numerical) for layout in (trained, data)]
    if sizes[0] != sizes[1]:
        raise UserError(
            f"the data has {sizes[1][0]} categorical and {sizes[1][1]} numerical features, the network is made for "
            f"{sizes[0][0]} and {sizes[0][1]}; use the data set that it was trained on"
        )
