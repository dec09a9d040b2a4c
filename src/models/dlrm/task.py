"""DLRM as a task: the probability of a click, judged by the exact AUC over the whole test set."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from src.batches.clicks import NUMBER_DTYPES, ClickLayout, Clicks
from src.config.ranges import Count, Share
from src.errors import UserError
from src.measure.roofline import Cost
from src.models.dlrm import fast
from src.models.dlrm.cost import cost
from src.models.dlrm.embeddings import PlainEmbeddings
from src.models.dlrm.export import exported
from src.models.dlrm.network import DLRM
from src.models.dlrm.sharded import ShardedEmbeddings
from src.models.dlrm.sharded_plan import Sharding
from src.training.click_prediction import ClickPredictionTask
from src.training.export import Export
from src.training.schedule import Schedule


class DLRMTask(ClickPredictionTask):
    """Learns whether a click happens; see ClickPredictionTask. The tables are updated with their own rule, at the same
    learning rate, the layers by the optimiser.

    Args:
        network, optimizer, schedule, tables, num_numerical, target: see ClickPredictionTask.
        sharding: of several ranks: data_parallel, table_wise, row_wise or column_wise for some tables, by name.
        engine: of several ranks: auto, or torchrec; see `ShardedEmbeddings`.
    """

    replacements = fast.REPLACEMENTS
    imported_on_ranks = ("src.models.dlrm.torchrec_tables",)
    expected_data = "DLRM needs clicks; give datamodule=criteo, criteo_synthetic or criteo_resident"

    def __init__(
        self,
        network: Callable[..., DLRM],
        optimizer: Callable[..., torch.optim.Optimizer],
        schedule: Schedule | None = None,
        tables: Sequence[Sequence[Count]] | None = None,
        num_numerical: Count | None = None,
        sharding: Mapping[str, Sharding] | None = None,
        engine: Literal["auto", "torchrec"] = "auto",
        target: Share | None = None,
    ) -> None:
        super().__init__(network, optimizer, schedule, tables, num_numerical, target)
        self.sharding, self.engine = dict(sharding or {}), engine

    @property
    def is_spread(self) -> bool:
        """Whether the tables are spread over several ranks."""
        return self._trainer is not None and self.trainer.world_size > 1

    def is_made(self) -> bool:
        return super().is_made() and self.is_spread is isinstance(self.network.embeddings, ShardedEmbeddings)

    def make_for(self, layout: ClickLayout, **parts: Any) -> None:
        if self.is_spread:
            plain: Any = getattr(self.make_network, "keywords", {}).get("embeddings", partial(PlainEmbeddings))
            parts["embeddings"] = partial(
                ShardedEmbeddings, sharding=self.sharding, engine=self.engine, **plain.keywords
            )
            if isinstance(self.network, DLRM) and isinstance(self.network.embeddings, PlainEmbeddings):
                # The layers stay: drawn a second time they would be others than those of a run on one rank.
                dim, start = self.network.embedding_dim, self.network.embeddings.start
                self.network.embeddings = parts["embeddings"](layout.tables, dim, start=start)
                return
        super().make_for(layout, **parts)

    def on_train_start(self) -> None:
        super().on_train_start()
        if isinstance(self.network.embeddings, ShardedEmbeddings):
            accumulate = self.trainer.datamodule.accumulate  # type: ignore[attr-defined]
            if accumulate > 1:  # one batch's vectors take the place of the other's
                raise UserError(f"hp.accumulate={accumulate}: spread tables take one batch a step; give 1")
            self.network.embeddings.wait_with(self.waiting)

    def can_be_captured(self) -> bool:
        return self.network.embeddings.can_be_captured()

    def trained_parameters(self) -> list[nn.Parameter]:
        return self.network.dense_parameters()

    def overflowed(self) -> Float[Tensor, ""]:
        return self.network.embeddings.overflowed()

    def update_rest(self, lr: Tensor | float, loss_scale: Tensor | None, found_inf: Tensor | None) -> None:
        rate = lr.float() if isinstance(lr, Tensor) else torch.full((), lr, device=self.device)
        rate = rate if loss_scale is None else rate / loss_scale
        self.network.embeddings.update(rate, found_inf, loss_scale)

    def cost(self) -> Cost:
        number_bytes = NUMBER_DTYPES[self.layout.number_dtype].itemsize
        return cost(self.network, self.batch_size, self.activation_bytes, self.updates, number_bytes)

    def evaluated(self, clicks: Clicks) -> Float[Tensor, " rows"]:
        if self.trainer.world_size == 1:
            return super().evaluated(clicks)
        # Ranks that look up one another's ids need equally many rows on each.
        rows = torch.tensor(len(clicks.labels), device=self.device)
        torch.distributed.all_reduce(rows, torch.distributed.ReduceOp.MAX)
        return super().evaluated(clicks.padded(int(rows), self.layout.tables))[: len(clicks.labels)]

    def exported(self) -> Export:
        return exported(self)
