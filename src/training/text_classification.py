"""Classification of sentences, the same for every network: a task judged by accuracy, and the prediction of labels."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn
from torch.nn import functional as F

from src.batches.tokens import PackedTokens, PaddedTokens, Tokens, Work
from src.config.ranges import Count, Share
from src.config.trained import is_given
from src.datamodules.base import DataModule
from src.datamodules.text.datamodule import TokenDataModule
from src.datamodules.text.loader import Padding
from src.datamodules.text.texts import LABEL_NAMES, TextDataModule
from src.datamodules.text.tokenizer import UNCASED, options_of
from src.datamodules.text.vocabulary import SPECIAL, Vocabulary
from src.errors import UserError
from src.measure.classification import balanced_accuracy, from_tally, macro_f1, tally
from src.measure.clock import Clock
from src.training.checkpoints import VOCABULARY
from src.training.classification import majority, train_counts
from src.training.prediction import Prediction, PredictionJob
from src.training.predictor import Inference
from src.training.schedule import Schedule
from src.training.sentence_prediction import predict_sentences
from src.training.sentence_predictor import SentencePredictor
from src.training.task import FinalMetric, Task

TOKENIZER = "tokenizer"  # a checkpoint's key: the options of its tokenizer that are not an uncased one's


class TextClassificationTask(Task):
    """Base of tasks that learn the label of a sentence. A model supplies `cost`, that of the average sentence `work`.

    An evaluation sets `acc`, `balanced_acc`, `macro_f1` and `dev_loss`, exact at any number of ranks.

    Args:
        network: makes the network, given `vocab_size` and `num_labels` (`_partial_: true` in the config). The network
            maps `Tokens`, as the datamodule's `padding` makes them, to logits (sentences, labels).
        optimizer, schedule: see Task.
        vocab_size, num_labels: those of the data if not given.
        padding, max_length: of an example batch, as the datamodule's.
        label_names: where a checkpoint keeps the labels, unless they are SST-2's.
        target: accuracy that counts as reached.
    """

    unit = "samples"
    checkpoint_keys = (VOCABULARY, TOKENIZER)
    curves = ("loss", "acc", "lr")
    data_kind = TokenDataModule
    expected_data = "this model needs sentences; give datamodule=sentences, sst2 or token_synthetic"

    def __init__(
        self,
        network: Callable[..., nn.Module],
        optimizer: Callable[..., torch.optim.Optimizer],
        schedule: Schedule | None = None,
        vocab_size: Count | None = None,
        num_labels: Count | None = None,
        padding: Padding = "max_length",
        max_length: Count = 512,
        label_names: Sequence[str] | None = None,
        target: Share | None = None,
    ) -> None:
        sizes = {"vocab_size": vocab_size or len(SPECIAL), "num_labels": num_labels or len(LABEL_NAMES)}
        super().__init__(network(**sizes), optimizer, schedule)
        self.network: Any
        self.make_network, self.sizes = network, sizes
        self.fixed_sizes = {name for name, size in (("vocab_size", vocab_size), ("num_labels", num_labels)) if size}
        self.padding, self.max_length = padding, max_length
        self.label_names = None if label_names is None else list(label_names)
        self.head_labels: list[str] = []  # by output, of weights that were trained elsewhere
        self.final_metric = FinalMetric("acc", "max", target)
        self.worked: Tensor  # sentences, tokens and tokens squared of all batches so far: cost() is of their mean
        self.register_buffer("worked", torch.zeros(3, dtype=torch.int64), persistent=False)
        self.exponents: Tensor  # of a sentence's tokens in `worked`
        self.register_buffer("exponents", torch.arange(3), persistent=False)
        self.pieces: tuple[str, ...] = ()  # the word pieces that the weights know, by id
        self.tokenizer = UNCASED
        self._judged: list[Tensor] = []  # of each batch of an evaluation, see `_judge`
        self._label_counts: np.ndarray | None = None  # sentences of each label in the last evaluation

    def bind_data(self, datamodule: DataModule) -> None:
        """Takes sizes and names of the labels from the data, or checks them. Raises UserError where they do not fit."""
        sentences: TokenDataModule = self.check_datamodule(datamodule)
        if isinstance(sentences, TextDataModule):
            if self.label_names is not None:
                sentences.expected_names = self.label_names
            self._fit_labels(self.ordered_labels(sentences))
        count, source = sentences.words()
        if count != self.sizes["vocab_size"]:
            if "vocab_size" in self.fixed_sizes:
                raise UserError(
                    f"{source} has {count} word pieces, the weights are for {self.sizes['vocab_size']}; give the "
                    "vocabulary that belongs to them as datamodule.vocabulary"
                )
            self.resize(vocab_size=count)
        self._know(sentences.word_pieces(), source)
        if isinstance(sentences, TextDataModule):
            self.tokenizer = sentences.vocabulary.options
            longest = sentences.vocabulary.max_length
            if longest is not None and sentences.max_length > longest:
                raise UserError(
                    f"datamodule.max_length={sentences.max_length} is beyond the model_max_length {longest} of "
                    "tokenizer_config.json; give at most as many"
                )
        if self.model_config is not None:  # so that a checkpoint is read without the files that training began with
            names = {} if self.label_names is None else {"label_names": self.label_names}
            self.model_config["task"] |= self.kept_sizes() | names

    def ordered_labels(self, sentences: TextDataModule) -> list[str]:
        """Returns the names of the network's outputs for this data."""
        return list(sentences.label_names)

    def _fit_labels(self, names: list[str]) -> None:
        """Gives the network an output for each label. Raises UserError where it was made for others."""
        count = self.sizes["num_labels"]
        if len(names) != count:
            if self.label_names is not None or "num_labels" in self.fixed_sizes:
                raise UserError(f"the data has {len(names)} labels, the network {count}; give others")
            self.resize(num_labels=len(names))
        self.label_names = None if names == list(LABEL_NAMES) else names

    def resize(self, **sizes: int) -> None:
        """Makes the network anew, with another `vocab_size` or `num_labels`."""
        self.sizes |= sizes
        self.take_network(self.make_network(**self.sizes).to(self.device))

    def kept_sizes(self) -> dict[str, Any]:
        """Returns the arguments by which a checkpoint's task is made without its data."""
        return self.sizes

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

    def loss(self, batch: Tokens) -> dict[str, Tensor]:
        self.count_work(batch)
        return {"loss": F.cross_entropy(self.logits(batch), batch.labels)}

    def logits(self, batch: Tokens) -> Float[Tensor, "sentences labels"]:
        """Returns the network's logits, in float32 (float64 if the weights are)."""
        logits = self.network(batch)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def count(self, batch: Tokens) -> int:
        return batch.num_sentences

    def count_work(self, batch: Tokens) -> None:
        """Adds to `worked` what this batch is: all places of padded sentences, the tokens of packed ones."""
        if isinstance(batch, PaddedTokens):
            self.worked.add_(batch.ids.shape[1] ** self.exponents, alpha=batch.num_sentences)
            return
        powers = batch.starts.diff()[:, None] ** self.exponents
        first = self.exponents[:1].expand(len(powers))  # zeros: adds all rows to one by a single launch
        self.worked[None].index_add_(0, first, powers)

    @property
    def work(self) -> Work:
        """The average sentence of all batches so far."""
        sentences, tokens, squares = self.worked.tolist()
        return Work(tokens / max(1, sentences), squares / max(1, sentences))

    def example_batch(self, size: int) -> Tokens:
        """Returns random words in sentences of 3 to `max_length` tokens, and random labels."""
        with self.device:
            lengths = torch.randint(3, self.max_length + 1, (size,), dtype=torch.int32)
            labels = torch.randint(self.sizes["num_labels"], (size,))
            ids = torch.randint(1, self.sizes["vocab_size"], (size, self.max_length), dtype=torch.int32)
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
        logits = self.logits(batch)
        given = logits.argmax(1)
        is_right = given == batch.labels
        loss = F.cross_entropy(logits, batch.labels, reduction="sum")
        right = is_right.sum()
        sums = torch.stack([right, torch.full_like(right, len(logits)), loss]).double()
        return torch.cat([sums, tally(given, batch.labels, is_right, logits.shape[1]).flatten()])

    def on_validation_epoch_end(self) -> None:
        zeros = torch.zeros(3 + 3 * self.sizes["num_labels"], dtype=torch.float64, device=self.device)
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
        """Labels of sentences; see `src.training.sentence_prediction`."""
        datamodule = self._text_data(job.datamodule, is_given("datamodule.vocabulary", job.given))
        if self.head_labels and job.options.input is not None:
            datamodule.expected_names = self.head_labels
        self.bind_data(datamodule)
        return predict_sentences(self.logits, datamodule, job, clock, self.final_metric, self.count_work)
