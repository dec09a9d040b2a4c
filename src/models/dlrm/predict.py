"""Probabilities of clicks to a csv, and how long batches of a size take: the published benchmark with percentiles."""

import csv
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from src.batches.clicks import ClickBatch
from src.datamodules.clicks.criteo import ClickDataModule
from src.errors import UserError
from src.gpu.cuda_graphs import Graphed
from src.measure.auc import ExactAUC
from src.measure.clock import Clock
from src.system.files import written_atomically
from src.training.task import Prediction, PredictionJob

if TYPE_CHECKING:
    from src.models.dlrm.task import DLRMTask


@dataclass(frozen=True)
class Options:
    """DLRM's own of a prediction: conf/model/dlrm.yaml, `predict`.

    benchmark: the published one, over one batch again and again, without predictions; `repeats` of them are timed.
    """

    benchmark: bool = False
    repeats: int = 200

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise UserError(f"model.predict.repeats={self.repeats} times nothing; give 1 or more")


def predict_clicks(task: "DLRMTask", datamodule: ClickDataModule, job: PredictionJob, clock: Clock) -> Prediction:
    """Scores rows of the datamodule's `predict` split, in order; see Options. Raises UserError for no csv as output.

    A batch's latency is from its bytes on the host to its probabilities there, as published; on data that already is
    on the device without the copy there.
    """
    options = Options(**job.options)
    if job.output.suffix != ".csv":
        raise UserError(f"output={job.output}: predictions are written as csv; give a name that ends in .csv")

    def probabilities(batch: ClickBatch) -> Tensor:
        return task.network(batch.clicks()).sigmoid()

    run = Graphed(probabilities, job.graph)
    loader = datamodule.loader(datamodule.predict, batch_size=job.batch_size)
    first = next(iter(loader))
    for _ in range(max(1, job.warmup_batches)):
        run.warm_up(first)
    clock.mark("startup")
    if options.benchmark:
        latencies = timed(run, first, task.device, options.repeats)
        clock.mark("compute")
        return Prediction(first.count * len(latencies), latencies, {})
    wanted = job.num_samples or len(datamodule.splits[datamodule.predict])
    scores: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    latencies, loaded = [], []
    batches, done = iter(loader), 0
    while done < wanted:
        begin = time.perf_counter()
        batch = next(batches, None)
        if batch is None:
            break
        synchronize(batch.data.device)
        clock.mark("fetch")
        ready = time.perf_counter()
        scores.append(run(batch).float().cpu().numpy())
        end = time.perf_counter()
        clock.mark("compute")
        labels.append(batch.clicks().labels.cpu().numpy())
        latencies.append(end - ready)
        loaded.append(end - begin)
        done += batch.count
    files, metric = written(task, np.concatenate(scores)[:wanted], np.concatenate(labels)[:wanted], job.output)
    clock.mark("evaluation")
    return Prediction(done, latencies, files, metric, loaded)


def timed(run: Graphed[Tensor], batch: ClickBatch, device: torch.device, repeats: int) -> list[float]:
    """Seconds of `repeats` batches, each from bytes on the host to probabilities there."""
    host = batch.data.cpu()
    host = host.pin_memory() if device.type == "cuda" else host
    latencies = []
    for _ in range(repeats):
        synchronize(device)
        begin = time.perf_counter()
        run(batch._replace(data=host).to(device)).cpu()
        latencies.append(time.perf_counter() - begin)
    return latencies


def synchronize(device: torch.device) -> None:
    """Waits until the device has done what it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def written(
    task: "DLRMTask", scores: Float[np.ndarray, " rows"], labels: Float[np.ndarray, " rows"], output: Path
) -> tuple[dict[str, Path], dict[str, Any] | None]:
    """Writes a line for each row: its number, its probability and its label; returns the file and the AUC."""
    with written_atomically(output) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["row", "probability", "label"])
        rows.writerows(
            (n, f"{score:.6f}", int(label)) for n, (score, label) in enumerate(zip(scores, labels, strict=True))
        )
    auc = ExactAUC()
    auc.update(torch.from_numpy(scores), torch.from_numpy(labels))
    value, metric = auc.compute(), task.final_metric
    if np.isnan(value):
        return {"predictions": output}, None
    found = {"name": metric.name, "value": value, "target": metric.target, "reached": metric.reached(value)}
    return {"predictions": output}, found
