"""Quality of the molecules that one network generates at several temperatures."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from statistics import median

import torch

from src.config.ranges import Positive
from src.errors import UserError
from src.models.moflow.judge import Judge, reported
from src.models.moflow.network import MoFlow
from src.molecules.score import Properties, Scorer, score_batches
from src.system.tables import write_csv
from src.training.prediction import Quality

KEY = "model.predict.temperatures"
RATED = 1000  # distinct valid molecules whose properties are computed
Temperature = float | tuple[float, float]  # of atoms and bonds
Given = Positive | Sequence[Positive]  # in a config
COLUMNS = (
    "temperature",
    "bond_temperature",
    "validity",
    "uniqueness",
    "valid_unique",
    *(f"median_{name}" for name in Properties._fields),
)
JUDGED = ("nuv", "canonical_nuv", "fcd", "nspdk")


def temperature_of(value: Given) -> Temperature:
    """Returns one temperature, or those of atoms and bonds. Raises UserError for a list of another length."""
    if not isinstance(value, Sequence):
        return value
    if len(value) != 2:
        raise UserError(f"temperature {list(value)}: give a number, or two, of atoms and bonds, such as [0.4,0.2]")
    return value[0], value[1]


@torch.no_grad()
def over_temperatures(
    network: MoFlow,
    scorer: Scorer,
    temperatures: Sequence[Temperature],
    count: int,
    batch: int,
    correct_validity: bool,
    judge: Judge | None = None,
) -> list[dict[str, float]]:
    """Generates `count` molecules at each temperature; returns what COLUMNS names of each, with a judge JUDGED too.

    Percentages: validity of generated, uniqueness of valid, `valid_unique` the distinct valid ones of generated. What
    cannot be computed of no or one valid molecule is NaN.
    """
    rows = []
    for temperature in temperatures:
        sizes = [min(batch, count - start) for start in range(0, count, batch)]
        samples = (network.sample(size, temperature) for size in sizes)
        arrays = [(nodes.cpu().numpy(), edges.cpu().numpy()) for nodes, edges in samples]
        built = [scorer.build(nodes, edges, correct_validity) for nodes, edges in arrays]
        smiles = list(chain.from_iterable(future.result() for future in built))
        scores = score_batches([smiles], frozenset())
        rated = scorer.properties(list(dict.fromkeys(filter(None, smiles)))[:RATED]).result()
        medians = [median(column) for column in zip(*rated, strict=True)] or [float("nan")] * len(Properties._fields)
        pair = (temperature, temperature) if isinstance(temperature, int | float) else temperature
        values = *pair, scores.validity, scores.uniqueness, scores.nuv, *medians
        row = dict(zip(COLUMNS, values, strict=True))
        if judge is not None:
            judged = judge.scores(smiles, batch)
            row |= {name: judged.get(name, float("nan")) for name in JUDGED}
        rows.append(row)
    return rows


def of_temperatures(rows: Sequence[dict[str, float]], count: int) -> list[Quality]:
    """Returns validity, uniqueness and what a judge adds as figures, a group for each temperature."""
    quality = []
    for row in rows:
        atoms, bonds = row["temperature"], row["bond_temperature"]
        name = f"at {atoms:g}" if atoms == bonds else f"at {atoms:g}, {bonds:g}"
        scores = {key: value for key, value in row.items() if value == value}
        scores["pool_uniqueness"] = scores.pop("uniqueness")
        which = f"{count:,} molecules {name.replace(', ', ' of atoms and ')}"
        quality += reported(scores, name, which)
    return quality


def write_temperatures(rows: Sequence[dict[str, float]], output: Path) -> dict[str, Path]:
    """Writes OUTPUT_temperatures.csv and .png next to `output`; returns both."""
    from src.models.moflow.plots import temperatures_picture  # it takes a while, and few predictions draw it

    table, picture = (output.with_name(f"{output.stem}_temperatures{ending}") for ending in (".csv", ".png"))
    write_csv(table, list(rows[0]), ([f"{value:.4f}" for value in row.values()] for row in rows))
    temperatures_picture(rows, picture)
    return {"temperatures": table, "temperatures drawn": picture}
