"""Image classification, the same for every network: a task judged by top-1, and the prediction of classes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int, Int64, UInt8
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from src.batches.images import UNKNOWN, ImageBatch
from src.datamodules.images.base import ImageDataModule
from src.errors import UserError
from src.gpu.cuda_graphs import Graphed
from src.measure.classification import balanced_accuracy, from_tally, macro_f1, scores_of, tally
from src.measure.clock import Clock
from src.measure.curves import score_groups
from src.system.tables import write_csv
from src.training.classification import (
    MOST_COLUMNS,
    class_file,
    judge_classes,
    majority,
    probability_cells,
    probability_columns,
    train_counts,
)
from src.training.confusion import confusion, confusion_picture
from src.training.image_predictor import ImagePredictor
from src.training.prediction import (
    BenchmarkOptions,
    Prediction,
    PredictionJob,
    Quality,
    TimedBatches,
    check_csv,
    split_in_words,
    time_calls,
    warm_up,
)
from src.training.predictor import Inference
from src.training.schedule import Schedule
from src.training.task import FinalMetric, Task

IMAGENET_MEAN = (0.485, 0.456, 0.406)  # of each colour, where white is 1
IMAGENET_STD = (0.229, 0.224, 0.225)


class ImageClassificationTask(Task):
    """Base of tasks that learn the class of an image. A model supplies `cost`.

    An evaluation sets `top1`, `top5` (shares of the images), `balanced_acc`, `macro_f1` and `val_loss`.

    Args:
        network: maps (batch, 3, height, width) to logits (batch, classes); has `num_classes`.
        optimizer, schedule: see Task.
        image_size: height and width of the images.
        label_smoothing: share of the target that is spread over all classes.
        class_names: where a checkpoint keeps them; training takes them from the datamodule.
        target: top-1 that counts as reached.
    """

    unit = "images"
    curves = ("loss", "top1", "lr")
    data_kind = ImageDataModule
    colour_mean: Tensor
    colour_std: Tensor
    expected_data = "this model needs images; give datamodule=imagenet, cifar10, image_folder or image_synthetic"

    def __init__(
        self,
        network: nn.Module,
        optimizer: Callable[..., torch.optim.Optimizer],
        schedule: Schedule | None = None,
        image_size: int = 224,
        label_smoothing: float = 0.0,
        class_names: Sequence[str] | None = None,
        target: float | None = None,
    ) -> None:
        super().__init__(network, optimizer, schedule)
        self.network: Any
        self.image_size, self.label_smoothing = image_size, label_smoothing
        self.class_names = None if class_names is None else list(class_names)
        self.final_metric = FinalMetric("top1", "max", target)
        self.register_buffer("colour_mean", torch.tensor(IMAGENET_MEAN), persistent=False)
        self.register_buffer("colour_std", torch.tensor(IMAGENET_STD), persistent=False)
        self._counts: list[Tensor] = []  # of each batch of an evaluation, see `_judged`
        self._class_counts: np.ndarray | None = None  # images of each class in the last evaluation
        self._validated_at = -1  # the step whose weights `self.metrics` judges

    def normalise(self, pixels: UInt8[Tensor, "batch height width 3"]) -> Float[Tensor, "batch 3 height width"]:
        """Returns the network's input: standardised by ImageNet's mean and deviation of each colour."""
        return ((pixels / 255 - self.colour_mean) / self.colour_std).permute(0, 3, 1, 2)

    def bind_data(self, datamodule: Any) -> None:
        """Takes the names of the classes, or checks them. Raises UserError where they are not the network's."""
        datamodule = self.check_datamodule(datamodule)
        datamodule.setup("bind_data")
        names, classes = datamodule.class_names, self.network.num_classes
        if names is None:  # images without labels
            return
        if len(names) != classes:
            raise UserError(
                f"the data has {len(names)} classes, the network {classes}; give datamodule.num_classes={len(names)}"
            )
        if self.class_names is not None and self.class_names != list(names):
            mine, other = next(pair for pair in zip(self.class_names, names, strict=True) if pair[0] != pair[1])
            raise UserError(
                f"the data has the class {other} where the network has {mine}; use the data it was trained on"
            )
        self.class_names = list(names)
        if self.model_config is not None:
            self.model_config["task"]["class_names"] = self.class_names

    def setup(self, stage: str) -> None:
        self.bind_data(self.trainer.datamodule)  # type: ignore[attr-defined]

    def loss(self, batch: ImageBatch) -> dict[str, Tensor]:
        return {"loss": self.entropy(self.logits(batch), batch.labels).mean()}

    def logits(self, batch: ImageBatch) -> Float[Tensor, "batch classes"]:
        return self.network(self.inputs(batch))

    def inputs(self, batch: ImageBatch) -> Float[Tensor, "batch 3 height width"]:
        """Returns the normalised images in the network's precision."""
        return self.normalise(batch.pixels).to(next(self.network.parameters()).dtype)

    def entropy(
        self, logits: Float[Tensor, "batch classes"], labels: Int64[Tensor, " batch"]
    ) -> Float[Tensor, " batch"]:
        """Returns the cross entropy of each image, with label smoothing."""
        return F.cross_entropy(logits, labels, label_smoothing=self.label_smoothing, reduction="none").float()

    def count(self, batch: ImageBatch) -> int:
        return len(batch.labels)

    def example_batch(self, size: int) -> ImageBatch:
        """Returns noise with random classes."""
        pixels = torch.randint(256, (size, self.image_size, self.image_size, 3), dtype=torch.uint8)
        labels = torch.randint(self.network.num_classes, (size,))
        return ImageBatch(pixels.to(self.device), labels.to(self.device))

    def validation_step(self, batch: ImageBatch, batch_idx: int) -> None:
        self._counts.append(self.in_evaluation(self._judged)(batch).clone())  # a graph overwrites its result

    test_step = validation_step

    def _judged(self, batch: ImageBatch) -> Float64[Tensor, " counts"]:
        """Returns what `judged` and `tally` count, one after the other."""
        logits, classes = self.logits(batch).float(), self.network.num_classes
        given = logits.argmax(1)
        is_right = rank_of(logits, batch.labels) <= 1
        return torch.cat([judged(logits, batch.labels), tally(given, batch.labels, is_right, classes).flatten()])

    def on_validation_epoch_end(self) -> None:
        zeros = torch.zeros(4 + 3 * self.network.num_classes, dtype=torch.float64, device=self.device)
        total = torch.stack([zeros, *self._counts]).sum(0)
        self._counts = []
        if self.trainer.world_size > 1:
            distributed.all_reduce(total)
        top1, top5, loss, images = total[:4].tolist()
        by_class = total[4:].view(3, -1).cpu().numpy()
        scores, self._class_counts = from_tally(by_class, self._names()), by_class[1]
        self.class_figures = scores
        figures = {"top1": top1, "top5": top5, "val_loss": loss}
        self.metrics = {name: value / images for name, value in figures.items() if images}
        averages = {"balanced_acc": balanced_accuracy(scores), "macro_f1": macro_f1(scores)}
        self.metrics |= {name: value for name, value in averages.items() if value is not None}
        self._validated_at = self.trainer.global_step

    on_test_epoch_end = on_validation_epoch_end

    def evaluate_last(self, datamodule: Any) -> None:
        """Evaluates the last weights. Choosing among epochs by the one evaluation set would flatter the result."""
        if self._validated_at != self.trainer.global_step:
            super().evaluate_last(datamodule)
        if self.trainer.is_global_zero:
            print("on the evaluation set: " + "; ".join(f"{name} {value:.4f}" for name, value in self.metrics.items()))
            if self._class_counts is not None and self._class_counts.any():
                names = self._names()
                share, words = majority(self._class_counts, names, train_counts(datamodule, names))
                print(f"for comparison: {share:.4f} by {words}")

    def predict(self, job: PredictionJob, clock: Clock) -> Prediction:
        """Classifies images of the datamodule's `predict` split, in order, or times batches (see BenchmarkOptions).

        A batch's latency is from its bytes on the device to its classes and probabilities on the host; with loading it
        includes the decoding. That of one batch is from bytes on the host. Raises UserError for no csv as output.
        """
        options: BenchmarkOptions = job.options
        check_csv(job.output)
        datamodule = self._prediction_data(job)
        run, device = Graphed(self._best, job.graph), self.device
        split = datamodule.predict
        loader = datamodule.loader(split, batch_size=job.batch_size)
        if job.benchmark:
            first = on_device(next(iter(loader)), device)
            warm_up(run, repeat(first, max(1, job.warmup_batches)), job)
            clock.mark("startup")
            if options.repeats is not None:
                host = ImageBatch(*(t.cpu().pin_memory() if device.type == "cuda" else t for t in first))
                latencies = time_calls(lambda: [t.cpu() for t in run(on_device(host, device))], device, options.repeats)
                clock.mark("compute")
                return Prediction(len(first.labels) * len(latencies), latencies, {})
        clock.mark("startup")
        wanted = min(job.num_samples or datamodule.splits[split], datamodule.splits[split])
        timed = TimedBatches[ImageBatch](run, device, clock, lambda batch: len(batch.labels))
        batches = (on_device(batch, device) for batch in loader)
        parts = [
            Classified(classes, best, batch.labels.cpu().numpy(), shares)
            for batch, (best, classes, shares) in timed.over(batches, wanted)
        ]
        classified = Classified(
            *(np.concatenate([getattr(part, name) for part in parts])[:wanted] for name in Classified.__annotations__)
        )
        unreadable = [row for row in datamodule.unreadable_rows(split) if row < wanted]
        classified.classes[unreadable] = UNKNOWN
        names = self._names()
        write_classes(classified, datamodule.file_names(split), names, job.output)
        classified = classified.without(unreadable)
        count = len(classified.labels)
        is_known = count > 0 and (classified.labels != UNKNOWN).all()
        share = float((classified.classes == classified.labels).mean()) if is_known else 0.0
        files, quality, scores, groups = {"predictions": job.output}, [], [], []
        if is_known:
            files |= {"classes": class_file(job.output), "confusion": job.output.with_suffix(".png")}
            counts = confusion(classified.classes, classified.labels, len(names))
            confusion_picture(counts, names, "images", files["confusion"])
            words = split_in_words(count, "images", split, count * (job.has_trained_data and split == "train"))
            trained = train_counts(datamodule, names) if job.has_trained_data else None
            accuracy = Quality("top-1", 100 * share, "%", f"right, {words}")
            scores = scores_of(counts, names)
            quality = judge_classes(scores, "images", accuracy, trained, files["classes"])
            groups = score_groups(classified.probabilities, classified.classes == classified.labels)
        clock.mark("evaluation")
        judged = self.final_metric.record(share) if is_known else None
        samples = timed.samples if job.benchmark else wanted
        loaded_s, reading = timed.loaded_latencies_s, datamodule.reading
        return Prediction(samples, timed.latencies_s, files, judged, loaded_s, quality=quality, classes=scores,
                          calibration=groups, reading=reading)  # fmt: skip

    def predictor(self, inference: Inference) -> ImagePredictor:
        data = inference.datamodule(image_size=self.image_size, num_classes=self.network.num_classes)
        datamodule: ImageDataModule = self.check_datamodule(data)

        def logits(pixels: UInt8[Tensor, "batch height width 3"]) -> Float[Tensor, "batch classes"]:
            return self.logits(ImageBatch(pixels, torch.full((len(pixels),), UNKNOWN, device=pixels.device)))

        return ImagePredictor(self.network, logits, datamodule, self._names(), self.device, inference)

    def _names(self) -> Sequence[str]:
        """Returns the names of the classes, their numbers where the data has none."""
        return self.class_names or [str(number) for number in range(self.network.num_classes)]

    def _prediction_data(self, job: PredictionJob) -> ImageDataModule:
        """Returns the configured images, of the network's size and number of classes, ready to be loaded."""
        self.check_datamodule(job.datamodule())
        datamodule = job.datamodule(image_size=self.image_size, num_classes=self.network.num_classes)
        datamodule.device = self.device
        datamodule.prepare_data()
        self.bind_data(datamodule)
        return datamodule

    def _best(self, batch: ImageBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Returns probability and number of the likeliest class of each image, then those of all, if they are few."""
        shares = self.logits(batch).float().softmax(1)
        best, classes = shares.max(1)
        return best, classes, shares if shares.shape[1] <= MOST_COLUMNS else shares[:, :0]


@dataclass(frozen=True)
class Classified:
    """The likeliest class of each image, its probability, the true class or UNKNOWN, and all probabilities if few."""

    classes: Int[np.ndarray, " images"]
    probabilities: Float[np.ndarray, " images"]
    labels: Int[np.ndarray, " images"]
    shares: Float[np.ndarray, "images classes"]

    def without(self, rows: Sequence[int]) -> "Classified":
        """Returns all others."""
        return Classified(*(np.delete(part, rows, axis=0) for part in vars(self).values()))


def judged(logits: Float[Tensor, "batch classes"], labels: Int64[Tensor, " batch"]) -> Float[Tensor, "4"]:
    """Returns, in float64: images whose class ranks first, among the first five, the sum of losses, and their number.

    Among equal logits an image's own class comes last: a constant network is never right. Images whose label is
    UNKNOWN are not counted.
    """
    is_labelled = labels != UNKNOWN
    rank = rank_of(logits, labels)
    loss = F.cross_entropy(logits, labels, reduction="none", ignore_index=UNKNOWN).double()
    counts = [((rank <= 1) & is_labelled).double(), ((rank <= 5) & is_labelled).double(), loss, is_labelled.double()]
    return torch.stack(counts).sum(1)


def rank_of(logits: Float[Tensor, "batch classes"], labels: Int64[Tensor, " batch"]) -> Int64[Tensor, " batch"]:
    """Returns the place of each image's own class among the logits, from 1; the last one among equals and NaN."""
    true_logits = logits.gather(1, labels.clamp(min=0)[:, None])
    return (~(logits < true_logits)).sum(1)


def on_device(batch: ImageBatch, device: torch.device) -> ImageBatch:
    """Returns the batch on the device; a copy from pinned memory is not waited for."""
    return ImageBatch(*(tensor.to(device, non_blocking=True) for tensor in batch))


def write_classes(classified: Classified, files: Sequence[str] | None, names: Sequence[str], output: Path) -> None:
    """Writes a line for each image: its file or number, the class, its probability, the true class if known, and the
    probabilities of all classes if they are few.

    Class and probabilities are empty for an image that could not be decoded.
    """

    def name_of(number: int) -> str:
        return "" if number == UNKNOWN else names[number]

    columns = zip(
        *(part.tolist() for part in (classified.classes, classified.probabilities, classified.labels)),
        classified.shares,
        strict=True,
    )
    rows = (
        (
            files[row] if files is not None else row,
            name_of(guess),
            "" if guess == UNKNOWN else f"{probability:.6f}",
            name_of(label),
            *(probability_cells(shares) if guess != UNKNOWN else [""] * len(shares)),
        )
        for row, (guess, probability, label, shares) in enumerate(columns)
    )
    write_csv(output, ["file", "label", "probability", "true_label", *probability_columns(names)], rows)
