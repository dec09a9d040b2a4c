"""Generating molecules to a file, with the model's speed measured apart from RDKit's."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from src.config.ranges import Count, Range, Share
from src.errors import UserError
from src.gpu.cuda_graphs import Graphed
from src.measure.clock import Clock
from src.models.moflow.interpolate import encoded_ends, interpolated, write_interpolation
from src.models.moflow.judge import Judge, reported, training_molecules
from src.models.moflow.network import MoFlow
from src.models.moflow.optimise import LEAST_MOLECULES, Goal, Search, checked_plan
from src.models.moflow.optimised import write_optimised
from src.models.moflow.temperatures import (
    Given,
    of_temperatures,
    over_temperatures,
    temperature_of,
    write_temperatures,
)
from src.molecules.distances import check_installed
from src.molecules.draw import draw_grid
from src.molecules.score import Properties, Scorer
from src.molecules.vocabulary import VOCABULARIES, Vocabulary
from src.system.files import write_text
from src.system.tables import write_csv
from src.training.prediction import Prediction, PredictionJob, Quality, TimedBatches

JUDGE = "model.predict.judge"
LOOKED_AT, PICTURE_SIZE = 500, 20  # molecules


@dataclass(frozen=True)
class Options:
    """MoFlow's own of a prediction: conf/model/moflow.yaml, `predict`."""

    temperature: Given | None = None  # None: the task's
    correct_validity: bool | None = None  # None: as the task says
    interpolate: Sequence[str] | None = None  # two SMILES
    interpolate_steps: Annotated[int, Range(2)] = 20
    temperatures: Sequence[Given] | None = None  # whose validity and uniqueness are compared
    judge: bool = False  # by the training's molecules, which must be prepared
    optimise: Goal | None = None  # of src.models.moflow.optimise, like those below
    optimise_starts: Count | Sequence[str] = 100
    optimise_molecules: Annotated[int, Range(LEAST_MOLECULES)] = 20_000
    optimise_steps: Count = 10
    optimise_similarity: Share | Sequence[Share] = (0, 0.2, 0.4, 0.6)

    def search(self, job: PredictionJob, vocabulary: Vocabulary) -> Search | None:
        """Returns the property optimisation, if one is asked for. Raises UserError for wrong options or data."""
        if self.optimise is None:
            return None
        how = self.optimise_starts, self.optimise_molecules, self.optimise_steps, self.optimise_similarity
        return Search(checked_plan(self.optimise, *how), job, vocabulary)


def generate_molecules(
    network: MoFlow, vocabulary: Vocabulary, job: PredictionJob, options: Options, clock: Clock
) -> Prediction:
    """Generates molecules in batches and writes the valid ones to the job's output, .csv or .smi.

    A batch's latency runs from the call to the arrays on the host, without the building of molecules; a benchmark also
    times both together. A csv has smiles,
    qed, logp, sas and plogp. With `interpolate` also writes the molecules on the way between two, with `temperatures`
    the quality of as many molecules at each, with `judge` what is judged by the training's molecules, with `optimise`
    molecules with a higher property. Raises UserError for another ending, for SMILES that do not encode.
    """
    output, steps, temperature = job.output, options.interpolate_steps, temperature_of(options.temperature or 1.0)
    if job.num_samples is None:
        raise UserError("num_samples=null does not say how many molecules to generate; give a number")
    if output.suffix not in (".csv", ".smi", ".smiles"):
        raise UserError(f"output={output}: the ending must be .csv (with QED, logP, SAS), .smi or .smiles")
    correct = bool(options.correct_validity)
    compared = [temperature_of(value) for value in options.temperatures or ()]
    ends = encoded_ends(options.interpolate, vocabulary) if options.interpolate else None
    data = training_molecules(job, vocabulary, JUDGE) if options.judge else None
    if data is not None:
        check_installed()
    search, further = options.search(job, vocabulary), list[Quality]()
    # All batches have one size: the job's in a benchmark, else a smaller one where as many batches then hold them all.
    size = job.batch_size if job.benchmark else -(-job.num_samples // -(-job.num_samples // job.batch_size))
    sample = Graphed(lambda: network.sample(size, temperature), job.graph)
    nodes, edges, latencies = generated(sample, size, job, job.num_samples, network.ln_var.device, clock)
    published, canonical = (data.train_published, data.train_canonical) if data is not None else (set(), set())
    with Scorer(vocabulary, published, canonical) as scorer:
        judge = Judge(data, scorer, network.ln_var.device) if data is not None else None
        smiles = scorer.build(nodes, edges, correct).result()
        valid = [text for text in smiles if text is not None]
        properties = scorer.properties(valid).result() if output.suffix == ".csv" else None
        write_molecules(valid, properties, output)
        files = {"molecules": output, **picture_of(valid, scorer, output.with_suffix(".png"))}
        if job.benchmark:
            further.append(from_noise_to_smiles(sample, size, scorer, job.num_samples, correct))
        if judge is not None:
            sets = {"drawn": scorer.build(nodes, edges), "corrected": scorer.build(nodes, edges, True)}
            further += judged(judge, {name: built.result() for name, built in sets.items()}, job.batch_size)
            files |= judge.picture(valid, output.with_name(f"{output.stem}_properties.png"))
        if compared:
            sizes = job.num_samples, job.batch_size
            rows = over_temperatures(network, scorer, compared, *sizes, correct, judge)
            files |= write_temperatures(rows, output)
            further += of_temperatures(rows, job.num_samples)
        if search is not None:
            result = search.run(network, scorer, correct)
            written, optimised = write_optimised(result, search.plan, output)
            files, further = files | written, further + optimised
    if ends is not None:
        way = interpolated(network, ends, steps, vocabulary, correct)
        files |= write_interpolation(way, output)
    clock.mark("evaluation")
    share = 100 * len(valid) / job.num_samples
    corrected = " after correction" if correct else ""
    held = f"{len(valid):,} of {job.num_samples:,} molecules are valid{corrected}; {output.name} holds these"
    quality = [Quality("validity", share, "%", held)]
    if valid:
        quality.append(Quality("uniqueness", 100 * len(set(valid)) / len(valid), "%", "of the valid ones are distinct"))
    validity = {"name": "validity", "value": share, "target": None, "reached": None}
    made = len(latencies) * job.batch_size if job.benchmark else job.num_samples
    return Prediction(made, latencies, files, validity, quality=quality + further)


def judged(judge: Judge, sets: dict[str, list[str | None]], batch_size: int) -> list[Quality]:
    """Returns the scores of sets of molecules by the sets' names, and what training molecules reach."""
    quality = []
    for name, smiles in sets.items():
        quality += reported(judge.scores(smiles, batch_size), name, f"{len(smiles):,} molecules as {name}")
    real = {name.removeprefix("floor_"): value for name, value in judge.floor(len(sets["drawn"])).items()}
    return quality + reported(real, "training", "as many training molecules")


def generated(
    sample: Graphed[tuple[Tensor, Tensor]],
    size: int,
    job: PredictionJob,
    num_samples: int,
    device: torch.device,
    clock: Clock,
) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """Returns nodes and edges of `num_samples` molecules on the host, and the seconds of each batch of `size`."""
    timed = TimedBatches[int](lambda _: sample(), device, clock, lambda _: size)
    for _ in range(max(job.warmup_batches, sample.warmup + 1 if job.graph else 0) if job.benchmark else 0):
        sample()
    clock.mark("startup")
    batches = [arrays for _, arrays in timed.over(count(), num_samples)]
    nodes, edges = (np.concatenate(arrays)[:num_samples] for arrays in zip(*batches, strict=True))
    return nodes, edges, timed.latencies_s


def from_noise_to_smiles(
    sample: Graphed[tuple[Tensor, Tensor]], size: int, scorer: Scorer, num_samples: int, correct: bool
) -> Quality:
    """Returns canonical valid SMILES per second, generated again while all cores build the molecules before."""
    begun, generating, pending = time.perf_counter(), 0.0, []
    for _ in range(0, num_samples, size):
        start = time.perf_counter()
        nodes, edges = (part.cpu().numpy() for part in sample())
        generating += time.perf_counter() - start
        pending.append(scorer.build(nodes, edges, correct))
    valid = sum(text is not None for future in pending for text in future.result())
    seconds = time.perf_counter() - begun
    made = (
        f"canonical and valid, of {len(pending) * size:,} molecules; generating takes {generating / seconds:.0%} of the"
    )
    return Quality("from noise to SMILES", valid / seconds, "/s", f"{made} time, {scorer.workers} processes build them")


def picture_of(smiles: Sequence[str | None], scorer: Scorer, path: Path) -> dict[str, Path]:
    """Draws the most drug-like of the first distinct valid molecules, best first, with their QED.

    Nothing, with a line that says why, where that cannot be done.
    """
    valid = list(dict.fromkeys(text for text in smiles if text is not None))[:LOOKED_AT]
    rated = sorted(zip(scorer.properties(valid).result(), valid, strict=True), reverse=True)[:PICTURE_SIZE]
    try:
        if not rated:
            raise UserError("no valid molecule was generated, so there is no picture of any")
        draw_grid([text for _, text in rated], path, [f"QED {properties.qed:.2f}" for properties, _ in rated])
    except UserError as error:
        print(f"note: {error}")
        return {}
    return {"generated molecules": path}


def vocabulary_of(network: MoFlow) -> Vocabulary:
    """Returns the vocabulary of a checkpoint that names no elements: that with its number of classes, of its size."""
    classes, atoms = network.num_atom_classes, network.max_atoms
    vocabulary = next((v for v in VOCABULARIES if v.num_classes == classes and atoms <= v.max_atoms), None)
    if vocabulary is None:
        raise UserError(f"no vocabulary has {classes} atom classes and {atoms} atoms; add it to VOCABULARIES")
    return vocabulary.up_to(atoms)


def write_molecules(smiles: list[str], properties: list[Properties] | None, output: Path) -> None:
    """Writes a molecule a line, atomically; with properties as csv."""
    if properties is None:
        write_text(output, "".join(f"{text}\n" for text in smiles))
        return
    pairs = zip(smiles, properties, strict=True)
    write_csv(output, ["smiles", *Properties._fields], ([text, *(f"{x:.4f}" for x in rated)] for text, rated in pairs))
