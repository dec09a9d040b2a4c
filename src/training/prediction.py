"""Timed prediction: the job, its result, and what every model's prediction shares."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from src.config.ranges import Count
from src.errors import UserError
from src.gpu.cuda_graphs import Graphed
from src.measure.clock import Clock
from src.measure.judged import ClassFigures, ScoreGroup
from src.measure.reading import Reading

B = TypeVar("B")


@dataclass(frozen=True)
class PredictionJob:
    """What predict.py asks of a task: `num_samples` in batches, written to `output`; for a benchmark also timed."""

    num_samples: int | None  # None: as many as the data has
    batch_size: int
    benchmark: bool  # time batches of one size after `warmup_batches`; else nothing runs that is not asked for
    warmup_batches: int
    output: Path
    graph: bool  # capture the model's work in CUDA graphs
    datamodule: Callable[..., Any]  # instantiates the configured one; arguments override the config's
    options: Any  # the model's own, from its config's `predict`
    has_trained_data: bool = False  # the data is that of the training: its splits say what was trained on
    given: Sequence[str] = ()  # overrides of the command line
    split: str | None = None  # of an evaluation, which `datamodule` predicts; None: what the config says


class Quality(NamedTuple):
    """One figure of how good predictions are: its unit ("" for none), and of what it is, in words.

    Figures with a `group`, such as a split, are compared side by side.
    """

    name: str
    value: float | None
    unit: str
    of: str = ""
    group: str = ""


@dataclass(frozen=True)
class Prediction:
    """What a prediction measured and wrote.

    `latencies_s`: seconds per batch, from the call to the result on the host, without post-processing on the CPU.
    `loaded_latencies_s`: the same plus the loading of the batch, where batches come from data.
    `tokens`: real and processed ones of all samples, where they have any.
    `quality`: how good the predictions are, as far as the truth is known; likewise of each class, and of each group of
    samples by their scores.
    """

    samples: int
    latencies_s: list[float]
    files: dict[str, Path]
    final_metric: dict[str, Any] | None = None
    loaded_latencies_s: list[float] | None = None
    tokens: tuple[int, int] | None = None
    quality: list[Quality] = field(default_factory=list)
    classes: Sequence[ClassFigures] = ()
    calibration: Sequence[ScoreGroup] = ()
    reading: Reading | None = None  # what became of the data, where it is a person's own


@dataclass(frozen=True)
class BenchmarkOptions:
    """Options of models whose benchmark is of one batch: `predict` in the model's yaml.

    repeats: benchmark=true times one batch so often and writes no predictions; None: it times the split's batches.
    """

    repeats: Count | None = 200


def split_in_words(count: int, what: str, split: str, trained_on: int) -> str:
    """Returns `count` samples in words, with their split or file and how many of them were trained on."""
    seen = "" if not trained_on else ", all trained on" if trained_on == count else f", {trained_on:,} trained on"
    named = {"all": "the whole data", "-": "standard input"}
    where = f"the {split} split" if split.isidentifier() else Path(split).name
    return f"{count:,} {what} of {named.get(split, where)}{seen}"


class TimedBatches(Generic[B]):
    """Runs a function on batches and records how long each takes.

    Args:
        run: returns the results of a batch, a tensor or a tuple of them.
        device: where `run` computes; it is idle when a batch's latency begins.
        clock: gets the phases `fetch` and `compute`.
        count: samples of a batch.

    `latencies_s`: seconds from the batch on the device to its results on the host. `loaded_latencies_s`: the same plus
    the loading of the batch. `samples`: of all batches so far.
    """

    def __init__(self, run: Callable[[B], Any], device: torch.device, clock: Clock, count: Callable[[B], int]) -> None:
        self.run, self.device, self.clock, self.count = run, device, clock, count
        self.latencies_s: list[float] = []
        self.loaded_latencies_s: list[float] = []
        self.samples = 0

    def over(self, batches: Iterable[B], samples: int | None = None) -> Iterator[tuple[B, Any]]:
        """Yields each batch with its results as numpy arrays, until the batches end or `samples` are done."""
        iterator = iter(batches)
        while samples is None or self.samples < samples:
            begin = time.perf_counter()
            batch = next(iterator, None)
            if batch is None:
                return
            synchronize(self.device)
            self.clock.mark("fetch")
            ready = time.perf_counter()
            outputs = self.run(batch)
            result = outputs.cpu().numpy() if isinstance(outputs, Tensor) else tuple(t.cpu().numpy() for t in outputs)
            end = time.perf_counter()
            self.clock.mark("compute")
            self.latencies_s.append(end - ready)
            self.loaded_latencies_s.append(end - begin)
            self.samples += self.count(batch)
            yield batch, result


def warm_up(run: Graphed[Any], batches: Iterable[Any], job: PredictionJob) -> None:
    """Runs the first batches of a benchmark, and the first batch of every shape until it is captured.

    Without a benchmark it runs nothing: a graph is captured at the fourth batch of a shape, so few batches need none.
    """
    if not job.benchmark:
        return
    seen: set[tuple[torch.Size, ...]] = set()
    for number, batch in enumerate(batches):
        shapes = tuple(leaf.shape for leaf in tree_leaves(batch) if isinstance(leaf, Tensor))
        if shapes not in seen:
            seen.add(shapes)
            run.warm_up(batch)
        elif number < job.warmup_batches:
            run(batch)


def time_calls(call: Callable[[], object], device: torch.device, repeats: int) -> list[float]:
    """Returns the seconds of each of `repeats` calls. The device is idle when one begins; a call waits for its end."""
    latencies = []
    for _ in range(repeats):
        synchronize(device)
        begin = time.perf_counter()
        call()
        latencies.append(time.perf_counter() - begin)
    return latencies


def synchronize(device: torch.device) -> None:
    """Waits until the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def check_csv(output: Path) -> None:
    """Raises UserError unless the file of predictions is a csv."""
    if output.suffix != ".csv":
        raise UserError(f"output={output}: predictions are written as csv; give a name that ends in .csv")
