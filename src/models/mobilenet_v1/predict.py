"""Classes of images to a csv, and how long batches of a size take."""

import csv
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from src.batches.images import UNKNOWN, ImageBatch
from src.datamodules.images.base import ImageDataModule
from src.errors import UserError
from src.gpu.cuda_graphs import Graphed
from src.measure.clock import Clock
from src.system.files import written_atomically
from src.training.task import Prediction, PredictionJob

if TYPE_CHECKING:
    from src.models.mobilenet_v1.task import MobileNetV1Task


@dataclass(frozen=True)
class Options:
    """MobileNetV1's own of a prediction: conf/model/mobilenet_v1.yaml, `predict`.

    benchmark: one batch again and again, without predictions; `repeats` of them are timed.
    """

    benchmark: bool = False
    repeats: int = 200

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise UserError(f"model.predict.repeats={self.repeats} times nothing; give 1 or more")


@dataclass(frozen=True)
class Guesses:
    """The likeliest class of each image, its probability, and the true class or UNKNOWN."""

    classes: Int[np.ndarray, " images"]
    probabilities: Float[np.ndarray, " images"]
    labels: Int[np.ndarray, " images"]


def predict_images(task: "MobileNetV1Task", job: PredictionJob, clock: Clock) -> Prediction:
    """Classifies images of the datamodule's `predict` split, in order; see Options.

    A batch's latency is from its bytes on the device to its classes and probabilities on the host; the loaded one has
    the decoding in it. The benchmark's is from bytes on the host. Raises UserError for no csv as output.
    """
    options = Options(**job.options)
    if job.output.suffix != ".csv":
        raise UserError(f"output={job.output}: predictions are written as csv; give a name that ends in .csv")
    datamodule = met(task, job)

    def best(batch: ImageBatch) -> tuple[Tensor, Tensor]:
        """Probability and number of the likeliest class of each image."""
        return task.logits(batch).float().softmax(1).max(1)

    run = Graphed(best, job.graph)
    split = datamodule.predict
    first = on_device(next(iter(datamodule.loader(split, batch_size=job.batch_size))), task.device)
    for _ in range(max(1, job.warmup_batches)):
        run.warm_up(first)
    clock.mark("startup")
    if options.benchmark:
        latencies = timed(run, first, options.repeats)
        clock.mark("compute")
        return Prediction(len(first.labels) * len(latencies), latencies, {})
    wanted = min(job.num_samples or datamodule.splits[split], datamodule.splits[split])
    parts: list[Guesses] = []
    latencies, loaded = [], []
    batches, done = iter(datamodule.loader(split, batch_size=job.batch_size)), 0
    while done < wanted:
        begin = time.perf_counter()
        batch = on_device(next(batches), task.device)
        synchronize(task.device)
        clock.mark("fetch")
        ready = time.perf_counter()
        probabilities, classes = (tensor.cpu().numpy() for tensor in run(batch))
        end = time.perf_counter()
        clock.mark("compute")
        parts.append(Guesses(classes.copy(), probabilities.copy(), batch.labels.cpu().numpy()))
        latencies.append(end - ready)
        loaded.append(end - begin)
        done += len(batch.labels)
    guesses = Guesses(
        *(np.concatenate([getattr(part, name) for part in parts])[:wanted] for name in Guesses.__annotations__)
    )
    write_guesses(guesses, datamodule.file_names(split), task.class_names, job.output)
    clock.mark("evaluation")
    return Prediction(done, latencies, {"predictions": job.output}, top1_of(task, guesses), loaded)


def met(task: "MobileNetV1Task", job: PredictionJob) -> ImageDataModule:
    """The configured images, of the size and with as many classes as the network has, ready to be loaded."""
    sizes = {"image_size": task.image_size, "num_classes": task.network.num_classes}
    task.check_datamodule(job.datamodule())
    datamodule = job.datamodule(**sizes)
    datamodule.device = task.device
    datamodule.prepare_data()
    task.bind_data(datamodule)
    return datamodule


def on_device(batch: ImageBatch, device: torch.device) -> ImageBatch:
    return ImageBatch(*(tensor.to(device) for tensor in batch))


def timed(run: Graphed[tuple[Tensor, Tensor]], batch: ImageBatch, repeats: int) -> list[float]:
    """Seconds of `repeats` batches, each from bytes on the host to classes and probabilities there."""
    device = batch.labels.device
    host = ImageBatch(*(tensor.cpu().pin_memory() if device.type == "cuda" else tensor for tensor in batch))
    latencies = []
    for _ in range(repeats):
        synchronize(device)
        begin = time.perf_counter()
        for tensor in run(on_device(host, device)):
            tensor.cpu()
        latencies.append(time.perf_counter() - begin)
    return latencies


def synchronize(device: torch.device) -> None:
    """Waits until the device has done what it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def write_guesses(guesses: Guesses, files: Sequence[str] | None, names: Sequence[str] | None, output: Path) -> None:
    """Writes a line for each image: its file or number, the class, its probability, and the true class if known."""

    def name_of(number: int) -> str:
        return "" if number == UNKNOWN else names[number] if names is not None else str(number)

    columns = zip(*(part.tolist() for part in (guesses.classes, guesses.probabilities, guesses.labels)), strict=True)
    with written_atomically(output) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["file", "label", "probability", "true_label"])
        rows.writerows(
            (files[row] if files is not None else row, name_of(guess), f"{probability:.6f}", name_of(label))
            for row, (guess, probability, label) in enumerate(columns)
        )


def top1_of(task: "MobileNetV1Task", guesses: Guesses) -> dict[str, Any] | None:
    """The share of right guesses as the record has it; None where the truth is unknown."""
    if (guesses.labels == UNKNOWN).any():
        return None
    value, metric = float((guesses.classes == guesses.labels).mean()), task.final_metric
    return {"name": metric.name, "value": value, "target": metric.target, "reached": metric.reached(value)}
