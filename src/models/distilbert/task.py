"""DistilBERT as a task: whether a sentence is positive, judged by the accuracy over the whole dev set."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.nn import functional as F

from src.batches.tokens import PackedTokens, PaddedTokens
from src.config.ranges import Count, NotNegative, Positive, Share
from src.config.trained import is_given
from src.datamodules.base import DataModule
from src.datamodules.text.datamodule import TokenDataModule
from src.datamodules.text.loader import Padding
from src.datamodules.text.texts import LABEL_NAMES, TextDataModule
from src.datamodules.text.tokenizer import UNCASED, options_of
from src.datamodules.text.vocabulary import Vocabulary
from src.errors import UserError
from src.measure.classification import balanced_accuracy, from_tally, macro_f1, tally
from src.measure.clock import Clock
from src.measure.roofline import Cost
from src.models.distilbert import fast
from src.models.distilbert.cost import Work, cost
from src.models.distilbert.export import exported
from src.models.distilbert.labels import order_of
from src.models.distilbert.layout import Tokens
from src.models.distilbert.network import DistilBert, Sizes
from src.models.distilbert.predict import predict_sentences
from src.models.distilbert.predictor import SentencePredictor
from src.models.distilbert.weights import load, read_labels, read_sizes
from src.training.checkpoints import VOCABULARY
from src.training.classification import majority, train_counts
from src.training.export import Export
from src.training.prediction import Prediction, PredictionJob
from src.training.predictor import Inference
from src.training.schedule import Schedule
from src.training.task import FinalMetric, Task

RANDOM = "random"
TOKENIZER = "tokenizer"  # a checkpoint's key: the options of its tokenizer that are not an uncased one's
NO_DECAY = ("bias", "LayerNorm.weight", "layer_norm.weight")  # how names of parameters without weight decay end


class DistilBertTask(Task):
    """Learns the label of a sentence. An evaluation sets `acc`, `balanced_acc`, `macro_f1` and `dev_loss`, exact at any
    number of ranks.

    Args:
        network: makes the network, given `sizes` (`_partial_: true` in the config).
        optimizer, schedule: see Task; biases and norms are a group without weight decay.
        weights: a folder or a name on the hub, whose encoder is taken and whose head if it has one; or `random`.
        sizes: of the network, by Hugging Face's names; the weights' own, distilbert-base-uncased's if they are random.
        padding, max_length: of an example batch, as the datamodule's.
        r_drop: weight of the disagreement of two passes with dropout of their own (R-Drop, Liang et al. 2021); 0: one.
        layer_decay: a layer's learning rate over that of the one above it; the embeddings are below the first layer.
        label_names: where a checkpoint keeps the labels, unless they are SST-2's.
        new_head: train a head anew though the weights have one.
        target: accuracy that counts as reached.

    Raises UserError for weights that are not there or of other sizes.
    """

    unit = "samples"
    replacements = fast.REPLACEMENTS
    checkpoint_keys = (VOCABULARY, TOKENIZER)
    curves = ("loss", "acc", "lr")
    data_kind = TokenDataModule
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
        super().__init__(network(network_sizes), optimizer, schedule)
        self.make_network, self.given_sizes, self.weights = network, dict(sizes or {}), weights
        self.label_names = None if label_names is None else list(label_names)
        self.network: DistilBert
        has_head = weights != RANDOM and load(self.network, weights)
        self.is_trained = has_head and not new_head
        self.head_labels = read_labels(weights) if self.is_trained else []  # of the weights' head, by output
        if has_head and new_head:
            self.network.resize_head(network_sizes.num_labels)
        self.padding, self.max_length = padding, max_length
        self.r_drop, self.layer_decay = r_drop, layer_decay
        self.final_metric = FinalMetric("acc", "max", target)
        self.worked: Tensor  # sentences, tokens and tokens squared of all batches so far: cost() is of their mean
        self.register_buffer("worked", torch.zeros(3, dtype=torch.int64), persistent=False)
        self.pieces: tuple[str, ...] = ()  # the word pieces that the weights know, by id
        self.tokenizer = UNCASED
        self._judged: list[Tensor] = []  # of each batch of an evaluation, see `_judge`
        self._label_counts: np.ndarray | None = None  # sentences of each label in the last evaluation

    def bind_data(self, datamodule: DataModule) -> None:
        """Takes sizes and names of the labels from the data, or checks them. Raises UserError where they do not fit.

        Random weights take the size of the vocabulary too, unless it is given.
        """
        sentences: TokenDataModule = self.check_datamodule(datamodule)
        if isinstance(sentences, TextDataModule):
            if self.label_names is not None:
                sentences.expected_names = self.label_names
            self.fit_to(sentences)
        sizes, (count, source) = self.network.sizes, sentences.words()
        if count != sizes.vocab_size and self.weights == RANDOM and "vocab_size" not in self.given_sizes:
            sizes = replace(sizes, vocab_size=count)
            self.take_network(self.make_network(sizes).to(self.device))
        if count != sizes.vocab_size:
            raise UserError(
                f"{source} has {count} word pieces, the weights are for {sizes.vocab_size}; give the vocabulary that "
                f"belongs to them as datamodule.vocabulary"
            )
        self._know(sentences.word_pieces(), source)
        if isinstance(sentences, TextDataModule):
            self.tokenizer = sentences.vocabulary.options
            longest = sentences.vocabulary.max_length
            if longest is not None and sentences.max_length > longest:
                raise UserError(
                    f"datamodule.max_length={sentences.max_length} is beyond the model_max_length {longest} of "
                    "tokenizer_config.json; give at most as many"
                )
        if sentences.max_length > sizes.max_position_embeddings:
            raise UserError(
                f"datamodule.max_length={sentences.max_length} is beyond the network's "
                f"{sizes.max_position_embeddings} positions; give at most as many"
            )
        if self.model_config is not None:  # so that a checkpoint is read without the files that training began with
            kept = {} if self.label_names is None else {"label_names": self.label_names}
            self.model_config["task"] |= {"weights": RANDOM, "sizes": asdict(sizes), **kept}

    def fit_to(self, sentences: TextDataModule) -> None:
        """Gives the network an output for each label, a trained head's in the order of the data's labels.

        Raises UserError where it was trained for others.
        """
        names = list(sentences.label_names)
        sizes = self.network.sizes
        if self.head_labels:
            numbered = sentences.expected_names is None and names == list(LABEL_NAMES)
            order = order_of(self.head_labels, names, numbered, self.weights)
            self.network.order_head(order)
            names += [self.head_labels[output] for output in order[len(names) :]]
            sentences.expected_names = self.head_labels = names
        if len(names) != sizes.num_labels:
            if self.label_names is not None or "num_labels" in self.given_sizes:
                raise UserError(f"the data has {len(names)} labels, the network {sizes.num_labels}; give others")
            self.network.resize_head(len(names))
        self.label_names = None if names == list(LABEL_NAMES) else names

    def _know(self, pieces: tuple[str, ...], source: str) -> None:
        """Takes the vocabulary, or checks it. Raises UserError where it is not the one of the weights."""
        for line, (mine, other) in enumerate(zip(self.pieces, pieces, strict=False), 1):
            if mine != other:
                raise UserError(
                    f"vocabularies differ: line {line} of {source} is {other!r}, not {mine!r}; leave out "
                    "datamodule.vocabulary for a prediction, or give that of the training"
                )
        self.pieces = self.pieces or pieces

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        if self.pieces:
            checkpoint[VOCABULARY] = "\n".join(self.pieces)
        if self.tokenizer.changed:
            checkpoint[TOKENIZER] = self.tokenizer.changed

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if isinstance(checkpoint.get(VOCABULARY), str):
            self._know(tuple(checkpoint[VOCABULARY].split("\n")), "the checkpoint's")
            self.tokenizer = options_of(checkpoint.get(TOKENIZER, {}), "the checkpoint")

    def setup(self, stage: str) -> None:
        self.bind_data(self.trainer.datamodule)  # type: ignore[attr-defined]

    def is_decayed(self, name: str, parameter: torch.nn.Parameter) -> bool:
        return not name.endswith(NO_DECAY)

    def rate_share(self, name: str) -> float:
        layers = self.network.sizes.n_layers
        if name.startswith("network.distilbert.embeddings."):
            return self.layer_decay**layers
        below, _, rest = name.partition("network.distilbert.transformer.layer.")
        return 1.0 if below else self.layer_decay ** (layers - 1 - int(rest.partition(".")[0]))

    def loss(self, batch: Tokens) -> dict[str, Tensor]:
        self.count_work(batch)
        logits = self.network(batch)
        loss = F.cross_entropy(logits, batch.labels)
        if not self.r_drop:
            return {"loss": loss}
        other = self.network(batch)
        apart = disagreement(logits, other)
        return {"loss": (loss + F.cross_entropy(other, batch.labels)) / 2 + self.r_drop * apart, "disagreement": apart}

    def count(self, batch: Tokens) -> int:
        return batch.num_sentences

    def count_work(self, batch: Tokens) -> None:
        """Adds to `worked` what this batch is: all places of padded sentences, the tokens of packed ones."""
        if isinstance(batch, PaddedTokens):
            lengths = torch.full_like(batch.lengths, batch.ids.shape[1])
        else:
            lengths = batch.starts.diff()
        lengths = lengths.long()
        self.worked += torch.stack([torch.ones_like(lengths), lengths, lengths**2]).sum(1)

    def cost(self) -> Cost:
        sentences, tokens, squares = self.worked.tolist()
        work = Work(tokens / max(1, sentences), squares / max(1, sentences))
        once = cost(self.network, work, self.batch_size, self.activation_bytes, self.updates)
        return replace(once, flops_training=2 * once.flops_training) if self.r_drop else once

    def example_batch(self, size: int) -> Tokens:
        """Returns random words in sentences of 3 to `max_length` tokens, and random labels."""
        with self.device:
            lengths = torch.randint(3, self.max_length + 1, (size,), dtype=torch.int32)
            labels = torch.randint(self.network.sizes.num_labels, (size,))
            ids = torch.randint(1, self.network.sizes.vocab_size, (size, self.max_length), dtype=torch.int32)
            positions = torch.arange(self.max_length, dtype=torch.int32).expand_as(ids)
            is_token = positions < lengths[:, None]
            if self.padding != "packed":
                return PaddedTokens(ids * is_token, lengths, labels)
            starts = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
            return PackedTokens(ids[is_token], positions[is_token], starts, labels, self.max_length)

    def validation_step(self, batch: Tokens, batch_idx: int) -> None:
        self._judged.append(self.in_evaluation(self._judge)(batch).clone())  # a graph writes the next batch's there

    test_step = validation_step

    def _judge(self, batch: Tokens) -> Float64[Tensor, " counts"]:
        """Returns the numbers of correct answers and of sentences, the sum of the losses, and what `tally` counts."""
        logits = self.network(batch)
        given = logits.argmax(1)
        is_right = given == batch.labels
        loss = F.cross_entropy(logits, batch.labels, reduction="sum")
        right = is_right.sum()
        sums = torch.stack([right, torch.full_like(right, len(logits)), loss]).double()
        return torch.cat([sums, tally(given, batch.labels, is_right, logits.shape[1]).flatten()])

    def on_validation_epoch_end(self) -> None:
        zeros = torch.zeros(3 + 3 * self.network.sizes.num_labels, dtype=torch.float64, device=self.device)
        total = torch.stack([zeros, *self._judged]).sum(0)
        self._judged = []
        if self.trainer.world_size > 1:  # a rank without a batch takes part all the same
            torch.distributed.all_reduce(total)
        right, sentences, loss = total[:3].tolist()
        by_label = total[3:].view(3, -1).cpu().numpy()
        names = getattr(self.trainer.datamodule, "label_names", None)  # type: ignore[attr-defined]
        scores = from_tally(by_label, names or [str(label) for label in range(by_label.shape[1])])
        self.class_figures, self._label_counts = scores, by_label[1]
        averages = {"balanced_acc": balanced_accuracy(scores), "macro_f1": macro_f1(scores)}
        self.metrics = {"acc": right / sentences, "dev_loss": loss / sentences}
        self.metrics |= {name: value for name, value in averages.items() if value is not None}

    on_test_epoch_end = on_validation_epoch_end

    def evaluate_last(self, datamodule: Any) -> None:
        super().evaluate_last(datamodule)
        if self.trainer.is_global_zero:
            names = {"acc": "accuracy", "dev_loss": "loss", "balanced_acc": "balanced accuracy", "macro_f1": "macro F1"}
            print("on the dev set: " + ", ".join(f"{names[key]} {value:.4f}" for key, value in self.metrics.items()))
            if isinstance(datamodule, TextDataModule) and self._label_counts is not None:
                labels = datamodule.label_names
                share, words = majority(self._label_counts, labels, train_counts(datamodule, labels))
                print(f"for comparison: {share:.4f} by {words}")

    def exported(self) -> Export:
        return exported(self)

    def predictor(self, inference: Inference) -> SentencePredictor:
        datamodule = self._text_data(inference.datamodule, False)
        self.bind_data(datamodule)
        return SentencePredictor(self.network, datamodule, self.device, inference)

    def _text_data(self, instantiate: Callable[[], Any], has_vocabulary: bool) -> TextDataModule:
        """Returns the configured text, with the checkpoint's vocabulary unless it has its own."""
        datamodule = instantiate()
        if not isinstance(datamodule, TextDataModule):
            raise UserError("predict.py judges text; give datamodule=sentences or sst2")
        datamodule.device = self.device
        if self.pieces and not has_vocabulary:
            datamodule.vocabulary = Vocabulary("the checkpoint", self.pieces, self.tokenizer)
        return datamodule

    def predict(self, job: PredictionJob, clock: Clock) -> Prediction:
        """Labels of sentences; see `src.models.distilbert.predict`."""
        datamodule = self._text_data(job.datamodule, is_given("datamodule.vocabulary", job.given))
        if self.head_labels and job.options.input is not None:
            datamodule.expected_names = self.head_labels
        self.bind_data(datamodule)
        return predict_sentences(self.network, datamodule, job, clock, self.final_metric, self.count_work)


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
