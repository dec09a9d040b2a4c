"""DistilBERT as a task: whether a sentence is positive, judged by the accuracy over the whole dev set."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from src.batches.tokens import Tokens
from src.config.ranges import Count, NotNegative, Positive, Share
from src.datamodules.base import DataModule
from src.datamodules.text.loader import Padding
from src.datamodules.text.texts import LABEL_NAMES, TextDataModule
from src.errors import UserError
from src.gpu import deferred_rows
from src.gpu.replace import Replacements
from src.measure.roofline import Cost
from src.models.distilbert import fast
from src.models.distilbert.cost import cost
from src.models.distilbert.export import exported
from src.models.distilbert.labels import order_of
from src.models.distilbert.network import DistilBert, Sizes
from src.models.distilbert.weights import load, read_labels, read_sizes
from src.training.export import Export
from src.training.schedule import Schedule
from src.training.text_classification import TextClassificationTask

RANDOM = "random"
NO_DECAY = ("bias", "LayerNorm.weight", "layer_norm.weight")  # how names of parameters without weight decay end


class DistilBertTask(TextClassificationTask):
    """Learns the label of a sentence; see TextClassificationTask.

    Args:
        network: makes the network, given `sizes` (`_partial_: true` in the config).
        optimizer, schedule: see Task; biases and norms are a group without weight decay.
        padding, max_length, label_names, target: see TextClassificationTask.
        weights: a folder or a name on the hub, whose encoder is taken and whose head if it has one; or `random`.
        sizes: of the network, by Hugging Face's names; the weights' own, distilbert-base-uncased's if they are random.
        r_drop: weight of the disagreement of two passes with dropout of their own (R-Drop, Liang et al. 2021); 0: one.
        layer_decay: a layer's learning rate over that of the one above it; the embeddings are below the first layer.
        new_head: train a head anew though the weights have one.

    Raises UserError for weights that are not there or of other sizes.
    """

    replacements: ClassVar[Replacements] = {**fast.REPLACEMENTS, deferred_rows.NAME: {}}
    expected_data = "DistilBERT needs sentences; give datamodule=sentences, sst2 or token_synthetic"

    def __init__(
        self,
        network: Callable[..., DistilBert],
        optimizer: Callable[..., torch.optim.Optimizer],
        schedule: Schedule | None = None,
        weights: str = RANDOM,
        sizes: Mapping[str, Count] | None = None,
        padding: Padding = "max_length",
        max_length: Count = 512,
        r_drop: NotNegative = 0.0,
        layer_decay: Positive = 1.0,
        label_names: Sequence[str] | None = None,
        new_head: bool = False,
        target: Share | None = None,
    ) -> None:
        network_sizes = made_sizes(sizes) if weights == RANDOM else read_sizes(weights)
        if sizes and made_sizes(sizes) != replace(network_sizes, num_labels=made_sizes(sizes).num_labels):
            raise UserError(f"model.task.sizes are not those of {weights}, {asdict(network_sizes)}; leave the key away")
        super().__init__(
            lambda **sizes: network(replace(network_sizes, **sizes)), optimizer, schedule, network_sizes.vocab_size,
            network_sizes.num_labels, padding, max_length, label_names, target,
        )  # fmt: skip
        self.network: DistilBert
        self.fixed_sizes = {*(sizes or {}), *(["vocab_size"] if weights != RANDOM else [])}
        self.weights, self.r_drop, self.layer_decay = weights, r_drop, layer_decay
        has_head = weights != RANDOM and load(self.network, weights)
        self.is_trained = has_head and not new_head
        self.head_labels = read_labels(weights) if self.is_trained else []
        if has_head and new_head:
            self.network.resize_head(network_sizes.num_labels)

    def bind_data(self, datamodule: DataModule) -> None:
        super().bind_data(datamodule)
        longest, most = self.check_datamodule(datamodule).max_length, self.network.sizes.max_position_embeddings
        if longest > most:
            raise UserError(
                f"datamodule.max_length={longest} is beyond the network's {most} positions; give at most as many"
            )

    def ordered_labels(self, sentences: TextDataModule) -> list[str]:
        """Returns the data's labels, then those that it lacks; puts a trained head's outputs in that order.

        Raises UserError where the head was trained for others.
        """
        names = super().ordered_labels(sentences)
        if self.head_labels:
            numbered = sentences.expected_names is None and names == list(LABEL_NAMES)
            order = order_of(self.head_labels, names, numbered, self.weights)
            self.network.order_head(order)
            names += [self.head_labels[output] for output in order[len(names) :]]
            sentences.expected_names = self.head_labels = names
        return names

    def resize(self, **sizes: int) -> None:
        if "vocab_size" in sizes:
            super().resize(**sizes)
        else:  # the encoder stays: it may be trained
            self.sizes |= sizes
            self.network.resize_head(self.sizes["num_labels"])

    def kept_sizes(self) -> dict[str, Any]:
        return {"weights": RANDOM, "sizes": asdict(self.network.sizes)}

    def is_decayed(self, name: str, parameter: torch.nn.Parameter) -> bool:
        return not name.endswith(NO_DECAY)

    def rate_share(self, name: str) -> float:
        layers = self.network.sizes.n_layers
        if name.startswith("network.distilbert.embeddings."):
            return self.layer_decay**layers
        below, _, rest = name.partition("network.distilbert.transformer.layer.")
        return 1.0 if below else self.layer_decay ** (layers - 1 - int(rest.partition(".")[0]))

    def loss(self, batch: Tokens) -> dict[str, Tensor]:
        if not self.r_drop:
            return super().loss(batch)
        self.count_work(batch)
        logits, other = self.network(batch), self.network(batch)
        entropy = F.cross_entropy(logits, batch.labels) + F.cross_entropy(other, batch.labels)
        apart = disagreement(logits, other)
        return {"loss": entropy / 2 + self.r_drop * apart, "disagreement": apart}

    def cost(self) -> Cost:
        once = cost(self.network, self.work, self.batch_size, self.activation_bytes, self.updates)
        return replace(once, flops_training=2 * once.flops_training) if self.r_drop else once

    def exported(self) -> Export:
        return exported(self)


def disagreement(logits: Float[Tensor, "sentences labels"], other: Float[Tensor, "sentences labels"]) -> Tensor:
    """Returns the mean over sentences of both Kullback-Leibler divergences between two answers, half of each."""
    mine, theirs = logits.log_softmax(1), other.log_softmax(1)
    return ((mine.exp() - theirs.exp()) * (mine - theirs)).sum(1).mean() / 2


def made_sizes(sizes: Mapping[str, Count] | None) -> Sizes:
    """Raises UserError for a name that is no size."""
    names = [field.name for field in fields(Sizes)]
    for name in sizes or {}:
        if name not in names:
            raise UserError(f"model.task.sizes has no {name}; it has {', '.join(names)}")
    return Sizes(**(sizes or {}))
