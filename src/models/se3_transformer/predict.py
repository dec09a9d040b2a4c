"""Predicting molecules to a csv, with the model's speed apart from and together with the making of batches."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from src.batches.molecular_graphs import GraphBatch
from src.datamodules.graphs.datamodule import GraphDataModule
from src.errors import UserError
from src.gpu.cuda_graphs import Graphed
from src.measure.clock import Clock
from src.system.tables import write_csv
from src.training.prediction import (
    Prediction,
    PredictionJob,
    Quality,
    TimedBatches,
    check_csv,
    split_in_words,
    synchronize,
    warm_up,
)
from src.training.task import FinalMetric


@dataclass(frozen=True)
class Options:
    """The SE(3)-Transformer's own of a prediction: conf/model/se3_transformer.yaml, `predict`.

    protocol: `exact` predicts the datamodule's `predict` split, writes a csv and times batches with and without their
    making; `published` times as the benchmark of NVIDIA's page does: shuffled training molecules, the first pass left
    out, a batch's latency from its start to the start of the next one. Every latency waits for the device.
    """

    protocol: Literal["exact", "published"] = "exact"


@dataclass(frozen=True)
class Quantity:
    """What is predicted: its name, its unit, the metric that judges it, and its mean over the training molecules.

    `mean` is None where the weights were not trained.
    """

    name: str
    unit: str
    metric: FinalMetric
    mean: float | None = None


def predict_molecules(
    predicted: Callable[[GraphBatch], Tensor],
    datamodule: GraphDataModule,
    job: PredictionJob,
    clock: Clock,
    quantity: Quantity,
) -> Prediction:
    """Predicts as the job says; see Options. Raises UserError for an output that is no csv.

    Args:
        predicted: returns a value for every molecule of a batch, padding included, in natural units.
    """
    options: Options = job.options
    check_csv(job.output)
    run = Graphed(predicted, job.graph)
    if options.protocol == "published":
        if not job.benchmark:
            raise UserError("model.predict.protocol=published only times; give benchmark=true, or leave it out")
        samples, latencies = timed_as_published(run, datamodule, job, clock)
        return Prediction(samples, latencies, {}, reading=datamodule.reading)
    loader = datamodule.loader(datamodule.predict, batch_size=job.batch_size)
    warm_up(run, loader, job)
    clock.mark("startup")
    timed = TimedBatches[GraphBatch](run, datamodule.target_device, clock, lambda batch: batch.count)
    wanted = job.num_samples or len(loader.index)
    wanted = wanted if job.benchmark else min(wanted, len(loader.index))
    predictions: list[np.ndarray] = []
    while timed.samples < wanted:  # a benchmark of more molecules than the split has passes over it again
        is_first = not timed.samples
        for batch, values in timed.over(loader, wanted):
            if is_first:
                predictions.append(values[: batch.count])
    clock.mark("other")
    values = np.concatenate(predictions)[:wanted]
    rows = loader.index.numpy()[: len(values)]
    trained = np.isin(rows, datamodule.splits["train"]) if job.has_trained_data else np.zeros(len(rows), bool)
    files, quality = write_values(values, datamodule, rows, trained, quantity, job.output)
    clock.mark("evaluation")
    judged = quantity.metric.record(quality[0].value) if quality else None
    samples = timed.samples if job.benchmark else len(values)
    return Prediction(
        samples, timed.latencies_s, files, judged, timed.loaded_latencies_s, quality=quality, reading=datamodule.reading
    )


def timed_as_published(
    run: Graphed[Tensor], datamodule: GraphDataModule, job: PredictionJob, clock: Clock
) -> tuple[int, list[float]]:
    """Returns molecules, and the seconds from each batch's start to the next, over whole passes after the first."""
    loader = datamodule.loader("train", train=True, batch_size=job.batch_size)
    warm_up(run, loader, replace(job, warmup_batches=len(loader)))
    clock.mark("startup")
    passes = -(-(job.num_samples or len(loader.index)) // len(loader.index))
    starts: list[float] = []
    for _ in range(passes):
        for batch in loader:
            synchronize(batch.positions.device)
            starts.append(time.perf_counter())
            run(batch)
    synchronize(batch.positions.device)  # type: ignore[possibly-unbound]
    clock.mark("compute")
    return passes * len(loader.index), np.diff([*starts, time.perf_counter()]).tolist()


def write_values(
    predictions: Float[np.ndarray, " molecules"],
    datamodule: GraphDataModule,
    rows: Int[np.ndarray, " molecules"],
    trained: Bool[np.ndarray, " molecules"],
    quantity: Quantity,
    output: Path,
) -> tuple[dict[str, Path], list[Quality]]:
    """Writes a line for each molecule: its name, the quantity, prediction, true value or nothing, the unit, and whether
    it was trained on.

    Returns the files and the errors, the mean absolute one first. Without true values there is none and no picture.
    """
    data = datamodule.data
    assert data is not None
    true = data.target(datamodule.task)[rows].astype(np.float64)
    is_known = np.isfinite(true)
    lines = (
        [data.names[row], quantity.name, f"{value:.6f}", f"{target:.6f}" if np.isfinite(target) else "", quantity.unit,
         "yes" if seen else "no"]
        for row, value, target, seen in zip(rows, predictions, true, trained, strict=True)
    )  # fmt: skip
    write_csv(output, ["molecule", "quantity", "predicted", "true", "unit", "trained_on"], lines)
    files = {"predictions": output}
    if not is_known.all():
        lacking = f"{(~is_known).sum()} of {len(is_known)} molecules have no value of {quantity.name}"
        print(f"note: {lacking}, {'and the errors are of the others' if is_known.any() else 'so no error is given'}")
    if not is_known.any():
        return files, []
    predictions, true = predictions[is_known], true[is_known]
    words = split_in_words(len(true), "molecules", datamodule.predict, int(trained[is_known].sum()))
    quality = errors_of(predictions, true, quantity, words)
    files["parity"] = output.with_suffix(".png")
    from src.models.se3_transformer.plots import parity_picture  # not at the top: matplotlib

    parity_picture(predictions, true, quantity.name, quality, files["parity"])
    return files, quality


def errors_of(
    predicted: Float[np.ndarray, " molecules"], true: Float[np.ndarray, " molecules"], quantity: Quantity, of: str
) -> list[Quality]:
    """Returns mean absolute and root mean square error, and R2 unless all true values are equal."""
    error = predicted - true
    quality = [
        Quality("MAE", float(np.abs(error).mean()), quantity.unit, f"mean absolute error, {of}"),
        Quality("RMSE", float(np.sqrt((error**2).mean())), quantity.unit, "root mean square error"),
    ]
    if true.std() > 0:
        quality.append(Quality("R2", float(1 - (error**2).mean() / true.var()), "", "share of the variance explained"))
    if quantity.mean is not None:
        always = f"MAE of always predicting the training mean, {quantity.mean:.5g} {quantity.unit}".rstrip()
        quality.append(Quality("MAE of the mean", float(np.abs(quantity.mean - true).mean()), quantity.unit, always))
    return quality
