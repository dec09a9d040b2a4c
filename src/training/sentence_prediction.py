"""Labels of sentences with their probabilities to a csv, how long batches take, and a picture of what was confused."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int64
from torch import Tensor

from src.batches.tokens import UNLABELLED, Tokens
from src.datamodules.tables import is_table
from src.datamodules.text.tables import LabelledSentences, is_blank, read_table
from src.datamodules.text.texts import Sentences, TextDataModule
from src.errors import UserError
from src.gpu.cuda_graphs import Graphed
from src.measure.classification import scores_of
from src.measure.clock import Clock
from src.measure.curves import score_groups
from src.measure.reading import Reading
from src.printable import printable
from src.system.reading import decoded, read_bytes
from src.system.tables import write_csv
from src.training.classification import (
    class_file,
    judge_classes,
    probability_cells,
    probability_columns,
    train_counts,
)
from src.training.confusion import confusion, confusion_picture
from src.training.prediction import (
    Prediction,
    PredictionJob,
    Quality,
    TimedBatches,
    check_csv,
    split_in_words,
    warm_up,
)
from src.training.task import FinalMetric

BLANK = "no sentence, an empty label in the output"


@dataclass(frozen=True)
class Options:
    """Options of a prediction: `predict` in the model's yaml.

    input: a table, a file with a sentence a line, or - for standard input; the datamodule's `predict`
        split if not given.
    """

    input: str | None = None


def predict_sentences(
    logits: Callable[[Tokens], Tensor],
    datamodule: TextDataModule,
    job: PredictionJob,
    clock: Clock,
    metric: FinalMetric,
    count_work: Callable[[Tokens], None],
) -> Prediction:
    """Labels the first `num_samples` sentences of the input, or all. Raises UserError for no csv as output.

    A batch's latency is from its tokens on the device to its probabilities on the host. With loading it includes the
    making of the batch and its share of the tokenisation, which is done for all sentences at once.

    Args:
        logits: of a batch, on the datamodule's device.
        metric: the accuracy, with its target.
        count_work: told of every timed batch.
    """
    check_csv(job.output)
    options: Options = job.options
    is_split = options.input is None
    if not is_split and job.split is not None:
        raise UserError("evaluate=true compares the splits of the data; leave out model.predict.input")
    sentences = datamodule.read(datamodule.predict) if options.input is None else read_input(options.input, datamodule)
    text, labels, reading = sentences.text[: job.num_samples], sentences.labels[: job.num_samples], sentences.reading
    rows = [row for row, sentence in enumerate(text) if sentence]
    if not rows:
        raise UserError(f"{sentences.where} has no sentence; give one or more")
    clock.mark("other")
    begin = time.perf_counter()
    lines = [sentences.lines[row] for row in rows]
    tokens = datamodule.vocabulary.encode([text[row] for row in rows], sentences.where, lines, labels[rows])
    tokenising_s = time.perf_counter() - begin
    if reading is not None and not is_split:
        for row in (tokens.lengths > datamodule.max_length).nonzero()[0].tolist():
            what = f"truncated to {datamodule.max_length} tokens"
            reading.change([what], f"line {lines[row]}: {text[rows[row]]!r}")
        print(printable("\n".join(reading.finish().lines())), flush=True)
    clock.mark("fetch")
    loader = datamodule.loader(tokens.truncated(datamodule.max_length), batch_size=job.batch_size)

    def probabilities(batch: Tokens) -> Float[Tensor, "sentences labels"]:
        return logits(batch).softmax(1)

    run = Graphed(probabilities, job.graph)
    warm_up(run, loader, job)
    clock.mark("startup")
    timed = TimedBatches[Tokens](run, datamodule.target_device, clock, lambda batch: batch.num_sentences)
    parts: list[np.ndarray] = []
    for batch, answers in timed.over(loader):
        count_work(batch)
        timed.loaded_latencies_s[-1] += tokenising_s * batch.num_sentences / len(rows)
        parts.append(answers)
    shares = np.full((len(text), parts[0].shape[1]), np.nan)
    shares[rows] = np.concatenate(parts)
    names = datamodule.label_names
    files, counts = write_labels(text, shares, labels, job.output, names)
    judged, quality, scores, groups = None, [], [], []
    if counts is not None:
        split, count = datamodule.predict if is_split else str(options.input), int(counts.sum())
        trained_on = count * (job.has_trained_data and is_split and split == "train")
        words = split_in_words(count, "sentences", split, trained_on)
        share = float(counts.trace() / count)
        judged, accuracy = metric.record(share), Quality("accuracy", 100 * share, "%", f"right, {words}")
        files["classes"] = class_file(job.output)
        trained = train_counts(datamodule, names) if job.has_trained_data else None
        scores = scores_of(counts, names)
        quality = judge_classes(scores, "sentences", accuracy, trained, files["classes"])
        is_judged = (labels != UNLABELLED) & ~np.isnan(shares).any(1)
        groups = score_groups(shares[is_judged].max(1), shares[is_judged].argmax(1) == labels[is_judged])
    clock.mark("evaluation")
    latencies = timed.latencies_s, timed.loaded_latencies_s
    return Prediction(len(rows), latencies[0], files, judged, latencies[1], quality=quality, classes=scores,
                      calibration=groups, reading=reading)  # fmt: skip


def read_input(source: str, datamodule: TextDataModule) -> Sentences:
    """Returns the sentences of a table, or the lines of another file, or of standard input for -.

    Labels of a table are read where it has that column. A row without text is "", so that the output has as many.
    Raises UserError if there are none, or no UTF-8.
    """
    if is_table(Path(source)):
        table, reading = read_new(Path(source), datamodule)
        return Sentences(table.texts, source, table.lines, table.numbers(datamodule.label_names), reading)
    where = "standard input" if source == "-" else source
    advice = "give a text in UTF-8 as model.predict.input"
    text = decoded(sys.stdin.buffer.read() if source == "-" else read_bytes(Path(source), advice), where, advice)
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []
    if not lines:
        raise UserError(f"{where} is empty; give a sentence a line")
    reading = Reading(where, "lines", read=len(lines))
    for number, line in enumerate(lines, 1):
        if is_blank(line):
            lines[number - 1] = ""
            reading.drop(BLANK, f"line {number}")
    return Sentences(lines, where, range(1, len(lines) + 1), np.full(len(lines), UNLABELLED), reading)


def read_new(path: Path, datamodule: TextDataModule) -> tuple[LabelledSentences, Reading]:
    """Returns a table to predict. Delimiter and encoding of the training are tried where the usual ones do not fit."""
    trained = {"delimiter": datamodule.delimiter, "encoding": datamodule.encoding}
    columns = datamodule.text_column, datamodule.label_column
    reading = Reading(str(path), "rows")
    try:
        table = read_table(path, *columns, labelled=False, reading=reading)
    except UserError:
        if not any(trained.values()):
            raise
        reading = Reading(str(path), "rows")
        table = read_table(path, *columns, labelled=False, reading=reading, **trained)
    for remark in reading.dropped:
        remark.what += f": {BLANK}"
    return table, reading


def write_labels(
    text: list[str],
    probabilities: Float[np.ndarray, "sentences labels"],
    true: Int64[np.ndarray, " sentences"],
    output: Path,
    names: Sequence[str],
) -> tuple[dict[str, Path], Int64[np.ndarray, "labels labels"] | None]:
    """Writes a line for each sentence: text, label, its probability, the true label where known, and the probabilities
    of all labels if they are few.

    A row without probabilities, which are NaN, gets no label.

    Returns the files and the counts by true and given label; where no label is known there are none and no picture.
    """
    is_judged = ~np.isnan(probabilities).any(1)
    labels, is_known = probabilities.argmax(1), (true != UNLABELLED) & is_judged
    has_truth, columns = bool(is_known.any()), probability_columns(names)
    rows = (
        [
            sentence,
            *([names[label], f"{shares[label]:.6f}"] if sentence else ["", ""]),
            *[names[truth] if truth != UNLABELLED else ""] * has_truth,
            *(([""] * len(columns) if not sentence else probability_cells(shares)) if columns else ()),
        ]
        for sentence, label, shares, truth in zip(text, labels, probabilities, true, strict=True)
    )
    write_csv(output, ["sentence", "label", "probability", *["true"] * has_truth, *columns], rows)
    files: dict[str, Path] = {"predictions": output}
    if not has_truth:
        return files, None
    files["confusion"] = output.with_suffix(".png")
    counts = confusion(labels[is_known], true[is_known], len(names))
    confusion_picture(counts, names, "sentences", files["confusion"])
    return files, counts
