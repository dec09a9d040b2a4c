"""Probabilities of clicks to a csv, or how long batches of a size take: the published benchmark with percentiles."""

from itertools import repeat
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from src.batches.clicks import ClickBatch
from src.datamodules.clicks.criteo import ClickDataModule
from src.datamodules.clicks.seen import new_shares
from src.gpu.cuda_graphs import Graphed
from src.measure.auc import ExactAUC
from src.measure.clock import Clock
from src.measure.curves import log_loss, score_groups, separation
from src.printable import printable
from src.system.tables import write_csv
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
from src.training.task import FinalMetric


def predict_clicks(
    network: nn.Module,
    datamodule: ClickDataModule,
    job: PredictionJob,
    clock: Clock,
    metric: FinalMetric,
    seen: Int64[np.ndarray, "seen 2"] | None = None,
) -> Prediction:
    """Scores rows of the datamodule's `predict` split, in order, or times batches (see BenchmarkOptions).

    A batch's latency is from its bytes on the host to its probabilities there, as published; data that is on the device
    already is not copied. `seen` has column and hash of each category of the training, if the checkpoint keeps them.
    Raises UserError for no csv as output.
    """
    options: BenchmarkOptions = job.options
    check_csv(job.output)
    device = datamodule.target_device

    def probabilities(batch: ClickBatch) -> Float[Tensor, " rows"]:
        return network(batch.clicks()).sigmoid().float()

    run = Graphed(probabilities, job.graph)
    loader = datamodule.loader(datamodule.predict, batch_size=job.batch_size)
    if job.benchmark:
        first = next(iter(loader))
        warm_up(run, repeat(first, max(1, job.warmup_batches)), job)
        clock.mark("startup")
        if options.repeats is not None:
            host = first._replace(data=first.data.cpu().pin_memory() if device.type == "cuda" else first.data.cpu())
            latencies = time_calls(lambda: run(host.to(device)).cpu(), device, options.repeats)
            clock.mark("compute")
            return Prediction(first.count * len(latencies), latencies, {})
    clock.mark("startup")
    timed = TimedBatches[ClickBatch](run, device, clock, lambda batch: batch.count)
    wanted = job.num_samples or len(datamodule.splits[datamodule.predict])
    scores: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    for batch, batch_scores in timed.over(loader, wanted):
        scores.append(batch_scores)
        labels.append(batch.clicks().labels.cpu().numpy())
    predicted, true = np.concatenate(scores)[:wanted], np.concatenate(labels)[:wanted]
    count, split = len(predicted), datamodule.predict
    labelled = datamodule.known_labels(split)
    is_known = np.ones(count, bool) if labelled is None else np.resize(labelled, count)  # a benchmark repeats the rows
    write_scores(predicted, np.where(is_known, true, np.nan), job.output)
    if not is_known.all():
        rest = "and the figures are of the others" if is_known.any() else "so no quality is given"
        print(f"note: {(~is_known).sum():,} of {count:,} rows have no label, {rest}")
    words = split_in_words(int(is_known.sum()), "rows", split, count * (job.has_trained_data and split == "train"))
    quality, pictures = judge(predicted[is_known], true[is_known], words, job.output) if is_known.any() else ([], {})
    files = {"predictions": job.output, **pictures}
    note_new_values(datamodule, split, seen)
    judged = metric.record(quality[0].value) if quality else None
    clock.mark("evaluation")
    samples = timed.samples if job.benchmark else count
    latencies, loaded = timed.latencies_s, timed.loaded_latencies_s
    groups = score_groups(predicted[is_known], true[is_known]) if quality else []
    return Prediction(samples, latencies, files, judged, loaded, quality=quality, calibration=groups,
                      reading=datamodule.reading)  # fmt: skip


def note_new_values(datamodule: ClickDataModule, split: str, seen: Int64[np.ndarray, "seen 2"] | None) -> None:
    """Says, in the report of the reading too, which share of the rows has a category that training never had."""
    values, reading = datamodule.values(split), datamodule.reading
    if values is None or reading is None:
        return
    if seen is None:
        note = "the checkpoint does not keep the categories of its training: new ones are not counted"
    else:
        names = datamodule.column_names
        shares = zip(names, new_shares(values, seen, len(names)), strict=True)
        words = ", ".join(f"{name} {share:.1%} of the rows ({count:,} values)" for name, (count, share) in shares)
        note = f"categories never seen in training: {words}; they get the id of others by chance, or an untrained one"
    reading.notes.append(note)
    print(printable(f"note: {note}"))


def write_scores(scores: Float[np.ndarray, " rows"], labels: Float[np.ndarray, " rows"], output: Path) -> None:
    """Writes a line for each row: its number, its probability, and its label, or nothing where that is NaN."""
    pairs = zip(scores, labels, strict=True)
    rows = (
        (number, f"{score:.6f}", "" if np.isnan(label) else int(label)) for number, (score, label) in enumerate(pairs)
    )
    write_csv(output, ["row", "probability", "label"], rows)


def judge(
    scores: Float[np.ndarray, " rows"], labels: Float[np.ndarray, " rows"], words: str, output: Path
) -> tuple[list[Quality], dict[str, Path]]:
    """Returns how good the scores are, the AUC first, and the picture of it; neither where only one label occurs.

    Args:
        words: what the rows are.
    """
    auc = ExactAUC()
    auc.update(torch.from_numpy(scores), torch.from_numpy(labels))
    area = auc.compute()
    if np.isnan(area):
        return [], {}
    curves, path = separation(scores, labels), output.with_suffix(".png")
    clicked = f"average precision; {(labels != 0).mean():.2%} of the rows have a click"
    loss, base = log_loss(scores, labels), log_loss(np.full(len(labels), (labels != 0).mean()), labels)
    always = "log loss of always giving the rows' own share of clicks, whose AUC is 0.5"
    quality = [
        Quality("AUC", area, "", f"area under the ROC curve, {words}"),
        Quality("AP", curves.average_precision, "", clicked),
        Quality("log loss", loss, "nats", "binary cross entropy"),
        Quality("base rate", base, "nats", always),
        Quality("NE", loss / base, "", "normalised entropy: log loss over that of the base rate; 1 is no better"),
    ]
    from src.training.click_picture import clicks_picture  # not at the top: matplotlib

    clicks_picture(scores, labels, curves, area, words, path)
    return quality, {"curves": path}
