"""Predicting molecules to a csv, with the model's speed apart from and together with the making of batches."""

import csv
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from src.batches.molecular_graphs import GraphBatch
from src.datamodules.graphs.datamodule import GraphDataModule
from src.datamodules.graphs.loader import GraphLoader
from src.errors import UserError
from src.gpu.cuda_graphs import Graphed
from src.measure.clock import Clock
from src.models.se3_transformer.plots import parity_picture
from src.system.files import written_atomically
from src.training.task import Prediction, PredictionJob

if TYPE_CHECKING:
    from src.models.se3_transformer.task import SE3TransformerTask

Run = Graphed[Tensor]


@dataclass(frozen=True)
class Options:
    """The SE(3)-Transformer's own of a prediction: conf/model/se3_transformer.yaml, `predict`.

    protocol: `exact` predicts the datamodule's `predict` split, writes a csv and times batches with and without their
    making; `published` times as the benchmark of NVIDIA's page does: shuffled training molecules, the first pass left
    out, a batch's latency from its start to the start of the next one. Every latency waits for the device.
    """

    protocol: str = "exact"

    def __post_init__(self) -> None:
        if self.protocol not in ("exact", "published"):
            raise UserError(f"model.predict.protocol={self.protocol}: choose exact or published")


@dataclass(frozen=True)
class Passes:
    """What passes over a loader gave: predictions of the first one, and seconds and molecules of every batch."""

    predictions: Float[np.ndarray, " molecules"]
    samples: int
    latencies_s: list[float]
    loaded_s: list[float]


def predict_molecules(
    task: "SE3TransformerTask", datamodule: GraphDataModule, job: PredictionJob, clock: Clock
) -> Prediction:
    """Predicts as the job says; see Options. Raises UserError for an output that is no csv."""
    options = Options(**job.options)
    if job.output.suffix != ".csv":
        raise UserError(f"output={job.output}: predictions are written as csv; give a name that ends in .csv")
    run = Graphed(task.predicted, job.graph)
    if options.protocol == "published":
        samples, latencies = timed_as_published(run, datamodule, job, clock)
        return Prediction(samples, latencies, {})
    loader = datamodule.loader(datamodule.predict, batch_size=job.batch_size)
    warm_up(run, loader, job.warmup_batches)
    clock.mark("startup")
    found = passes_over(run, loader, job.num_samples or len(loader.index), clock)
    clock.mark("other")
    files, metric = written(
        task, datamodule, loader.index.numpy()[: len(found.predictions)], found.predictions, job.output
    )
    clock.mark("evaluation")
    return Prediction(found.samples, found.latencies_s, files, metric, found.loaded_s)


def warm_up(run: Run, loader: GraphLoader, batches: int) -> None:
    """Runs the first batches, and of every shape enough that it is captured."""
    seen: set[Any] = set()
    for number, batch in enumerate(loader):
        shape = batch.positions.shape, batch.src.shape
        if shape not in seen:
            seen.add(shape)
            run.warm_up(batch)
        elif number < batches:
            run(batch)


def passes_over(run: Run, loader: GraphLoader, samples: int, clock: Clock) -> Passes:
    """Passes over the loader until `samples` molecules or more have been predicted, batch by batch."""
    predictions: list[np.ndarray] = []
    latencies: list[float] = []
    loaded: list[float] = []
    done = 0
    while done < samples:
        first = not done
        batches = iter(loader)
        while done < samples:
            begin = time.perf_counter()
            batch = next(batches, None)
            if batch is None:
                break
            synchronize(batch)
            clock.mark("fetch")
            ready = time.perf_counter()
            values = run(batch).cpu()
            end = time.perf_counter()
            clock.mark("compute")
            latencies.append(end - ready)
            loaded.append(end - begin)
            done += batch.count
            if first:
                predictions.append(values[: batch.count].numpy())
    return Passes(np.concatenate(predictions), done, latencies, loaded)


def timed_as_published(
    run: Run, datamodule: GraphDataModule, job: PredictionJob, clock: Clock
) -> tuple[int, list[float]]:
    """Molecules and the seconds from one batch's start to the next one's, over whole passes after the first."""
    loader = datamodule.loader("train", train=True, batch_size=job.batch_size)
    warm_up(run, loader, len(loader))
    clock.mark("startup")
    passes = -(-(job.num_samples or len(loader.index)) // len(loader.index))
    starts: list[float] = []
    for _ in range(passes):
        for batch in loader:
            synchronize(batch)
            starts.append(time.perf_counter())
            run(batch)
    synchronize(batch)  # type: ignore[possibly-unbound]
    clock.mark("compute")
    return passes * len(loader.index), np.diff([*starts, time.perf_counter()]).tolist()


def synchronize(batch: GraphBatch) -> None:
    """Waits until the device has done what it was asked for."""
    if batch.positions.device.type == "cuda":
        torch.cuda.synchronize(batch.positions.device)


def written(
    task: "SE3TransformerTask", datamodule: GraphDataModule, rows: np.ndarray, predictions: np.ndarray, output: Path
) -> tuple[dict[str, Path], dict[str, Any] | None]:
    """Writes the csv and, where true values are known, the parity picture; returns the files and the final metric."""
    data = datamodule.data
    assert data is not None
    true = data.target(datamodule.task)[rows].astype(np.float64)
    unit = task.unit_of_quantity
    write_csv(output, [data.names[row] for row in rows], task.quantity, unit, predictions, true)
    files, known = {"predictions": output}, np.isfinite(true)
    if not known.any():
        return files, None
    files["parity"] = output.with_suffix(".png")
    parity_picture(predictions[known], true[known], task.quantity, unit, files["parity"])
    mae, metric = float(np.abs(predictions - true)[known].mean()), task.final_metric
    found = {"name": metric.name, "value": mae, "target": metric.target, "reached": metric.reached(mae)}
    return files, found


def write_csv(
    output: Path, names: Sequence[str], quantity: str, unit: str, predictions: np.ndarray, true: np.ndarray
) -> None:
    """One molecule a line: its name, what is predicted, the value, its unit, and the true value or nothing."""
    with written_atomically(output) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["molecule", "quantity", "predicted", "true", "unit"])
        for name, value, known in zip(names, predictions, true, strict=True):
            rows.writerow([name, quantity, f"{value:.6f}", f"{known:.6f}" if np.isfinite(known) else "", unit])
