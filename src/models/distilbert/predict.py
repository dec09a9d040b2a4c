"""Labels of sentences with their probabilities to a csv, how long batches take, and a picture of what was confused."""

import csv
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from src.batches.tokens import UNLABELLED
from src.datamodules.text.sst2 import SST2DataModule
from src.datamodules.text.sst2_files import FIRST_LINE, LABELLED, glue_files, own_files, read_tsv
from src.errors import UserError
from src.gpu.cuda_graphs import Graphed
from src.measure.clock import Clock
from src.models.distilbert.layout import Tokens
from src.models.distilbert.plots import confusion_picture
from src.system.files import written_atomically
from src.training.task import Prediction, PredictionJob

if TYPE_CHECKING:
    from src.models.distilbert.task import DistilBertTask

NAMES = ("negative", "positive")  # of SST-2's labels 0 and 1


@dataclass(frozen=True)
class Options:
    """DistilBERT's own of a prediction: conf/model/distilbert.yaml, `predict`.

    input: a file with a sentence a line, or - for standard input; the datamodule's `predict` split if not given.
    """

    input: str | None = None


@dataclass(frozen=True)
class Sentences:
    """Text to be judged, where it stands (`first_line` is the line of the first sentence), and what is known of it."""

    text: list[str]
    where: str
    first_line: int
    labels: Int64[np.ndarray, " sentences"]


def predict_sentences(
    task: "DistilBertTask", datamodule: SST2DataModule, job: PredictionJob, clock: Clock
) -> Prediction:
    """Labels the first `num_samples` sentences of the input, or all. Raises UserError for no csv as output.

    A batch's latency is from its tokens on the device to its probabilities on the host; with loading come its making
    and its share of the time in which the sentences became tokens, all of them at once.
    """
    if job.output.suffix != ".csv":
        raise UserError(f"output={job.output}: predictions are written as csv; give a name that ends in .csv")
    options = Options(**job.options)
    sentences = sentences_of(datamodule) if options.input is None else read_lines(options.input)
    text, labels = sentences.text[: job.num_samples], sentences.labels[: job.num_samples]
    clock.mark("other")
    begin = time.perf_counter()
    tokens = datamodule.vocabulary.encode(text, sentences.where, sentences.first_line, labels)
    tokenising_s = time.perf_counter() - begin
    clock.mark("fetch")
    loader = datamodule.loader(tokens.truncated(datamodule.max_length), batch_size=job.batch_size)

    def probabilities(batch: Tokens) -> Float[Tensor, "sentences labels"]:
        return task.network(batch).softmax(1)

    run = Graphed(probabilities, job.graph)
    warm_up(run, loader, job.warmup_batches)
    clock.mark("startup")
    found: list[np.ndarray] = []
    latencies, loaded = [], []
    batches = iter(loader)
    while True:
        begin = time.perf_counter()
        batch = next(batches, None)
        if batch is None:
            break
        synchronize(task.device)
        clock.mark("fetch")
        ready = time.perf_counter()
        found.append(run(batch).cpu().numpy())
        end = time.perf_counter()
        clock.mark("compute")
        task.count_work(batch)
        latencies.append(end - ready)
        loaded.append(end - begin + tokenising_s * batch.num_sentences / len(text))
    files, metric = written(task, text, np.concatenate(found), labels, job.output)
    clock.mark("evaluation")
    return Prediction(len(text), latencies, files, metric, loaded)


def sentences_of(datamodule: SST2DataModule) -> Sentences:
    """The sentences of the datamodule's `predict` split. Raises UserError where there is no such split."""
    files = glue_files(datamodule.data_dir) if datamodule.raw is None else own_files(datamodule.raw)
    split = datamodule.predict
    if split not in files:
        raise UserError(f"datamodule.predict={split}: there is no such split; choose from {', '.join(files)}")
    text, labels = read_tsv(files[split], labelled=split in LABELLED)
    return Sentences(text, str(files[split]), FIRST_LINE, labels)


def read_lines(source: str) -> Sentences:
    """The lines of a file, or of standard input for -. Raises UserError where there are none or they are no UTF-8."""
    where = "standard input" if source == "-" else source
    try:
        text = (sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()).decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"model.predict.input={source} cannot be read ({error.strerror}); give a text file") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(f"{where} line {line} is not UTF-8; save it as UTF-8") from None
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []
    if not lines:
        raise UserError(f"{where} is empty; give a sentence a line")
    return Sentences(lines, where, 1, np.full(len(lines), UNLABELLED))


def warm_up(run: Graphed[Tensor], loader: Iterable[Tokens], batches: int) -> None:
    """Runs the first batches, and of every shape enough that it is captured."""
    seen: set[Any] = set()
    for number, batch in enumerate(loader):
        shape = batch.ids.shape, batch.num_sentences
        if shape not in seen:
            seen.add(shape)
            run.warm_up(batch)
        elif number < batches:
            run(batch)


def synchronize(device: torch.device) -> None:
    """Waits until the device has done what it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def written(
    task: "DistilBertTask",
    text: list[str],
    probabilities: Float[np.ndarray, "sentences labels"],
    true: Int64[np.ndarray, " sentences"],
    output: Path,
) -> tuple[dict[str, Path], dict[str, Any] | None]:
    """Writes a line for each sentence: text, label, its probability, and the true label where known.

    Where labels are known, a picture of what was taken for what too. Returns the files and the accuracy.
    """
    labels, is_known = probabilities.argmax(1), true != UNLABELLED
    with written_atomically(output) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["sentence", "label", "probability", *["true"] * bool(is_known.any())])
        for sentence, label, share, known in zip(text, labels, probabilities.max(1), true, strict=True):
            shown = [NAMES[known]] if known != UNLABELLED else []
            rows.writerow([sentence, NAMES[label], f"{share:.6f}", *shown])
    files: dict[str, Path] = {"predictions": output}
    if not is_known.any():
        return files, None
    files["confusion"] = output.with_suffix(".png")
    confusion_picture(confusion(labels, true), NAMES, files["confusion"])
    acc, metric = float((labels == true).mean()), task.final_metric
    return files, {"name": metric.name, "value": acc, "target": metric.target, "reached": metric.reached(acc)}


def confusion(
    labels: Int64[np.ndarray, " sentences"], true: Int64[np.ndarray, " sentences"]
) -> Int64[np.ndarray, "2 2"]:
    """How many sentences of each true label (row) got each label (column)."""
    counts = np.zeros((len(NAMES), len(NAMES)), np.int64)
    np.add.at(counts, (true, labels), 1)
    return counts
